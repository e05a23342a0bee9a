"""Deployment of a revision: prepare the candidate beside the serving revision, publish it, switch to it, retire what was before.

Until the pointer is set, the predecessor serves and a failed candidate is removed before its failure is published; after it, the pass
only goes forward, and a crash is finished by the next pass. A newer admitted revision or a stop ends the candidate (reference/
worker-console.md §4.2, §4.3; the candidate beside the predecessor is ours).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from oce.contracts.refusals import DriverRefusal
from oce.core.agents.rules import workspace_document
from oce.domain.failures import HELD_FAILURES
from oce.domain.resources import NamespaceStatus, RuntimeState, SourceState
from oce.store import agents, credential_sources, namespaces, revisions, workspace_setups
from oce.store.queue import REFUSED, ClaimLost
from oce.worker.classify import own_words, refused_stop_delay
from oce.worker.outcomes import Instead, Pending, Permanent, Retry, Success
from oce.worker.passes.common import BasePass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.contracts.compute import DeployContext
    from oce.contracts.sandbox import RuntimeFailure
    from oce.core.platform import Platform
    from oce.domain.resources import Agent, AgentRevision, CredentialSource, Json, Namespace
    from oce.domain.secret import SecretText
    from oce.store.database import Reader, Tx
    from oce.store.queue import Claim
    from oce.worker.lease import StepRecorder
    from oce.worker.outcomes import Outcome

_LOG = structlog.get_logger()
_FINISH_AGAIN = 30.0
"""Seconds before a selected revision whose attempts are spent is tried again."""
_FOREIGN = frozenset(("COMPUTE_DRIVER_MISMATCH", "INVALID_REVISION_OWNER", "INVALID_TARGET"))
"""Refusals after which there is nothing that this worker could remove."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Everything one pass read, in one snapshot."""

    namespace: Namespace
    agent: Agent
    revision: AgentRevision
    sources: Sequence[CredentialSource]
    newest: int
    unretired: Sequence[AgentRevision]
    workspace: SecretText | None

    @property
    def published(self) -> bool:
        """Whether this revision is the selected one."""
        return self.agent.active_revision_id == self.revision.id

    @property
    def retired(self) -> bool:
        """Whether everything of this revision was proved gone."""
        return all(one.id != self.revision.id for one in self.unretired)

    @property
    def predecessors(self) -> Sequence[AgentRevision]:
        """Earlier revisions that may still have something somewhere."""
        return [one for one in self.unretired if one.revision < self.revision.revision]


async def load(reader: Reader, claim: Claim) -> Deployment | None:
    """Return the deployment of a claim, or None when an owner is gone."""
    if claim.agent_id is None or claim.revision_id is None:
        return None
    namespace = await namespaces.get(reader, claim.namespace_id)
    agent = await agents.get(reader, claim.namespace_id, claim.agent_id)
    revision = await revisions.get(reader, claim.namespace_id, claim.agent_id, claim.revision_id)
    if namespace is None or agent is None or revision is None:
        return None
    ids = [source.source_id for source in revision.credential_sources]
    return Deployment(
        namespace=namespace,
        agent=agent,
        revision=revision,
        sources=await credential_sources.many(reader, namespace.id, ids),
        newest=await revisions.latest_number(reader, agent.id),
        unretired=await revisions.unretired(reader, namespace.id, agent.id),
        workspace=await _workspace(reader, revision),
    )


async def _workspace(reader: Reader, revision: AgentRevision) -> SecretText | None:
    if revision.workspace_setup_id is None:
        return None
    files = await workspace_setups.pending_files(reader, revision.agent_id)
    return workspace_document(revision, revision.workspace_setup_id, files)


def problem(found: Deployment, platform: Platform) -> str | None:
    """Return the code of the first thing that makes this revision undeployable here, or None. Pure."""
    revision, drivers = found.revision, platform.drivers
    versions = platform.settings.harness_versions
    admitted = (revision.compute_id, revision.compute_implementation)
    sandbox = drivers.sandbox.driver.id if drivers.sandbox is not None else None
    holds = {
        "NAMESPACE_NOT_READY": found.namespace.status is NamespaceStatus.READY,
        "INVALID_REVISION_OWNER": revision.service_principal_id == found.agent.service_principal_id,
        "HARNESS_DESCRIPTOR_MISMATCH": versions.get(revision.harness.id)
        == revision.harness.version,
        "COMPUTE_DRIVER_MISMATCH": admitted == (drivers.compute.id, drivers.compute.implementation),
        "SANDBOX_DRIVER_MISMATCH": revision.sandbox_driver_id == sandbox,
        "SECRET_BINDINGS_UNSUPPORTED": not revision.secret_bindings,
        "WORKSPACE_SETUP_UNSUPPORTED": revision.workspace_setup_id is None
        or (drivers.sandbox is not None and drivers.sandbox.workspace_setup is not None),
    }
    return next((code for code, true in holds.items() if not true), None) or _source_problem(
        found, platform
    )


def _source_problem(found: Deployment, platform: Platform) -> str | None:
    revision, gateway = found.revision, platform.drivers.credential_gateway
    auth = revision.harness_auth
    named = [source.source_id for source in revision.credential_sources]
    if auth is None or auth.method != "credential_source" or auth.source_id not in named:
        return "HARNESS_AUTH_REQUIRED"
    admitted = {source.credential_gateway_id for source in revision.credential_sources}
    if gateway is None or admitted != {gateway.id}:
        return "CREDENTIAL_GATEWAY_MISMATCH"
    ready = [
        source.id
        for source in found.sources
        if source.state is SourceState.READY and source.driver_id == gateway.id
    ]
    return None if ready == named else "CREDENTIAL_SOURCE_UNAVAILABLE"


def runtime_failure_data(failure: RuntimeFailure) -> Json:
    """Return the closed evidence of a failed model probe."""
    document: dict[str, Json] = {
        "component": failure.component,
        "check": failure.check,
        "checkedAt": failure.checked_at,
        "code": failure.code,
    }
    if failure.cause_kind is not None:
        document["cause"] = {"kind": failure.cause_kind}
        if failure.cause_detail is not None:
            document["cause"]["detail"] = failure.cause_detail
    return {"runtimeFailure": document}


class Deploy(BasePass):
    """Work `agent_revision:<rev>:reconcile`."""

    async def run(self, claim: Claim, step: StepRecorder) -> Outcome:
        """Do one pass of the deployment."""
        if claim.refusal is not None:
            return Permanent(code=claim.refusal, data=(claim.refusal_data or {}).get("result"))
        async with self.workshop.platform.db.read() as reader:
            found = await load(reader, claim)
        if found is None:
            return Permanent(code="INVALID_REVISION_OWNER")
        ended = _ended(found)
        if ended is not None:
            return await self._withdraw(claim, step, found, ended)
        code = problem(found, self.workshop.platform)
        if code is None:
            refusal = await self.workshop.authority.revision(claim, found.agent, found.revision)
            code = None if refusal is None else refusal.code
        if code is not None:
            return Permanent(code=code)
        return await self._converge(claim, step, found)

    async def _converge(self, claim: Claim, step: StepRecorder, found: Deployment) -> Outcome:
        """Prepare, select, switch, retire."""
        context = self.context(found.namespace, found.agent, step, found.sources, found.workspace)
        unready = await self._prepare(found, context)
        if unready is not None:
            return unready
        if not found.published:
            changed = await self._select(claim, found)
            if isinstance(changed, Success):
                return await self._withdraw(claim, step, found, changed)
            if changed is not None:
                return changed
        return await self._finish(claim, found, context)

    async def refused(self, claim: Claim, step: StepRecorder, outcome: Permanent) -> Outcome:
        """Remove the candidate before its failure is published, unless it is the selected revision or never began.

        What is selected is finished however often that fails: giving up would leave the predecessor behind for nobody to find. While the removal fails the refusal waits, durably and without a deadline: a refused candidate must not be forgotten.
        """
        if outcome.code in _FOREIGN or not step.started:
            return outcome
        began = time.monotonic()
        try:
            async with self.workshop.platform.db.read() as reader:
                found = await load(reader, claim)
            if found is None or not self.is_ours(found.revision):
                return outcome
            if found.published:
                return _again(outcome)
            if claim.refusal is None:
                await self.workshop.queue.refuse(claim, outcome.code, outcome.data)
            context = self.context(found.namespace, found.agent, step)
            await self.retire(claim, found.revision, context)
        except ClaimLost:
            raise
        except Exception as error:  # noqa: BLE001 - whatever keeps the candidate alive, its refusal has to wait
            _LOG.warning(
                "worker.refused-candidate-stop-failed",
                work_id=claim.key,
                revision_id=claim.revision_id,
                refusal=outcome.code,
                **own_words(error),
                exc_info=error,
            )
            stops = int((claim.refusal_data or {}).get("stops", 0)) + 1
            return Pending(
                code=REFUSED,
                refusal=outcome.code,
                refusal_data={"stops": stops, "result": outcome.data},
                delay=refused_stop_delay(claim.age, stops, time.monotonic() - began),
            )
        return outcome

    async def _prepare(self, found: Deployment, context: DeployContext) -> Outcome | None:
        """Return None when the candidate serves."""
        revision = found.revision
        readiness = await self.workshop.compute.prepare_revision(revision, context)
        if readiness.revision_id != revision.id:
            return Permanent(code="INVALID_DRIVER_OBSERVATION")
        failure = readiness.runtime_failure
        if failure is not None:
            code = HELD_FAILURES.get(failure.code)
            if code is None:
                return Permanent(code="INVALID_DRIVER_OBSERVATION")
            probe = code == "RUNTIME_MODEL_PROBE_FAILED"
            return Permanent(code=code, data=runtime_failure_data(failure) if probe else None)
        return None if readiness.ready else Pending(code=readiness.pending_code)

    async def _select(self, claim: Claim, found: Deployment) -> Outcome | None:
        """Compare-and-set the active revision under the live claim; return what forbids it."""
        agent = found.agent
        async with self.workshop.platform.db.transact() as tx:
            await self.workshop.queue.heartbeat(claim, tx=tx)
            await namespaces.lock(tx, found.namespace.id)
            locked = await agents.lock(tx, found.namespace.id, agent.id)
            if locked is None:
                return Permanent(code="INVALID_REVISION_OWNER")
            if locked.desired_runtime_state is not RuntimeState.RUNNING:
                return Success(reason="REVISION_STOPPED")
            if await revisions.latest_number(tx, agent.id) > found.revision.revision:
                return Success(reason="REVISION_SUPERSEDED")
            if not await agents.swap_active_revision(
                tx, agent.id, expected=agent.active_revision_id, new=found.revision.id
            ):
                return Retry(code="ACTIVE_REVISION_CHANGED")
        return None

    async def _finish(self, claim: Claim, found: Deployment, context: DeployContext) -> Outcome:
        """Switch the route and retire the predecessors; an unknown fault here is repeated until the switch is complete."""
        try:
            await self.workshop.compute.activate_revision(found.revision, context)
            for predecessor in found.predecessors:
                if self.is_ours(predecessor):
                    await context.step("retire-predecessor")
                    await self.retire(claim, predecessor, context)
        except (ClaimLost, DriverRefusal):
            raise
        except Exception as error:  # noqa: BLE001 - the pointer is set: whatever failed, finishing is what remains
            _LOG.warning("worker.finalization-fault", work_id=claim.key, exc_info=error)
            return Retry(code="REVISION_FINALIZATION_INCOMPLETE")
        reason = "REVISION_ALREADY_ACTIVE" if found.published else "REVISION_ACTIVATED"

        async def apply(tx: Tx) -> None:
            await namespaces.lock(tx, found.namespace.id)
            agent = await agents.lock(tx, found.namespace.id, found.agent.id)
            if agent is None or agent.active_revision_id != found.revision.id:
                raise Instead(Retry(code="ACTIVE_REVISION_CHANGED"))
            if found.workspace is not None:  # a Harness serves only where the marker is
                await workspace_setups.complete(tx, agent.id)
            action = "openclaw.agents.lifecycle.activate"
            await self.audit(tx, claim, action, ("agent_revision", found.revision.id))

        return Success(reason=reason, apply=apply)

    async def _withdraw(
        self, claim: Claim, step: StepRecorder, found: Deployment, outcome: Success
    ) -> Outcome:
        """End a candidate that nobody wants any more. The selected revision is left to the stop that follows in the lane."""
        if step.started and not found.published and self.is_ours(found.revision):
            context = self.context(found.namespace, found.agent, step)
            await self.retire(claim, found.revision, context)
        return outcome


def _again(outcome: Permanent) -> Outcome:
    """Return how the pass of a selected revision ends: only what trying again cannot change is a failure.

    A refused identity is one, and ends with its code once the attempts are spent (mission document 003).
    """
    if outcome.exhausted and outcome.code != "SANDBOX_GATEWAY_UNAUTHORIZED":
        return Pending(code="REVISION_FINALIZATION_INCOMPLETE", delay=_FINISH_AGAIN)
    return outcome


def _ended(found: Deployment) -> Success | None:
    """Return why nobody wants this revision any more, or None.

    The selected revision is finished whatever was admitted since, unless a stop has removed it meanwhile: what was proved gone never
    comes back through a late pass (design §9, invariant 9).
    """
    if found.agent.desired_runtime_state is not RuntimeState.RUNNING:
        return Success(reason="REVISION_STOPPED")
    superseded = found.newest > found.revision.revision
    if superseded and (found.retired or not found.published):
        return Success(reason="REVISION_SUPERSEDED")
    return Success(reason="REVISION_STOPPED") if found.retired else None
