"""Starting and ending children, and being told to stop.

Every child leads its own process group. When it ends, the group is killed, so that a tool it left behind cannot write beside its
successor. The first SIGTERM (or SIGINT) is passed on; what is still there after the drain time is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

DRAIN_SECONDS = 8.0


def kill_group(child: subprocess.Popen[bytes], number: int) -> None:
    """Signal a child's whole group; where the group may not be signalled (EPERM), the child itself."""
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        with contextlib.suppress(OSError):
            child.send_signal(number)


class Children:
    """The one child that runs now, and the wish to stop. One instance per program; it owns the signal handlers."""

    def __init__(self) -> None:
        self._stopping = False
        self._current: subprocess.Popen[bytes] | None = None
        self._wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGALRM, self._drain_over)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def stopping(self) -> bool:
        """Return whether the program was told to stop."""
        return self._stopping

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a signal arrives."""
        return self._wake

    def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a child as leader of its own group. Raises OSError."""
        child = subprocess.Popen(  # noqa: S603 - an absolute path and fixed arguments
            command,
            env=environment,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self._current = child
        if self._stopping:
            kill_group(child, signal.SIGTERM)
        return child

    def finish(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for a child, then kill what is left of its group; return its code (negative: signal)."""
        status = child.wait()
        kill_group(child, signal.SIGKILL)
        self._current = None
        return status

    def sleep(self, seconds: float) -> bool:
        """Wait; return whether the program was told to stop meanwhile."""
        if not self._stopping:
            select.select([self._wake], [], [], seconds)
        return self._stopping

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stopping:
            return
        self._stopping = True
        if self._current is not None:
            kill_group(self._current, number)
            signal.setitimer(signal.ITIMER_REAL, DRAIN_SECONDS)

    def _drain_over(self, _number: int, _frame: FrameType | None) -> None:
        if self._current is not None:
            kill_group(self._current, signal.SIGKILL)
