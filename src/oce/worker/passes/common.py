"""What every pass receives, and the few moves that several passes share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from oce.contracts.compute import DeployContext
from oce.core.access import queries as access
from oce.core.audit import rules as audit_rules
from oce.store import audit, revisions
from oce.worker.outcomes import Permanent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.contracts.compute import ComputeDriver
    from oce.core.access.queries import Refusal
    from oce.core.platform import Platform
    from oce.domain.resources import Agent, AgentRevision, CredentialSource, Namespace
    from oce.domain.secret import SecretText
    from oce.store.database import Tx
    from oce.store.queue import Claim, WorkQueue
    from oce.worker.lease import StepRecorder
    from oce.worker.outcomes import Outcome


class Authority(Protocol):
    """Re-authorises the original actor from the policy in force now; denials are audited by it."""

    async def namespace(
        self, claim: Claim, namespace: Namespace, target: Literal["ready", "deleted"]
    ) -> Refusal | None:
        """Check Namespace work."""

    async def agent(
        self, claim: Claim, agent: Agent, target: Literal["stopped", "deleted"]
    ) -> Refusal | None:
        """Check a stop or a deletion."""

    async def revision(self, claim: Claim, agent: Agent, revision: AgentRevision) -> Refusal | None:
        """Check a deployment: its actor and the Agent's own principal."""


class CoreAuthority:
    """The authority of `core.access`."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    async def namespace(
        self, claim: Claim, namespace: Namespace, target: Literal["ready", "deleted"]
    ) -> Refusal | None:
        """Check Namespace work."""
        return await access.reauthorize_namespace(
            self._platform, actor_id=claim.actor_id, namespace=namespace, target=target
        )

    async def agent(
        self, claim: Claim, agent: Agent, target: Literal["stopped", "deleted"]
    ) -> Refusal | None:
        """Check a stop or a deletion."""
        return await access.reauthorize_agent(
            self._platform, actor_id=claim.actor_id, agent=agent, target=target
        )

    async def revision(self, claim: Claim, agent: Agent, revision: AgentRevision) -> Refusal | None:
        """Check a deployment."""
        return await access.reauthorize_revision(
            self._platform, actor_id=claim.actor_id, agent=agent, revision=revision
        )


@dataclass(frozen=True, slots=True)
class Workshop:
    """The composed platform, the queue and who re-authorises."""

    platform: Platform
    queue: WorkQueue
    authority: Authority = field(kw_only=True)

    @property
    def compute(self) -> ComputeDriver:
        """The selected Compute."""
        return self.platform.drivers.compute


class BasePass:
    """A pass that has nothing to clean up when it fails for good."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop

    async def refused(self, claim: Claim, step: StepRecorder, outcome: Permanent) -> Outcome:  # noqa: ARG002 # the signature of every pass
        """Publish the failure as it is."""
        return outcome

    def context(
        self,
        namespace: Namespace,
        agent: Agent,
        step: StepRecorder,
        sources: Sequence[CredentialSource] = (),
        workspace: SecretText | None = None,
    ) -> DeployContext:
        """Return what Compute gets."""
        return DeployContext(
            namespace=namespace, agent=agent, sources=sources, step=step, workspace=workspace
        )

    async def retire(self, claim: Claim, revision: AgentRevision, context: DeployContext) -> None:
        """Remove everything of a revision and record the proof under the live claim."""
        await self.workshop.compute.retire_revision(revision, context)
        await self.mark_retired(claim, revision)

    async def mark_retired(self, claim: Claim, revision: AgentRevision) -> None:
        """Record that nothing of a revision is left."""
        async with self.workshop.platform.db.transact() as tx:
            await self.workshop.queue.heartbeat(claim, tx=tx)
            await revisions.mark_retired(tx, revision.id)

    def is_ours(self, revision: AgentRevision) -> bool:
        """Tell whether the selected Compute is the one that the revision was admitted for."""
        compute = self.workshop.compute
        admitted = (revision.compute_id, revision.compute_implementation)
        return admitted == (compute.id, compute.implementation)

    async def audit(
        self,
        tx: Tx,
        claim: Claim,
        action: str,
        resource: tuple[str, str],
        reason_code: str | None = None,
    ) -> None:
        """Record a lifecycle change in its transaction."""
        platform = self.workshop.platform
        await audit.append(
            tx,
            audit_rules.event(
                installation_id=platform.installation_id,
                at=platform.clock.now(),
                actor_id=claim.actor_id,
                action=action,
                resource=resource,
                namespace_id=claim.namespace_id,
                reason_code=reason_code,
                details={"workId": claim.key},
            ),
        )


class Unsupported(BasePass):
    """Work of a kind that this release does not do."""

    async def run(self, claim: Claim, step: StepRecorder) -> Outcome:  # noqa: ARG002 # the signature of every pass
        """Refuse by code."""
        return Permanent(code="INVALID_TARGET")
