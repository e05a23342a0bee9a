"""Stopping an Agent: take away its route and every Sandbox it may have; history, credentials and workspace stay.

The selected revision goes first, then whatever failed candidates or half-retired predecessors left. A later deploy ends the stop at the
next look (reference/worker-console.md §4.5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.domain.resources import RuntimeState
from oce.store import agents, namespaces, revisions
from oce.worker.outcomes import Instead, Permanent, Retry, Success
from oce.worker.passes.common import BasePass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.domain.resources import Agent, AgentRevision
    from oce.store.database import Tx
    from oce.store.queue import Claim
    from oce.worker.lease import StepRecorder
    from oce.worker.outcomes import Outcome

_SUPERSEDED = Success(reason="STOP_SUPERSEDED")


class StopAgent(BasePass):
    """Work with `agent_target` stopped."""

    async def run(self, claim: Claim, step: StepRecorder) -> Outcome:
        """Stop everything of the Agent, with proof."""
        async with self.workshop.platform.db.read() as reader:
            namespace = await namespaces.get(reader, claim.namespace_id)
            agent = await agents.get(reader, claim.namespace_id, claim.agent_id or "")
            live = await revisions.unretired(reader, claim.namespace_id, claim.agent_id or "")
        if namespace is None or agent is None:
            return Success(reason="AGENT_ALREADY_STOPPED")
        if agent.desired_runtime_state is not RuntimeState.STOPPED:
            return _SUPERSEDED
        refusal = await self.workshop.authority.agent(claim, agent, "stopped")
        if refusal is not None:
            return Permanent(code=refusal.code)
        if not all(self.is_ours(revision) for revision in live):
            return Permanent(code="COMPUTE_DRIVER_MISMATCH")
        context = self.context(namespace, agent, step)
        for revision in _active_first(agent, live):
            if not await self._begin(claim, revision):
                return _SUPERSEDED
            await step("stop")
            await self.retire(claim, revision, context)
        return self._stopped(claim, agent, live)

    def _stopped(self, claim: Claim, agent: Agent, live: Sequence[AgentRevision]) -> Outcome:
        """Clear the pointer if it still names what was stopped."""
        handled = {None, agent.active_revision_id, *(revision.id for revision in live)}

        async def apply(tx: Tx) -> None:
            await namespaces.lock(tx, agent.namespace_id)
            locked = await agents.lock(tx, agent.namespace_id, agent.id)
            if locked is None or locked.desired_runtime_state is not RuntimeState.STOPPED:
                raise Instead(_SUPERSEDED)
            if locked.active_revision_id not in handled:
                raise Instead(Retry(code="ACTIVE_REVISION_CHANGED"))
            await agents.swap_active_revision(
                tx, agent.id, expected=locked.active_revision_id, new=None
            )
            await self.audit(tx, claim, "openclaw.agents.lifecycle.stop", ("agent", agent.id))

        nothing = agent.active_revision_id is None and not live
        return Success(reason="AGENT_ALREADY_STOPPED" if nothing else "AGENT_STOPPED", apply=apply)

    async def _begin(self, claim: Claim, revision: AgentRevision) -> bool:
        """Unselect a revision just before it is removed, if the stop is still wanted.

        The pointer goes first: a stop that dies half-way and is followed by another deploy must not have its revision finished again by
        that revision's own deployment (design §9, invariant 9).
        """
        async with self.workshop.platform.db.transact() as tx:
            await self.workshop.queue.heartbeat(claim, tx=tx)
            await namespaces.lock(tx, revision.namespace_id)
            agent = await agents.lock(tx, revision.namespace_id, revision.agent_id)
            if agent is None or agent.desired_runtime_state is not RuntimeState.STOPPED:
                return False
            await agents.swap_active_revision(tx, agent.id, expected=revision.id, new=None)
        return True


def _active_first(agent: Agent, live: Sequence[AgentRevision]) -> list[AgentRevision]:
    return sorted(live, key=lambda one: (one.id != agent.active_revision_id, -one.revision))
