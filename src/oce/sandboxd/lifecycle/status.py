"""How a Sandbox's status and facts change at each turn of its life. Pure edits of a `SandboxStatus` and its record's facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oce.sandboxd.api.stubs import Proto, pb, timestamp
from oce.sandboxd.lifecycle.restarts import Ended, Restart

if TYPE_CHECKING:
    from oce.sandboxd.place import ExitStatus

RUNNING, STOPPED, DELETED = "running", "stopped", "deleted"


def set_ready(status: Proto, *, ready: bool, reason: str, message: str, now: float) -> None:
    """Set the `Ready` condition; its time moves only when the answer does."""
    wanted = "True" if ready else "False"
    for condition in status.conditions:
        if condition.type == "Ready":
            break
    else:
        condition = status.conditions.add(type="Ready")
    if condition.status != wanted:
        condition.transition_time.CopyFrom(timestamp(now))
    condition.status, condition.reason, condition.message = wanted, reason, message


def begin(status: Proto, facts: dict[str, Any], *, instance: str, now: float) -> None:
    """Begin a start: the instance is recorded before anything runs, so that a crash can be recognised."""
    facts["instance"] = instance
    facts["started"] = now
    facts.setdefault("provisioning_since", now)
    status.main_process_instance_id = instance
    status.ClearField("next_restart_time")


def become_ready(
    status: Proto, facts: dict[str, Any], *, revision: int, policy_hash: str, now: float
) -> None:
    """Confinement is confirmed and the egress generation is in force."""
    if status.phase != pb.SANDBOX_PHASE_READY:
        status.main_process_started_time.CopyFrom(timestamp(now))
    facts.pop("restart_at", None)
    facts.pop("provisioning_since", None)
    status.phase = pb.SANDBOX_PHASE_READY
    for field in ("exit_code", "restart_count", "next_restart_time"):
        status.ClearField(field)
    status.configuration_activated = True
    status.current_policy_version = revision
    admission = status.configuration_admission
    admission.instance_id = facts["instance"]
    admission.state = pb.CONFIGURATION_ADMISSION_STATE_ACCEPTED
    admission.policy_version = revision
    admission.policy_hash = policy_hash
    set_ready(status, ready=True, reason="DependenciesReady", message="", now=now)


def end(
    status: Proto,
    facts: dict[str, Any],
    *,
    verdict: Restart | Ended,
    exited: ExitStatus,
    now: float,
) -> None:
    """Record that the main process ended: down for good, or STARTING with exit code and count (b.2)."""
    if exited.code is None:
        status.ClearField("exit_code")
        message = "the main process ended and nobody saw how"
    else:
        status.exit_code = exited.code
        message = f"the main process ended with {exited.code}"
    reason = "MainProcessCompleted" if exited.code == 0 else "MainProcessFailed"
    if exited.code is None:
        reason = "ControlSupervisorExited"
    if isinstance(verdict, Restart):
        facts["streak"] = verdict.streak
        facts["restarts"] = facts.get("restarts", 0) + 1
        facts["restart_at"] = now + verdict.delay
        status.phase = pb.SANDBOX_PHASE_STARTING
        status.restart_count = facts["restarts"]
        status.next_restart_time.CopyFrom(timestamp(facts["restart_at"]))
    else:
        facts["ended"] = True
        status.phase = pb.SANDBOX_PHASE_COMPLETED if verdict.succeeded else pb.SANDBOX_PHASE_ERROR
    set_ready(status, ready=False, reason=reason, message=message, now=now)


def fail(status: Proto, facts: dict[str, Any], *, reason: str, message: str, now: float) -> None:
    """Record that it cannot be started; only a new wish changes that."""
    facts["ended"] = True
    status.phase = pb.SANDBOX_PHASE_ERROR
    set_ready(status, ready=False, reason=reason, message=message, now=now)


def stopped(status: Proto, facts: dict[str, Any], *, now: float) -> None:
    """Nothing of it is left running."""
    facts.pop("restart_at", None)
    status.phase = pb.SANDBOX_PHASE_STOPPED
    status.ClearField("next_restart_time")
    set_ready(status, ready=False, reason="ContainerStopped", message="", now=now)


def intend(status: Proto, facts: dict[str, Any], *, desired: str, phase: int, now: float) -> None:
    """Record a wish: it supersedes whatever is under way."""
    for key in ("ended", "restart_at", "streak", "restarts", "provisioning_since"):
        facts.pop(key, None)
    facts["desired"] = desired
    facts["intent"] += 1
    status.phase = phase
    for field in ("restart_count", "next_restart_time"):
        status.ClearField(field)
    if desired == RUNNING:
        status.ClearField("exit_code")
    if desired == DELETED:
        facts["deleted_at"] = now
    set_ready(status, ready=False, reason="DependenciesNotReady", message="", now=now)
