"""Name a process so that no later one is mistaken for it, and end it with its group.

A number alone is recycled, so a record holds the pid, when it started and which boot that was (failure case BR-39). Nothing here judges
whether a process should run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Final

_POLL_SECONDS: Final = 0.01
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def _fields(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a kernel file read in a poll loop
        return file.read().rpartition(")")[2].split()


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot (field 22 of its stat); 0 when it is gone."""
    try:
        return int(_fields(pid)[19])
    except (OSError, IndexError, ValueError):
        return 0


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return _fields(pid)[0] not in {"Z", "X"}
    except (OSError, IndexError):
        return False


def record(pid_file: Path, pid: int) -> None:
    """Write which process a file stands for; whole or not at all."""
    fresh = pid_file.with_name(f".{pid_file.name}.new")
    fresh.write_text(f"{pid} {start_time(pid)} {_BOOT.read_text(encoding='ascii')}")
    fresh.replace(pid_file)


def recorded(pid_file: Path) -> int | None:
    """Return the pid that a file stands for while exactly that process runs, else None. A torn or foreign file is None too."""
    try:
        pid_text, start_text, boot = pid_file.read_text().split()
        pid, started = int(pid_text), int(start_text)
        same_boot = boot == _BOOT.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    lives = pid > 0 and started > 0 and start_time(pid) == started and alive(pid)
    return pid if same_boot and lives else None


async def end_recorded(pid_file: Path, grace: float = 5.0, polite: int = signal.SIGTERM) -> bool:
    """End the process that a file stands for, if it still runs; remove the file; tell whether it ran."""
    pid = recorded(pid_file)
    if pid is not None:
        await end(pid, grace, polite)
    pid_file.unlink(missing_ok=True)
    return pid is not None


async def end(pid: int, grace: float, polite: int = signal.SIGTERM) -> None:
    """Ask a process group to end, then kill it; returns when the leader is gone."""
    loop = asyncio.get_running_loop()
    for number, patience in ((polite, grace), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        until = loop.time() + patience
        while loop.time() < until:
            if not alive(pid):
                return
            await asyncio.sleep(_POLL_SECONDS)
