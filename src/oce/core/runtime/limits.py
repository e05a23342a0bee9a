"""How often and how much log text may be read at once: per principal and Agent 2 reads a second with a burst of 10, 16 at a time.

State of one process, for its own protection; it decides nothing about access.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Final

from oce.core.errors import CoreError, RateLimited

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE: Final = 2.0
BURST: Final = 10.0
CONCURRENT: Final = 16
_KNOWN_MAX: Final = 4096


class LogGate:
    """Token buckets and a counter."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}
        self._reading = 0

    def take(self, principal_id: str, agent_id: str, now: float) -> None:
        """Spend one read; `now` is monotonic seconds. Raises RateLimited."""
        key = (principal_id, agent_id)
        level, at = self._buckets.pop(key, (BURST, now))
        level = min(BURST, level + (now - at) * RATE)
        allowed = level >= 1
        if len(self._buckets) >= _KNOWN_MAX:
            self._buckets.pop(next(iter(self._buckets)))
        self._buckets[key] = (level - 1 if allowed else level, now)
        if not allowed:
            raise RateLimited(math.ceil((1 - level) / RATE))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Hold one of the concurrent reads. Raises CoreError RUNTIME_LOGS_UNAVAILABLE when all are taken."""
        if self._reading >= CONCURRENT:
            raise CoreError(code="RUNTIME_LOGS_UNAVAILABLE")
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
