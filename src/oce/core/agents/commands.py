"""Commands on Agents: drafts, stop and deletion. A deploy is `revisions.commands.deploy`, offered here under the name users know."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

from oce.contracts.iam import AccessRequest
from oce.core import checks, idempotency, scope
from oce.core.agents import drafts, grants, rules
from oce.core.audit import record
from oce.core.errors import Conflict, NotFound
from oce.core.retry import takeover_of
from oce.core.revisions.commands import deploy
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import (
    Agent,
    AgentStatus,
    HarnessAuth,
    Identity,
    InitialWorkspace,
    RuntimeState,
)
from oce.store import (
    agents,
    iam,
    namespaces,
    revisions,
    workspace_setups,
)
from oce.store import work as works
from oce.store.errors import ConstraintViolated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.core.platform import Actor, Platform

__all__ = (
    "UNSET",
    "AgentChange",
    "AgentDraft",
    "Unset",
    "create",
    "delete",
    "deploy",
    "stop",
    "update",
)


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""A field that a change does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDraft:
    """What a caller creates. References are ids or names; `harness_auth.source_id` too."""

    name: str
    configuration: str
    execution_mode: Literal["embedded", "dedicated"] = "dedicated"
    harness_auth: HarnessAuth | None = None
    credential_sources: tuple[str, ...] = ()
    initial_files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name to text of the first workspace's files; private, and only ever given here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentChange:
    """Named fields are replaced, the others stay; `harness_auth=None` clears."""

    configuration: str
    execution_mode: Literal["embedded", "dedicated"] | Unset = UNSET
    harness_auth: HarnessAuth | Unset | None = UNSET
    credential_sources: tuple[str, ...] | Unset = UNSET


async def create(
    platform: Platform,
    actor: Actor,
    namespace: str,
    draft: AgentDraft,
    *,
    idempotency_key: str | None = None,
) -> Agent:
    """Create an Agent and its principal; starts nothing.

    Raises InvalidRequest, Forbidden (also for what the draft references), NotFound, Conflict (name, Namespace not open,
    WORKSPACE_SETUP_UNSUPPORTED).
    """
    owner = await scope.parent(platform, actor, namespace, action="create", kind="agent")
    checks.name(draft.name)
    scope.require_open(owner)
    async with platform.db.read() as reader:
        resolved = await drafts.resolve(
            reader, owner, draft.configuration, draft.harness_auth, draft.credential_sources
        )
    await drafts.require_references(platform, actor, owner, resolved, ())
    configuration = drafts.checked(draft.execution_mode, resolved)
    drafts.check_initial_files(platform, draft.execution_mode, draft.initial_files)
    agent = Agent(
        id=new_id(IdKind.AGENT),
        namespace_id=owner.id,
        name=draft.name,
        service_principal_id=new_id(IdKind.SERVICE_PRINCIPAL),
        configuration_id=configuration.id,
        execution_mode=draft.execution_mode,
        harness_auth=resolved.harness_auth,
        credential_sources=resolved.credential_sources,
        desired_runtime_state=RuntimeState.STOPPED,
        active_revision_id=None,
        status=AgentStatus.ACTIVE,
        generation=1,
        created_at=platform.clock.now(),
        initial_workspace=(
            InitialWorkspace(id=new_id(IdKind.WORKSPACE_SETUP)) if draft.initial_files else None
        ),
    )
    key = idempotency.use(
        actor,
        "createAgent",
        owner.id,
        idempotency_key,
        {
            "name": agent.name,
            "configuration": agent.configuration_id,
            "mode": agent.execution_mode,
            "auth": agents.auth_document(agent.harness_auth),
            "sources": list(agent.credential_sources),
            **({"files": dict(draft.initial_files)} if draft.initial_files else {}),
        },
    )
    earlier = await idempotency.earlier(platform, key)
    if earlier is None:
        try:
            async with platform.db.transact() as tx:
                scope.require_open(await namespaces.share(tx, owner.id))
                held = await drafts.hold(tx, platform, agent)
                earlier = await idempotency.claim(tx, key, agent.id)
                if earlier is None:
                    await iam.insert_identity(
                        tx,
                        Identity(
                            id=agent.service_principal_id,
                            kind="service_principal",
                            namespace_id=owner.id,
                            agent_id=agent.id,
                        ),
                    )
                    await agents.insert(tx, agent)
                    if agent.initial_workspace is not None:
                        await workspace_setups.insert(
                            tx, agent, agent.initial_workspace, draft.initial_files
                        )
                    followed = await grants.follow(tx, agent, drafts.wanted(agent, held))
                    await record.mutation(
                        tx,
                        platform,
                        actor,
                        "agents.create",
                        ("agent", agent.id),
                        owner.id,
                        details={
                            "servicePrincipalId": agent.service_principal_id,
                            "initialWorkspaceFiles": sorted(draft.initial_files),
                            **followed,
                        },
                    )
        except ConstraintViolated as error:
            raise Conflict("An Agent of this Namespace has this name.") from error
        if earlier is None:
            return agent
    async with platform.db.read() as reader:
        found = await agents.get(reader, owner.id, earlier)
    if found is None:
        raise idempotency.gone()
    return found


async def update(
    platform: Platform,
    actor: Actor,
    namespace: str,
    agent: str,
    change: AgentChange,
    *,
    expected_generation: int | None = None,
) -> Agent:
    """Change the draft; running revisions are untouched.

    Raises InvalidRequest, Forbidden, NotFound, PreconditionFailed, Conflict AGENT_DELETING.
    """
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="update"
    )
    _alive(found)
    auth = found.harness_auth if isinstance(change.harness_auth, Unset) else change.harness_auth
    sources = (
        found.credential_sources
        if isinstance(change.credential_sources, Unset)
        else change.credential_sources
    )
    mode = (
        found.execution_mode if isinstance(change.execution_mode, Unset) else change.execution_mode
    )
    async with platform.db.read() as reader:
        resolved = await drafts.resolve(reader, owner, change.configuration, auth, sources)
    await drafts.require_references(platform, actor, owner, resolved, rules.references(found, ()))
    configuration = drafts.checked(mode, resolved)
    checks.generation(found.generation, expected_generation)
    async with platform.db.transact() as tx:
        await namespaces.share(tx, owner.id)
        current = await agents.lock(tx, owner.id, found.id)
        if current is None:
            raise NotFound
        _alive(current)
        checks.generation(current.generation, found.generation)
        changed = replace(
            current,
            configuration_id=configuration.id,
            execution_mode=mode,
            harness_auth=resolved.harness_auth,
            credential_sources=resolved.credential_sources,
            generation=current.generation + 1,
        )
        held = await drafts.hold(tx, platform, changed)
        await agents.replace_draft(tx, changed)
        followed = await grants.follow(tx, changed, drafts.wanted(changed, held))
        await record.mutation(
            tx,
            platform,
            actor,
            "agents.update",
            ("agent", found.id),
            owner.id,
            details={"generation": changed.generation, **followed},
        )
    return changed


async def delete(
    platform: Platform,
    actor: Actor,
    namespace: str,
    agent: str,
    *,
    expected_generation: int | None = None,
) -> Agent:
    """Start tearing an Agent down; returns it as `deleting`.

    A repeat while the teardown is under way changes nothing; after a failed one it starts the next (ownership as for Namespaces).
    """
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="delete"
    )
    if found.status is AgentStatus.ACTIVE:
        checks.generation(found.generation, expected_generation)
    async with platform.db.read() as reader:
        previous = await works.newest_for_agent(reader, found.id, "deleted")
    takeover = await takeover_of(
        platform,
        actor,
        previous,
        AccessRequest(
            principal_id=actor.principal_id,
            action="delete",
            resource_kind="agent",
            resource_id=found.id,
            namespace_id=owner.id,
        ),
    )
    async with platform.db.transact() as tx:
        await namespaces.share(tx, owner.id)
        current = await agents.lock(tx, owner.id, found.id)
        if current is None:
            raise NotFound
        newest = await works.newest_for_agent(tx, found.id, "deleted")
        if current.status is AgentStatus.DELETING:
            if newest is not None and newest.state in ("queued", "claimed"):
                return current
        else:
            checks.generation(current.generation, found.generation)
            await agents.set_deleting(tx, found.id)
        await works.enqueue(
            tx,
            key=works.operation_key("agent", found.id, "delete"),
            namespace_id=owner.id,
            actor_id=actor.principal_id,
            agent_id=found.id,
            agent_target="deleted",
        )
        await record.mutation(
            tx,
            platform,
            actor,
            "agents.delete",
            ("agent", found.id),
            owner.id,
            details={"takeover": takeover},
        )
        changed = await agents.get(tx, owner.id, found.id)
    if changed is None:
        raise NotFound
    return changed


async def stop(platform: Platform, actor: Actor, namespace: str, agent: str) -> Agent:
    """Ask for the Agent to be stopped; repeating is safe, and a fully stopped Agent needs no work. Raises Conflict AGENT_DELETING."""
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="operate"
    )
    async with platform.db.transact() as tx:
        await namespaces.share(tx, owner.id)
        current = await agents.lock(tx, owner.id, found.id)
        if current is None:
            raise NotFound
        _alive(current)
        unfinished = await works.unfinished_for_agent(tx, found.id)
        if current.desired_runtime_state is RuntimeState.STOPPED:
            if any(one.agent_target == "stopped" for one in unfinished):
                return current
            if not unfinished and not await revisions.unretired(tx, owner.id, found.id):
                return current
        await agents.set_desired(tx, found.id, RuntimeState.STOPPED)
        await works.enqueue(
            tx,
            key=works.operation_key("agent", found.id, "stop"),
            namespace_id=owner.id,
            actor_id=actor.principal_id,
            agent_id=found.id,
            agent_target="stopped",
        )
        await record.mutation(tx, platform, actor, "agents.stop", ("agent", found.id), owner.id)
    return replace(current, desired_runtime_state=RuntimeState.STOPPED)


def _alive(agent: Agent) -> None:
    if agent.status is AgentStatus.DELETING:
        raise Conflict(code="AGENT_DELETING")
