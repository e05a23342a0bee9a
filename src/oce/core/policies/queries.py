"""Queries on an Agent's network policy: draft, admitted and in force, and what the provider suggests. Why is in `explanations`.

The draft stands in one place, the Agent's Configuration. What was admitted stands in the revision, what was applied live since in its
own record, and what is in force is asked of the provider. Reads write nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from oce.contracts.iam import AccessRequest
from oce.contracts.refusals import ConfigurationRefused, Detail, DriverRefusal, NotVisible
from oce.contracts.sandbox import PolicyRecommendation, PolicySnapshot, RevisionContext
from oce.core import checks, scope
from oce.core.access import guard
from oce.core.configurations.queries import load
from oce.core.errors import Conflict, Dependency, NotFound, NotOffered
from oce.core.policies import rules
from oce.core.runtime.redaction import redact
from oce.domain.resources import RuntimeState
from oce.store import configurations, credential_sources, network_policies, revisions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oce.contracts.sandbox import PolicyObservation
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Agent, AgentRevision, Configuration, Json, Namespace
    from oce.store.network_policies import Application

RECOMMENDATIONS_MAX: Final = 100
_OBSERVE_SECONDS: Final = 5.0
_TEXT_MAX: Final = 200
_HOST_MAX: Final = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDraft:
    """The additions of the draft. `generation` is the Configuration's: the `If-Match` value of a change."""

    configuration_id: str
    generation: int
    additions: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInForce:
    """What holds for a revision by our records: as admitted with it, or as the newest confirmed live change left it."""

    revision_id: str
    snapshot: PolicySnapshot
    origin: Literal["admitted", "applied"]
    operation_id: str | None = None
    unconfirmed_operation_id: str | None = None
    """A live change that was sent and whose outcome is not known; repeat `apply` to learn it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePolicy:
    """What the provider says just now about the policy of `PolicyInForce`; `unobserved` says why nothing is known."""

    kind: Literal["observed", "unobserved"]
    observed_at: datetime
    observation: PolicyObservation | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPolicy:
    """Draft, in force, and live; `draft_applied` tells whether the draft's additions are the ones in force."""

    agent_id: str
    draft: PolicyDraft
    in_force: PolicyInForce | None
    draft_applied: bool | None
    live: LivePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendations:
    """What the provider suggests. Untrusted: text of a workload may be in it; nothing here was admitted or applied."""

    revision_id: str
    items: tuple[PolicyRecommendation, ...]


async def get(platform: Platform, actor: Actor, namespace: str, agent: str) -> AgentPolicy:
    """Return the whole picture (needs `agent:read`, `configuration:read`, and `agent_revision:read` when one is active).

    Raises Forbidden, NotFound, NotOffered, Dependency.
    """
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="read"
    )
    rules.admitting(platform)
    configuration = await draft_of(platform, actor, owner, found)
    revision = await active_revision(platform, actor, found)
    in_force = None if revision is None else await effective(platform, revision)
    additions = rules.additions_of(configuration.values)
    return AgentPolicy(
        agent_id=found.id,
        draft=PolicyDraft(
            configuration_id=configuration.id,
            generation=configuration.generation,
            additions=additions or [],
        ),
        in_force=in_force,
        draft_applied=None if in_force is None else _same(platform, additions, in_force.snapshot),
        live=await _observe(platform, owner, found, revision, in_force),
    )


async def recommendations(
    platform: Platform, actor: Actor, namespace: str, agent: str, limit: int
) -> Recommendations:
    """Return at most `limit` (1…100) suggestions of the provider (needs `agent:read` and `agent:operate`).

    Raises InvalidRequest, Forbidden, NotFound, NotOffered, Conflict (nothing runs), Dependency.
    """
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="read"
    )
    await guard.require(platform, actor, "operate", "agent", found.id, owner.id)
    if not 1 <= limit <= RECOMMENDATIONS_MAX:
        checks.refuse((Detail("/query/limit", "INVALID_VALUE", f"1 to {RECOMMENDATIONS_MAX}"),))
    sandbox = platform.drivers.sandbox
    reads = sandbox.recommendations if sandbox is not None else None
    if reads is None:
        raise NotOffered("The selected Sandbox Driver suggests no policies.")
    revision = require_running(found, await active_revision(platform, actor, found))
    try:
        async with asyncio.timeout(_OBSERVE_SECONDS):
            listed = await reads.read_policy_recommendations(
                context_of(platform, owner, revision), limit
            )
    except DriverRefusal:
        raise
    except Exception as error:
        raise Dependency("The suggestions could not be read.") from error
    return Recommendations(revision_id=revision.id, items=tuple(_harmless(listed[:limit])))


# -- Shared with the commands ------------------------------------------------------------------------------------------------


async def draft_of(
    platform: Platform, actor: Actor, owner: Namespace, agent: Agent
) -> Configuration:
    """Return the Agent's Configuration with its document. Raises Forbidden, Conflict, Dependency."""
    await guard.require(platform, actor, "read", "configuration", agent.configuration_id, owner.id)
    async with platform.db.read() as reader:
        record = await configurations.get(reader, owner.id, agent.configuration_id)
    if record is None:
        raise Conflict("The Agent's Configuration is gone.")
    return await load(platform, owner, record)


async def active_revision(platform: Platform, actor: Actor, agent: Agent) -> AgentRevision | None:
    """Return the published revision after requiring `agent_revision:read` on it, or None."""
    if agent.active_revision_id is None:
        return None
    await guard.require_all(
        platform,
        actor,
        [
            AccessRequest(
                principal_id=actor.principal_id,
                action="read",
                resource_kind="agent_revision",
                resource_id=agent.active_revision_id,
                namespace_id=agent.namespace_id,
            )
        ],
    )
    async with platform.db.read() as reader:
        found = await revisions.get(reader, agent.namespace_id, agent.id, agent.active_revision_id)
    if found is None:
        raise NotFound
    return found


def require_running(agent: Agent, revision: AgentRevision | None) -> AgentRevision:
    """Return the revision of a running Agent. Raises Conflict."""
    if revision is None:
        raise Conflict("No revision is active; deploy the Agent.")
    if agent.desired_runtime_state is not RuntimeState.RUNNING:
        raise Conflict("The Agent is stopped; a deploy takes the draft's policy with it.")
    return revision


async def effective(platform: Platform, revision: AgentRevision) -> PolicyInForce:
    """Return what holds for a revision: the newest confirmed change, else what was admitted."""
    async with platform.db.read() as reader:
        applied = await network_policies.newest(reader, revision.id, "confirmed")
        unknown = await network_policies.newest(reader, revision.id, "sent")
    unconfirmed = unknown.id if _later(unknown, applied) and unknown is not None else None
    if applied is not None:
        return PolicyInForce(
            revision_id=revision.id,
            snapshot=rules.snapshot_of(applied.snapshot),
            origin="applied",
            operation_id=applied.id,
            unconfirmed_operation_id=unconfirmed,
        )
    admitted = (
        rules.judge(platform, None, where=rules.IN_DOCUMENT)
        if revision.network_policy is None
        else rules.snapshot_of(revision.network_policy)
    )
    return PolicyInForce(
        revision_id=revision.id,
        snapshot=admitted,
        origin="admitted",
        unconfirmed_operation_id=unconfirmed,
    )


async def attached_layers(
    platform: Platform, owner: Namespace, source_ids: Sequence[str]
) -> dict[str, Json]:
    """Return the rules that credential sources of this Namespace add, by key."""
    async with platform.db.read() as reader:
        sources = await credential_sources.many(reader, owner.id, tuple(source_ids))
    return rules.layers_of(platform, sources)


def context_of(platform: Platform, owner: Namespace, revision: AgentRevision) -> RevisionContext:
    """Return the context of Driver calls outside a pass."""
    context = platform.drivers.compute.namespace_context(owner)
    return RevisionContext(namespace=context.namespace, objects=context.objects, revision=revision)


# -- Pure parts and observations ---------------------------------------------------------------------------------------------


def _later(one: Application | None, other: Application | None) -> bool:
    return one is not None and (other is None or one.requested_at > other.requested_at)


def _same(platform: Platform, additions: Json, in_force: PolicySnapshot) -> bool:
    """Tell whether a draft means the additions in force, in whatever spelling; one that cannot be admitted does not."""
    try:
        judged = rules.judge(
            platform, additions, where=rules.IN_DOCUMENT, defaults=in_force.defaults
        )
    except (ConfigurationRefused, DriverRefusal):
        return False
    return (judged.additions or []) == (in_force.additions or [])


async def _observe(
    platform: Platform,
    owner: Namespace,
    agent: Agent,
    revision: AgentRevision | None,
    in_force: PolicyInForce | None,
) -> LivePolicy:
    sandbox = platform.drivers.sandbox
    live = sandbox.live_policies if sandbox is not None else None
    reason = None
    if revision is None or in_force is None:
        reason = "UNDEPLOYED"
    elif agent.desired_runtime_state is not RuntimeState.RUNNING:
        reason = "STOPPED"
    elif live is None:
        reason = "UNSUPPORTED"
    else:
        try:
            async with asyncio.timeout(_OBSERVE_SECONDS):
                seen = await live.observe_network_policy(
                    context_of(platform, owner, revision), in_force.snapshot
                )
            return LivePolicy(kind="observed", observed_at=platform.clock.now(), observation=seen)
        except NotVisible:
            reason = "SANDBOX_MISSING"
        except DriverRefusal as refusal:
            reason = refusal.code
        except Exception:  # noqa: BLE001 - what cannot be read is said to be unknown, never a state
            reason = "UNREADABLE"
    return LivePolicy(kind="unobserved", observed_at=platform.clock.now(), reason=reason)


def _harmless(items: Sequence[PolicyRecommendation]) -> list[PolicyRecommendation]:
    """Return suggestions whose every text is redacted and cut, whatever the Driver did already."""

    def text(value: str, limit: int = _TEXT_MAX) -> str:
        return str(redact(value))[:limit]

    return [
        PolicyRecommendation(
            id=text(one.id, 128),
            state=text(one.state, 32),
            host=text(one.host, _HOST_MAX),
            port=one.port,
            binary=text(one.binary, 1024),
            reason=text(one.reason),
            observations=one.observations,
        )
        for one in items
    ]
