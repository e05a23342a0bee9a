"""A live Sandbox of this machine, started or adopted: everything is asked of its keeper.

Its end is known in three ways: the keeper says so, the keeper left a record, or the keeper is gone without one; the last is
"nobody knows how", never success.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from oce.sandboxd.confine import output_ring, wire
from oce.sandboxd.confine.channel import KeeperChannel, connect_in
from oce.sandboxd.confine.piped_command import PipedCommand
from oce.sandboxd.confine.rights import failure
from oce.sandboxd.place import (
    EgressDescriptors,
    ExitStatus,
    LaunchFailedError,
    NotRunningError,
    PlaceError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from oce.sandboxd.place import ExecExit, ExecOutput, ExecRequest

_CONNECT_SECONDS = 10.0
_END_SECONDS = 5.0
_POLL_SECONDS = 0.001
_LINE_PACKET = output_ring.MAX_LINE + 64


def recorded_exit(directory: Path) -> ExitStatus | None:
    """Return what the keeper recorded at the end; None: it recorded none (it runs, or it died)."""
    try:
        return ExitStatus(code=int(json.loads((directory / wire.EXIT_NAME).read_text())["code"]))
    except (OSError, ValueError, KeyError):
        return None


class MachineSandbox:
    """Implements `place.RunningSandbox`. Not made by callers."""

    def __init__(
        self,
        *,
        sandbox_id: str,
        directory: Path,
        channel: socket.socket,
        on_end: Callable[[str], None],
    ) -> None:
        self._sandbox_id = sandbox_id
        self._directory = directory
        self._instance = ""
        self._identity = ("", "")
        self._confined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._confined.add_done_callback(lambda f: f.cancelled() or f.exception())
        self._commands: dict[str, PipedCommand] = {}
        self._made = 0
        self._released = False
        self._exit: ExitStatus | None = None
        self.no_redirect = ""
        self._channel = KeeperChannel(channel, self._event, lambda: on_end(sandbox_id))

    # ---- start and adoption, used by the place

    async def confined(self, seconds: float) -> None:
        """Wait for the confirmation from inside. Raises MissingRightError, LaunchFailedError."""
        closed: asyncio.Future[Any] = asyncio.ensure_future(self._channel.closed.wait())
        try:
            await asyncio.wait(
                [closed, self._confined], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            closed.cancel()
        if not self._confined.done():
            raise LaunchFailedError(
                "the keeper ended before confinement was confirmed"
                if self._channel.closed.is_set()
                else f"confinement was not confirmed within {seconds:g} s"
            )
        self._confined.result()
        self._read_identity()

    async def take_over(self) -> None:
        """Ask an earlier gateway's keeper for its state. Raises NotRunningError, also when it never got ready."""
        state, _ = await self._channel.request("state")
        if not state["confined"]:
            raise NotRunningError("the Sandbox was not confined yet")
        self._note_state(state)
        self._read_identity()

    def _note_state(self, state: dict[str, Any]) -> None:
        self._instance = str(state["instance"])
        self.no_redirect = str(state["noRedirect"])

    def _read_identity(self) -> None:
        record = json.loads((self._directory / wire.RECORD_NAME).read_text())
        self._identity = (str(record["pid"]), str(record["start"]))

    def _event(self, event: dict[str, Any]) -> None:
        match event:
            case {"ev": "confined"}:
                self._note_state(event)
                if not self._confined.done():
                    self._confined.set_result(None)
            case {"ev": "failed", "stage": stage, "error": sentence}:
                if not self._confined.done():
                    self._confined.set_exception(failure(stage, sentence))
            case {"ev": "exec", "id": identity, "code": code}:
                command = self._commands.get(identity)
                if command is not None:
                    command.ended(code)
            case {"ev": "exit", "code": code}:
                self._exit = ExitStatus(code=code)
            case _:
                pass

    # ---- RunningSandbox

    @property
    def sandbox_id(self) -> str:
        """UUID of the Sandbox."""
        return self._sandbox_id

    @property
    def instance_id(self) -> str:
        """Identity of this run of the main process."""
        return self._instance

    @property
    def proc_id(self) -> str:
        """`pid:starttime` of the keeper."""
        return ":".join(self._identity)

    async def egress_descriptors(self) -> EgressDescriptors:
        """Return fresh duplicates of the namespace's listeners, non-blocking but for `diag`. Raises NotRunningError."""
        answer, descriptors = await self._channel.request("descriptors")
        tcp: dict[tuple[int, int], socket.socket] = {}
        udp: dict[int, socket.socket] = {}
        special: dict[str, int] = {}
        for name, descriptor in zip(answer["names"], descriptors, strict=True):
            match name.split("/"):
                case ["tcp", family, port]:
                    tcp[int(family), int(port)] = _non_blocking(descriptor)
                case ["udp", family]:
                    udp[int(family)] = _non_blocking(descriptor)
                case _:
                    special[name] = descriptor
        return EgressDescriptors(
            tcp=tcp, udp=udp, diag=socket.socket(fileno=special["diag"]), proc=special["proc"]
        )

    async def connect(self, port: int) -> socket.socket:
        """Return a connected, non-blocking socket. Raises ConnectionError (also after 10 s), NotRunningError."""
        _, descriptors = await self._channel.request("socket")
        made = socket.socket(fileno=descriptors[0])
        made.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError as error:
            made.close()
            raise ConnectionError(f"port {port} does not answer") from error
        except BaseException:
            made.close()
            raise
        return made

    async def exec(self, request: ExecRequest) -> AsyncGenerator[ExecOutput | ExecExit, None]:
        """Run a command inside. Raises ValueError for a command that cannot exist, NotRunningError."""
        self._made += 1
        identity = str(self._made)
        command = PipedCommand(self._channel, identity, request)
        self._commands[identity] = command
        try:
            async for event in command.run():
                yield event
        finally:
            await command.close()
            del self._commands[identity]

    async def output(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield the kept lines and then those to come; ends with the Sandbox."""
        loop = asyncio.get_running_loop()
        try:
            channel = connect_in(self._directory, wire.SOCKET_NAME)
        except OSError:
            for line in self._left_output():
                yield line
            return
        with channel:
            await loop.sock_sendall(channel, json.dumps({"n": 0, "op": "output"}).encode())
            while packet := await _receive_packet(channel):
                yield packet[0], packet[1:]

    def _left_output(self) -> list[tuple[int, bytes]]:
        try:
            return output_ring.unpack((self._directory / wire.OUTPUT_NAME).read_bytes())
        except OSError:
            return []

    async def wait(self) -> ExitStatus:
        """Wait until nothing of the Sandbox is left. Raises NotRunningError after `let_go`."""
        await self._channel.closed.wait()
        if self._released:
            raise NotRunningError("this process let go of the Sandbox")
        # The keeper closed its socket; a moment later it is gone itself.
        deadline = time.monotonic() + _END_SECONDS
        while recorded_keeper(self._directory) is not None:
            if time.monotonic() > deadline:
                raise PlaceError("the connection to the keeper ended, but it lives: adopt it again")
            await asyncio.sleep(_POLL_SECONDS)
        if self._exit is None:
            self._exit = recorded_exit(self._directory) or ExitStatus(code=None)
        return self._exit

    async def stop(self, grace_seconds: float) -> ExitStatus:
        """SIGTERM, then SIGKILL for all after the grace; the keeper keeps the time, also when this process dies."""
        try:
            await self._channel.request("stop", grace=grace_seconds)
            async with asyncio.timeout(grace_seconds + _END_SECONDS):
                return await self.wait()
        except NotRunningError:
            return await self.wait()
        except TimeoutError:
            # A keeper that does not answer: with it everything inside dies.
            self.kill_keeper()
            return await self.wait()

    def kill_keeper(self) -> None:
        """Kill the keeper and thereby everything inside. Does nothing when the keeper is gone."""
        kill_recorded_keeper(self._directory)

    # ---- beyond the protocol

    def let_go(self, *, ended: bool = False) -> None:
        """Close the connection; unless the Sandbox ended it runs on, and `wait` here cannot know its end any more."""
        self._released = not ended
        self._channel.close()


def _non_blocking(descriptor: int) -> socket.socket:
    made = socket.socket(fileno=descriptor)
    # The descriptor is so already; the Python object does not know it.
    made.setblocking(False)  # noqa: FBT003 - the method takes no keyword
    return made


async def _receive_packet(channel: socket.socket) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(channel, _LINE_PACKET)
    except OSError:
        return b""


def recorded_keeper(directory: Path) -> int | None:
    """Return the pid of the living keeper of a runtime directory, proven by boot, pid and start time; else None."""
    try:
        record = json.loads((directory / wire.RECORD_NAME).read_text())
        if record["boot"] != wire.boot_id():
            return None
        if wire.start_time(record["pid"]) != record["start"]:
            return None
        return int(record["pid"])
    except (OSError, ValueError, KeyError, IndexError):
        return None


def kill_recorded_keeper(directory: Path) -> bool:
    """Kill the keeper of a runtime directory if it lives; the pidfd is taken before the proof, so that no other is hit."""
    try:
        candidate = int(json.loads((directory / wire.RECORD_NAME).read_text())["pid"])
        descriptor = os.pidfd_open(candidate)
    except (OSError, ValueError, KeyError):
        return False
    try:
        if recorded_keeper(directory) != candidate:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
