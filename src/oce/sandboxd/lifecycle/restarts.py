"""What follows when a main process ends: the restart rule as a pure function.

First restart at once, then 1 s doubling to 180 s; a run of 10 s or more resets the back-off; status codes as in
reference/openshell-gateway.md b.2. No clock here: the caller says how long the process ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

RESET_AFTER = 10.0
LONGEST = 180.0


class RestartPolicy(Enum):
    """Values of `SandboxRestartPolicy`; unspecified means never."""

    NEVER = 1
    ON_FAILURE = 2
    ALWAYS = 3


@dataclass(frozen=True, slots=True)
class Restart:
    """Start again after `delay` seconds; `streak` counts restarts without a long run between them."""

    delay: float
    streak: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Stay down; `succeeded` tells COMPLETED from ERROR."""

    succeeded: bool


def policy_of(number: int) -> RestartPolicy:
    """Return the policy of a wire value."""
    return RestartPolicy(number) if number in {2, 3} else RestartPolicy.NEVER


def delay_of(streak: int) -> float:
    """Return the wait before restart number `streak` (from 1) of a streak."""
    return 0.0 if streak <= 1 else min(LONGEST, float(2 ** min(streak - 2, 16)))


def after_exit(
    policy: RestartPolicy, *, code: int | None, ran_for: float, streak: int
) -> Restart | Ended:
    """Decide; `code` None (nobody knows how it ended) counts as a failure."""
    failed = code != 0
    if policy is RestartPolicy.NEVER or (policy is RestartPolicy.ON_FAILURE and not failed):
        return Ended(succeeded=not failed)
    streak = 1 if ran_for >= RESET_AFTER else streak + 1
    return Restart(delay=delay_of(streak), streak=streak)
