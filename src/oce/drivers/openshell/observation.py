"""Phases: what a Sandbox record says about its Harness. Pure (reference/sandbox-openshell.md §12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import DriverRefusal, RevisionUnsupported, StillPending
from oce.contracts.sandbox import HarnessObservation, HarnessState
from oce.domain.failures import Tempo
from oce.drivers.openshell import marks

if TYPE_CHECKING:
    from oce.domain.resources import AgentRevision
    from oce.drivers.openshell.records import SandboxRecord

_NUMBERS: Final = {
    1: "PROVISIONING",
    2: "READY",
    3: "ERROR",
    4: "DELETING",
    5: "UNKNOWN",
    6: "STOPPING",
    7: "STOPPED",
    8: "STARTING",
    9: "COMPLETED",
}
_LOST: Final = {
    "ERROR": "SANDBOX_FAILED",
    "DELETING": "SANDBOX_DELETING",
    "STOPPING": "SANDBOX_STOPPED",
    "STOPPED": "SANDBOX_STOPPED",
    "COMPLETED": "HARNESS_EXITED",
}
_INT32: Final = 2**31
_UINT32: Final = 2**32
_CONFINEMENT: Final = "ConfinementUnavailable"
"""Reason of the Ready condition when the machine lacks a right that confinement needs (sandboxd)."""
UNKNOWN: Final = HarnessObservation(state=HarnessState.UNKNOWN)
MISSING: Final = HarnessObservation(state=HarnessState.LOST, code="SANDBOX_MISSING")


def phase_name(phase: object) -> str:
    """Return a phase's bare name whether it came as a name or a number; a value we do not know is ''."""
    if isinstance(phase, bool):
        return ""
    if isinstance(phase, int):
        return _NUMBERS.get(phase, "")
    name = str(phase).removeprefix("SANDBOX_PHASE_")
    return name if name in _NUMBERS.values() else ""


def observe(revision: AgentRevision, record: SandboxRecord | None) -> HarnessObservation:
    """Map one record; another revision's record is never trusted."""
    if record is None:
        return MISSING
    if record.meta.annotations.get(marks.REVISION_ID) != revision.id:
        return UNKNOWN
    name = phase_name(record.phase)
    if name == "READY":
        return HarnessObservation(state=HarnessState.RUNNING)
    if name in _LOST:
        return HarnessObservation(state=HarnessState.LOST, code=_LOST[name])
    return _starting(record) if name in {"PROVISIONING", "STARTING"} else UNKNOWN


def _starting(record: SandboxRecord) -> HarnessObservation:
    """Restarting needs STARTING with both values in range; anything less is a plain start."""
    code, restarts = record.exit_code, record.restart_count
    values = code is not None and -_INT32 <= code < _INT32 and 0 < restarts < _UINT32
    if phase_name(record.phase) != "STARTING" or not values:
        return HarnessObservation(state=HarnessState.STARTING)
    return HarnessObservation(
        state=HarnessState.STARTING,
        code="HARNESS_RESTARTING",
        exit_code=code,
        restarts=restarts,
    )


def require_live(record: SandboxRecord) -> None:
    """Refuse a Sandbox that will never serve, at once and by its own code. Raises RevisionUnsupported, StillPending."""
    name = phase_name(record.phase)
    if name == "DELETING":
        raise StillPending("SANDBOX_DELETION_PENDING", "the Sandbox is being deleted")
    if name == "ERROR" and record.reason == _CONFINEMENT:
        raise RevisionUnsupported("SANDBOX_CONFINEMENT_UNAVAILABLE")
    if name in {"ERROR", "STOPPING", "STOPPED"}:
        raise DriverRefusal("SANDBOX_FAILED", Tempo.PERMANENT, f"the Sandbox is {name.lower()}")
    if name == "COMPLETED":
        raise DriverRefusal("HARNESS_EXITED", Tempo.PERMANENT)
