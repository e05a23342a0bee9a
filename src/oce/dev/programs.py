"""Keep a handful of child programs running: start, wait until ready, restart after a crash, stop in order.

Each program is a process group of its own with its output in a log file. A program that ends is started again, first at once, then with
a growing delay. It knows nothing of what the programs do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

_POLL_SECONDS: Final = 0.01
_STABLE_SECONDS: Final = 10.0
_LONGEST_DELAY: Final = 15.0


class ProgramError(Exception):
    """A program did not become ready; the message names its log and quotes its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run. `ready` answers whether it serves; `grace` bounds a polite stop."""

    name: str
    command: Sequence[str]
    log: Path
    ready: Callable[[], Awaitable[bool]]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_seconds: float = 30.0
    grace: float = 10.0
    stop_signal: int = signal.SIGTERM
    pid_file: Path | None = None


@dataclass(slots=True)
class ProgramState:
    """What is known of a kept program."""

    program: Program
    pid: int | None = None
    ready: bool = False
    restarts: int = 0
    last_exit: int | None = None


class Keeper:
    """Keeps programs until told to stop."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._states: dict[str, ProgramState] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = changed

    def states(self) -> tuple[ProgramState, ...]:
        """Return the state of every program in start order."""
        return tuple(self._states.values())

    async def start(self, program: Program) -> None:
        """Start a program and return when it is ready. Raises ProgramError."""
        state = ProgramState(program)
        self._states[program.name] = state
        process = await self._spawn(state)
        await self._wait_ready(state, process)
        self._tasks[program.name] = asyncio.create_task(
            self._keep(state, process), name=f"keep-{program.name}"
        )

    async def stop(self, name: str) -> None:
        """Stop one program; absent is fine."""
        task = self._tasks.pop(name, None)
        state = self._states.pop(name, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if state is not None and state.pid is not None:
            await _end(state.pid, state.program.grace, state.program.stop_signal)
        if state is not None and state.program.pid_file is not None:
            state.program.pid_file.unlink(missing_ok=True)
        self._changed()

    async def stop_all(self) -> None:
        """Stop every program, the last started first."""
        for name in reversed(list(self._states)):
            await self.stop(name)

    async def _spawn(self, state: ProgramState) -> asyncio.subprocess.Process:
        program = state.program
        log = os.open(program.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *program.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**_base_environment(), **program.environment},
                start_new_session=True,
            )
        finally:
            os.close(log)
        state.pid = process.pid
        state.ready = False
        if program.pid_file is not None:
            program.pid_file.write_text(f"{process.pid} {start_time(process.pid)}\n")
        self._changed()
        return process

    async def _wait_ready(self, state: ProgramState, process: asyncio.subprocess.Process) -> None:
        program = state.program
        end = asyncio.get_running_loop().time() + program.ready_seconds
        while True:
            if await program.ready():
                state.ready = True
                self._changed()
                return
            if process.returncode is not None:
                state.pid = None
                raise ProgramError(
                    f"{program.name} ended with {process.returncode} before it was ready. {_last_words(program.log)}"
                )
            if asyncio.get_running_loop().time() > end:
                await _end(process.pid, 1.0)
                state.pid = None
                raise ProgramError(
                    f"{program.name} was not ready after {program.ready_seconds:.0f} s. {_last_words(program.log)}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def _keep(self, state: ProgramState, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        delay = 0.0
        while True:
            started = loop.time()
            state.last_exit = await process.wait()
            state.pid = None
            state.ready = False
            state.restarts += 1
            self._changed()
            delay = (
                0.0
                if loop.time() - started > _STABLE_SECONDS
                else min(max(delay * 2, 0.25), _LONGEST_DELAY)
            )
            await asyncio.sleep(delay)
            process = await self._spawn(state)
            with contextlib.suppress(ProgramError):
                await self._wait_ready(state, process)


def _base_environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    return {name: os.environ[name] for name in kept if name in os.environ}


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot (field 22 of its stat); 0 when it is gone.

    With the pid it names a process that no later one can be mistaken for (failure case BR-39).
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a kernel file
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


async def end_recorded(pid_file: Path, grace: float = 5.0, polite: int = signal.SIGTERM) -> bool:
    """End the program that a pid file names, if it is still that one; remove the file; tell whether it ran."""
    try:
        pid, started = (int(word) for word in pid_file.read_text().split())
    except (OSError, ValueError):
        pid, started = 0, 0
    running = pid > 0 and started > 0 and start_time(pid) == started and alive(pid)
    if running:
        await _end(pid, grace, polite)
    pid_file.unlink(missing_ok=True)
    return running


async def _end(pid: int, grace: float, polite: int = signal.SIGTERM) -> None:
    """Ask a process group to end, then kill it; returns when the leader is gone."""
    loop = asyncio.get_running_loop()
    for number, patience in ((polite, grace), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        end = loop.time() + patience
        while loop.time() < end:
            if not alive(pid):
                return
            await asyncio.sleep(_POLL_SECONDS)


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a kernel file read in a poll loop
            return file.read().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def _last_words(log: Path) -> str:
    try:
        text = log.read_bytes()[-1200:].decode(errors="replace").strip()
    except OSError:
        text = ""
    return f"Its log {log} ends with:\n{text}" if text else f"Its log {log} is empty."
