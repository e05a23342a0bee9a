"""One table from any exception to an outcome, and the rules of time around it (reference/worker-console.md §5). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import DriverRefusal, NotVisible
from oce.domain.failures import CATALOGUE, Tempo
from oce.worker.outcomes import Pending, Permanent, Retry

if TYPE_CHECKING:
    from oce.worker.outcomes import Outcome

SLOWEST_RECHECK: Final = 5.0
FASTEST_RECHECK: Final = 0.5
_AGE_SHARE: Final = 40
REFUSED_STOP_MAX: Final = 300.0
_REFUSED_STOP_SHARE: Final = 4
DEADLINE_CODE: Final = "CONVERGENCE_DEADLINE_EXCEEDED"
UNKNOWN_FAULT: Final = "DEPENDENCY_UNAVAILABLE"


def classify(error: Exception) -> Outcome:
    """Return how a pass ends that raised `error`. What no Driver typed is an unknown fault and shows nothing of itself."""
    if isinstance(error, DriverRefusal):
        match error.tempo:
            case Tempo.PENDING:
                return Pending(code=error.code)
            case Tempo.TRANSIENT:
                return Pending(code=error.code, dependency=True)
            case Tempo.RETRY:
                return Retry(code=error.code)
            case Tempo.PERMANENT:
                return Permanent(code=error.code, hint_code=error.hint_code)
    return Retry(code=UNKNOWN_FAULT)


def unknown_fault(error: Exception) -> bool:
    """Tell whether the log must keep the class and cause of `error`, because its outcome does not."""
    return not isinstance(error, DriverRefusal) or isinstance(error, NotVisible)


def own_words(error: Exception) -> dict[str, str]:
    """Return the log fields `code` and `reason` of a refusal that says more than its code does; a plain wait says nothing new.

    A refusal's sentence is its Driver's own (contracts.refusals), and the log's rules for values come after.
    """
    if not isinstance(error, DriverRefusal) or error.tempo in {Tempo.PENDING, Tempo.TRANSIENT}:
        return {}
    said = str(error)
    if said == CATALOGUE[error.code].message:
        return {}
    return {"code": error.code, "reason": said}


def readiness_delay(age: float) -> float:
    """Return the pause before looking again at something `age` seconds old: a fortieth of it, 0.5…5 s."""
    return min(SLOWEST_RECHECK, max(FASTEST_RECHECK, age / _AGE_SHARE))


def refused_stop_delay(age: float, failed_stops: int, stop_seconds: float) -> float:
    """Return the pause before the next try to remove a refused candidate: doubling up to 300 s, at least four times what it took."""
    doubled = readiness_delay(age) * 2.0 ** min(failed_stops - 1, 10)
    return max(min(REFUSED_STOP_MAX, doubled), _REFUSED_STOP_SHARE * stop_seconds)


def bounded(
    outcome: Outcome, *, age: float, convergence_timeout: float, attempt: int, max_attempts: int
) -> Outcome:
    """Return the outcome after deadline and attempts: a wait that is too old and a last retry are permanent.

    A dependency that is still away at the deadline is named instead of the deadline.
    """
    if isinstance(outcome, Pending) and outcome.refusal is None and age >= convergence_timeout:
        if outcome.dependency:
            return Permanent(code=outcome.code, exhausted=True)
        data = {"timeoutMs": round(convergence_timeout * 1000)}
        return Permanent(code=DEADLINE_CODE, data=data, exhausted=True)
    if isinstance(outcome, Retry) and attempt >= max_attempts:
        return Permanent(code=outcome.code, exhausted=True)
    return outcome
