"""A failure that a retry cannot fix, and the closed vocabulary in which it is told.

Codes, checks and causes are those that readers accept (reference/kubernetes-compute.md §13.7, reference/worker-console.md §5.3); the
check ``app-server`` is ours. Free text never enters: a cause is a kind and one fixed word.
"""

from __future__ import annotations

import errno
import signal
from typing import NamedTuple


class Cause(NamedTuple):
    """Why a model probe failed: ``kind`` and an optional fixed word."""

    kind: str
    detail: str | None = None


class HeldFailure(Exception):  # noqa: N818 - it is a published state, not a programming error
    """Startup stops here; the failure is published until the Sandbox is stopped.

    ``check`` is ``login``, ``model-probe`` or ``app-server``. ``variable`` names the offending variable in the log only.
    """

    def __init__(
        self, code: str, *, check: str, cause: Cause | None = None, variable: str | None = None
    ) -> None:
        super().__init__(code)
        self.code = code
        self.check = check
        self.cause = cause
        self.variable = variable


def process_exit(status: int) -> Cause:
    """Name a child's return code (negative: the signal that ended it)."""
    if status >= 0:
        return Cause("PROCESS_EXIT", f"exit-{status}")
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"SIG{-status}"
    return Cause("PROCESS_EXIT", f"signal-{name}")


def not_started(error: OSError) -> Cause:
    """Name why a child could not be started."""
    return Cause("PROCESS_EXIT", f"error-{errno.errorcode.get(error.errno or 0, 'EUNKNOWN')}")
