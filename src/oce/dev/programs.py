"""Keep a handful of child programs running: start, wait until ready, restart after a crash, stop in order.

Each program is a process group of its own with its output in a log file. A program that ends is started again, first at once, then with
a growing delay. It knows nothing of what the programs do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oce.dev.processes import end, record
from oce.dev.spawn import detached

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

_POLL_SECONDS: Final = 0.01
_STABLE_SECONDS: Final = 10.0
_LONGEST_DELAY: Final = 15.0
_STOP_SIGNAL: Final = 15
_LAST_WORDS: Final = 1200


class ProgramError(Exception):
    """A program did not become ready; the message names its log and quotes its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run. `ready` answers whether it serves; `grace` bounds a polite stop.

    `module` instead of `command` is a Python program of ours that is loaded ahead of time (`oce.dev.run`).
    """

    name: str
    log: Path
    ready: Callable[[], Awaitable[bool]]
    command: Sequence[str] = ()
    module: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_seconds: float = 30.0
    grace: float = 10.0
    stop_signal: int = _STOP_SIGNAL
    pid_file: Path | None = None
    marker: Path | None = None
    """A file by which the program says that it is ready; what an earlier one left is removed first."""


@dataclass(slots=True)
class ProgramState:
    """What is known of a kept program."""

    program: Program
    pid: int | None = None
    ready: bool = False
    restarts: int = 0
    last_exit: int | None = None


class Keeper:
    """Keeps programs until told to stop. `changed` is called after every change of a state."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._states: dict[str, ProgramState] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = changed

    def states(self) -> tuple[ProgramState, ...]:
        """Return the state of every program in the order in which they were named first."""
        return tuple(self._states.values())

    def load(self, program: Program) -> None:
        """Start the process of a program that has a `module`, so that it loads; it runs when `start` is called."""
        self._states[program.name] = ProgramState(program)
        self._spawn(self._states[program.name])

    async def start(self, program: Program) -> None:
        """Start a program (or let a loaded one run) and return when it is ready. Raises ProgramError."""
        if program.name not in self._processes:
            self._states[program.name] = ProgramState(program)
            self._spawn(self._states[program.name])
        state = self._states[program.name]
        self._release(program.name)
        await self._wait_ready(state)
        self._tasks[program.name] = asyncio.create_task(
            self._keep(state), name=f"keep-{program.name}"
        )

    async def run_once(self, program: Program) -> None:
        """Let a program run to its end. Raises ProgramError with its last words when it ends with another status than 0."""
        if program.name not in self._processes:
            self.load(program)
        process = self._processes[program.name]
        self._release(program.name)
        status = await exited(process)
        await self.stop(program.name)
        if status != 0:
            raise ProgramError(last_words(program.log) or f"{program.name} failed without a word")

    async def stop(self, name: str) -> None:
        """Stop one program; absent is fine."""
        task = self._tasks.pop(name, None)
        state = self._states.pop(name, None)
        process = self._processes.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        if state is not None and process is not None:
            await end(process.pid, state.program.grace, state.program.stop_signal)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        if state is not None and state.program.pid_file is not None:
            state.program.pid_file.unlink(missing_ok=True)
        self._changed()

    async def stop_all(self, *, but: str = "") -> None:
        """Stop every program at once, `but` one that others still need."""
        await asyncio.gather(*(self.stop(name) for name in list(self._states) if name != but))

    def _spawn(self, state: ProgramState) -> None:
        program = state.program
        loaded = [sys.executable, "-m", "oce.dev.run", *program.module]
        if program.marker is not None:
            program.marker.unlink(missing_ok=True)
        process = detached(
            loaded if program.module else program.command,
            program.log,
            piped=bool(program.module),
            environment={**_base_environment(), **program.environment},
        )
        self._processes[program.name] = process
        state.pid = process.pid
        state.ready = False
        if program.pid_file is not None:
            record(program.pid_file, process.pid)
        self._changed()

    def _release(self, name: str) -> None:
        stdin = self._processes[name].stdin
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                stdin.write(b"\n")
                stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                stdin.close()

    async def _wait_ready(self, state: ProgramState) -> None:
        program, process = state.program, self._processes[state.program.name]
        patience = asyncio.get_running_loop().time() + program.ready_seconds
        while True:
            # First whether it lives: a probe may be answered by somebody else on the same port.
            status = process.poll()
            if status is not None:
                state.pid = None
                state.last_exit = status
                raise ProgramError(
                    f"{program.name} ended {how_it_ended(status)} before it was ready. {quote(program.log)}"
                )
            if await program.ready():
                state.ready = True
                self._changed()
                return
            if asyncio.get_running_loop().time() > patience:
                raise ProgramError(
                    f"{program.name} was not ready after {program.ready_seconds:.0f} s. {quote(program.log)}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def _keep(self, state: ProgramState) -> None:
        loop = asyncio.get_running_loop()
        delay = 0.0
        while True:
            started = loop.time()
            process = self._processes[state.program.name]
            state.last_exit = await exited(process)
            state.pid = None
            state.ready = False
            state.restarts += 1
            self._changed()
            stable = loop.time() - started > _STABLE_SECONDS
            delay = 0.0 if stable else min(max(delay * 2, 0.25), _LONGEST_DELAY)
            await asyncio.sleep(delay)
            self._spawn(state)
            self._release(state.program.name)
            try:
                await self._wait_ready(state)
            except ProgramError:
                await end(self._processes[state.program.name].pid, state.program.grace)


async def exited(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a child without a thread or a poll; return its status as `subprocess` gives it."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return process.wait()
    over = asyncio.Event()
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.wait()


def _base_environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    return {name: os.environ[name] for name in kept if name in os.environ}


def how_it_ended(status: int) -> str:
    """Say an exit status in words."""
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def last_words(log: Path) -> str:
    """Return the end of a log, whole lines."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LAST_WORDS))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return (text.partition("\n")[2] if size > _LAST_WORDS else text).strip()


def quote(log: Path) -> str:
    """Return the sentence that quotes the end of a log."""
    text = last_words(log)
    return f"Its log {log} ends with:\n{text}" if text else f"Its log {log} is empty."
