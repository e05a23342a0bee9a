"""Marker files that probes read: readiness says "a real queue read worked and the notification line is up", liveness "the loop moves".

The two differ on purpose: during a database outage the loop still starts passes that fail fast, so the process is alive and not ready.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Health:
    """What the worker knows about itself. Marker failures never stop work."""

    def __init__(self, *, readiness: Path | None, liveness: Path | None, throttle: float) -> None:
        self._readiness = readiness
        self._liveness = liveness
        self._throttle = throttle
        self._moved = -throttle
        self.listening = False
        self.reading = False

    @property
    def ready(self) -> bool:
        """Whether work that is enqueued now would be noticed at once."""
        return self.listening and self.reading

    def progress(self) -> None:
        """Note that the loop moved."""
        now = time.monotonic()
        if self._liveness is not None and now - self._moved >= self._throttle:
            self._moved = now
            _touch(self._liveness)

    def report(self) -> None:
        """Set or remove the readiness marker."""
        if self._readiness is None:
            return
        if self.ready:
            _touch(self._readiness)
        else:
            self.withdraw()

    def withdraw(self) -> None:
        """Remove the readiness marker."""
        if self._readiness is not None:
            with suppress(OSError):
                self._readiness.unlink(missing_ok=True)


def _touch(path: Path) -> None:
    with suppress(OSError):
        path.touch(mode=0o600)
