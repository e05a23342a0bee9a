"""One `exec`: pipes made here and handed through the keeper to the launcher, so that no byte of output passes through either.

The time limit is kept here: SIGTERM to the process group, SIGKILL two seconds later, exit code 124.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oce.sandboxd.confine.channel import KeeperChannel, set_once
from oce.sandboxd.place import ExecExit, ExecOutput, NotRunningError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from oce.sandboxd.place import ExecRequest

TIMED_OUT = 124
_KILL_AFTER_SECONDS = 2.0
_ANSWER_SECONDS = 0.5
_DRAIN_SECONDS = 0.2
"""After the command ended, how long a silent pipe is waited for that a background child may still hold open."""
_CHUNK = 65536


def check_command(command: Sequence[str], environment: Mapping[str, str], workdir: str) -> None:
    """Raise ValueError for what no execve could take."""
    if not command or not command[0]:
        raise ValueError("the command is empty")
    if not workdir.startswith("/"):
        raise ValueError("the working directory is not absolute")
    for text in (*command, *environment, *environment.values(), workdir):
        if "\0" in text:
            raise ValueError("a NUL byte in a command, an environment or a working directory")
    if any(not name or "=" in name for name in environment):
        raise ValueError("an environment name is empty or holds '='")


def memory_file(document: object) -> int:
    """Return a memory file with a JSON document, for the keeper."""
    descriptor = os.memfd_create("oce", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(document).encode())
    return descriptor


class PipedCommand:
    """A command inside with its three pipes. `run` once, then `close`."""

    def __init__(self, channel: KeeperChannel, identity: str, request: ExecRequest) -> None:
        check_command(request.command, request.environment, request.workdir)
        self._channel = channel
        self._identity = identity
        self._request = request
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._started = False
        self._untaken: set[int] = set()
        """Descriptors whose task has not begun yet."""
        self._events: asyncio.Queue[ExecOutput | None] = asyncio.Queue(maxsize=16)
        self._tasks: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.BaseTransport] = []

    def ended(self, code: int) -> None:
        """Note the command's exit code."""
        if not self._code.done():
            self._code.set_result(code)

    async def run(self) -> AsyncGenerator[ExecOutput | ExecExit, None]:
        """Yield output and finally the exit. Raises NotRunningError when the Sandbox ends first."""
        await self._start()
        watch = asyncio.create_task(self._watch())
        self._tasks.append(watch)
        open_streams = 2
        while open_streams:
            event = await self._next(watch)
            if event is None:
                open_streams -= 1
                continue
            if event is watch:
                break
            yield event  # type: ignore[misc]
        await watch
        yield ExecExit(await self._code)

    async def _next(self, watch: asyncio.Task[None]) -> ExecOutput | asyncio.Task[None] | None:
        """Return the next output, None for a stream that ended, or `watch` when the command is over and the pipes are silent."""
        taking = asyncio.ensure_future(self._events.get())
        try:
            await asyncio.wait({taking, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                await asyncio.wait({taking}, timeout=_DRAIN_SECONDS)
            return taking.result() if taking.done() else watch
        finally:
            taking.cancel()

    async def _start(self) -> None:
        request = self._request
        body = memory_file(
            {
                "argv": list(request.command),
                "environment": dict(request.environment),
                "workdir": request.workdir,
            }
        )
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        try:
            await self._channel.request("exec", [body, *theirs], id=self._identity)
        except BaseException:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in (body, *theirs):
                os.close(descriptor)
        self._started = True
        self._untaken = set(ours)
        self._tasks.append(asyncio.create_task(self._feed(ours[0])))
        for stream, descriptor in ((1, ours[1]), (2, ours[2])):
            self._tasks.append(asyncio.create_task(self._read(stream, descriptor)))

    async def _feed(self, descriptor: int) -> None:
        """Write stdin; a command that does not read it is no error."""
        self._untaken.discard(descriptor)
        loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        rest = memoryview(self._request.stdin)
        try:
            while rest:
                try:
                    rest = rest[os.write(descriptor, rest[:_CHUNK]) :]
                except BlockingIOError:
                    ready = loop.create_future()
                    loop.add_writer(descriptor, set_once, ready)
                    try:
                        await ready
                    finally:
                        loop.remove_writer(descriptor)
        except BrokenPipeError:
            pass
        finally:
            os.close(descriptor)

    async def _read(self, stream: int, descriptor: int) -> None:
        self._untaken.discard(descriptor)
        reader = asyncio.StreamReader(limit=_CHUNK)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        self._transports.append(transport)
        while data := await reader.read(_CHUNK):
            await self._events.put(ExecOutput(stream, data))
        await self._events.put(None)

    async def _watch(self) -> None:
        """Wait for the exit code, the time limit or the end of the Sandbox."""
        gone: asyncio.Future[Any] = asyncio.ensure_future(self._channel.closed.wait())
        try:
            if await self._over(gone, self._request.timeout_seconds):
                return
            await self._signal(signal.SIGTERM)
            if not await self._over(gone, _KILL_AFTER_SECONDS):
                await self._signal(signal.SIGKILL)
                # A launcher that the workload stopped does not answer; the time limit holds all the same.
                await self._over(gone, _ANSWER_SECONDS)
            self._code = asyncio.get_running_loop().create_future()
            self._code.set_result(TIMED_OUT)
        finally:
            gone.cancel()

    async def _over(self, gone: asyncio.Future[Any], seconds: float | None) -> bool:
        await asyncio.wait([gone, self._code], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not self._code.done() and gone.done():
            raise NotRunningError("the Sandbox ended before the command")
        return self._code.done()

    async def _signal(self, number: signal.Signals) -> None:
        with suppress(NotRunningError):
            await self._channel.request("signal", id=self._identity, signal=int(number))

    async def close(self) -> None:
        """Kill the process group if the command still runs, and free everything."""
        if self._started and not self._code.done():
            await self._signal(signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for transport in self._transports:
            transport.close()
        for descriptor in self._untaken:
            os.close(descriptor)
