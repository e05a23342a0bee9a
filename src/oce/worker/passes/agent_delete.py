"""Deleting an Agent: retire every revision, remove its directories and token, then its rows through the one guarded function.

Deletion is admitted from every state and is never skipped by "nothing to do" (failure cases BR-08, BR-09). The Agent row goes last, so
that its cleanup obligation cannot be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.domain.resources import AgentStatus, RuntimeState
from oce.store import agents, namespaces, revisions
from oce.store.queue import ClaimLost
from oce.worker.outcomes import Instead, Permanent, Retry, Success
from oce.worker.passes.common import BasePass

if TYPE_CHECKING:
    from oce.store.database import Tx
    from oce.store.queue import Claim
    from oce.worker.lease import StepRecorder
    from oce.worker.outcomes import Outcome


class DeleteAgent(BasePass):
    """Work with `agent_target` deleted."""

    async def run(self, claim: Claim, step: StepRecorder) -> Outcome:
        """Tear the Agent down, with proof."""
        if claim.agent_id is None:
            return Permanent(code="INVALID_TARGET")
        async with self.workshop.platform.db.read() as reader:
            namespace = await namespaces.get(reader, claim.namespace_id)
            agent = await agents.get(reader, claim.namespace_id, claim.agent_id)
            live = await revisions.unretired(reader, claim.namespace_id, claim.agent_id)
        if namespace is None or agent is None:
            return Success(reason="SUPERSEDED_TARGET")
        stopped = agent.desired_runtime_state is RuntimeState.STOPPED
        if agent.status is not AgentStatus.DELETING or not stopped:
            return Permanent(code="INVALID_AGENT_STATE")
        refusal = await self.workshop.authority.agent(claim, agent, "deleted")
        if refusal is not None:
            return Permanent(code=refusal.code)
        if not all(self.is_ours(revision) for revision in live):
            return Permanent(code="COMPUTE_DRIVER_MISMATCH")
        context = self.context(namespace, agent, step)
        for revision in reversed(live):
            await step("retire")
            await self.retire(claim, revision, context)
        await self.workshop.compute.delete_agent(context)
        agent_id = agent.id

        async def apply(tx: Tx) -> None:
            done = await agents.finalize_deletion(
                tx,
                namespace_id=claim.namespace_id,
                agent_id=agent_id,
                work_key=claim.key,
                claim_token=claim.token,
            )
            if done is None:
                raise Instead(Retry(code="REVISION_FINALIZATION_INCOMPLETE"))
            if not done:
                raise ClaimLost(claim.key)
            await self.audit(tx, claim, "openclaw.agents.lifecycle.delete", ("agent", agent_id))

        return Success(reason="AGENT_DELETED", apply=apply)
