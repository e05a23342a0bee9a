"""The only four ways a pass can end, as a closed union. A lost claim is not one of them: nothing is published then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

Json = Any
Apply = Callable[[Any], Awaitable[None]]
"""Writes made in the transaction that completes the work; receives a `store.database.Tx` and may raise `Instead`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """The wanted state holds, or nobody wants it any more; `reason` says which."""

    reason: str
    data: Json | None = None
    apply: Apply | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Nothing is wrong yet; no attempt is spent. `delay` None is the readiness cadence.

    `dependency`: a named dependency is away, so its code is what people read at the deadline. `refusal` makes the wait for the removal
    of a refused candidate durable, and lifts the deadline.
    """

    code: str
    delay: float | None = None
    dependency: bool = False
    refusal: str | None = None
    refusal_data: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """An unknown fault; spends an attempt."""

    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Permanent:
    """A retry cannot help. `hint_code` goes to the log.

    `exhausted`: the fault itself is not final; the attempts or the time are.
    """

    code: str
    data: Json | None = None
    hint_code: str | None = None
    exhausted: bool = False


Outcome = Success | Pending | Retry | Permanent
"""How a pass ended."""


class Instead(Exception):  # noqa: N818 - not a malfunction: what was found under the lock decides otherwise
    """Raised while publishing: what the locks showed asks for another outcome; nothing of this one is written."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(type(outcome).__name__)
        self.outcome = outcome
