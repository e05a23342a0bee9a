"""Commands on Agents: drafts, stop and deletion. A deploy is `revisions.commands.deploy`, offered here under the name users know."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

from oce.contracts.iam import AccessRequest
from oce.contracts.refusals import Detail
from oce.core import checks, idempotency, scope
from oce.core.access import guard
from oce.core.agents import grants, rules
from oce.core.audit import record
from oce.core.errors import Conflict, Dependency, NotFound
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
    SourceState,
)
from oce.store import (
    agents,
    configurations,
    credential_sources,
    iam,
    namespaces,
    revisions,
    secrets,
    workspace_setups,
)
from oce.store import work as works
from oce.store.errors import ConstraintViolated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Namespace
    from oce.store.configurations import ConfigurationRecord
    from oce.store.database import Reader, Tx

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolved:
    """References of a draft as ids; what does not exist keeps its text, and is refused after the permission was asked for."""

    configuration: ConfigurationRecord | None
    configuration_ref: str
    harness_auth: HarnessAuth | None
    credential_sources: tuple[str, ...]
    problems: tuple[Detail, ...]


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
        resolved = await _resolve(
            reader, owner, draft.configuration, draft.harness_auth, draft.credential_sources
        )
    await _require_references(platform, actor, owner, resolved, ())
    configuration = _checked(draft.execution_mode, resolved)
    _check_initial_files(platform, draft)
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
                held = await _hold(tx, platform, agent)
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
                    followed = await grants.follow(tx, agent, _wanted(agent, held))
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
        resolved = await _resolve(reader, owner, change.configuration, auth, sources)
    await _require_references(platform, actor, owner, resolved, rules.references(found, ()))
    configuration = _checked(mode, resolved)
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
        held = await _hold(tx, platform, changed)
        await agents.replace_draft(tx, changed)
        followed = await grants.follow(tx, changed, _wanted(changed, held))
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


def _check_initial_files(platform: Platform, draft: AgentDraft) -> None:
    """Refuse files that no selected Driver would ever bring into a workspace (mission document 003)."""
    if not draft.initial_files:
        return
    checks.refuse(rules.initial_file_problems(draft.initial_files))
    sandbox = platform.drivers.sandbox
    if draft.execution_mode != "dedicated" or sandbox is None or sandbox.workspace_setup is None:
        raise Conflict(code="WORKSPACE_SETUP_UNSUPPORTED")


def _alive(agent: Agent) -> None:
    if agent.status is AgentStatus.DELETING:
        raise Conflict(code="AGENT_DELETING")


async def _resolve(
    reader: Reader,
    owner: Namespace,
    configuration_ref: str,
    auth: HarnessAuth | None,
    sources: tuple[str, ...],
) -> _Resolved:
    problems: list[Detail] = []
    configuration = await scope.find_in(reader, scope.CONFIGURATIONS, owner.id, configuration_ref)
    if configuration is None:
        problems.append(Detail("/configurationId", "INVALID_VALUE", "no such Configuration here"))
    ids: list[str] = []
    for index, ref in enumerate(sources):
        source = await scope.find_in(reader, scope.SOURCES, owner.id, ref)
        if source is None:
            problems.append(
                Detail(f"/credentialSources/{index}", "INVALID_VALUE", "no such source here")
            )
        ids.append(source.id if source else ref)
    if auth is not None and auth.source_id is not None:
        by_source = auth.method == rules.SOURCE_METHOD
        named = (
            await scope.find_in(reader, scope.SOURCES, owner.id, auth.source_id)
            if by_source
            else await scope.find_in(reader, scope.SECRETS, owner.id, auth.source_id)
        )
        if named is None:
            problems.append(
                Detail(
                    "/harnessAuth/sourceId" if by_source else "/harnessAuth/source",
                    "INVALID_VALUE",
                    "no such source here" if by_source else "no such Secret here",
                )
            )
        else:
            auth = replace(auth, source_id=named.id)
    return _Resolved(
        configuration=configuration,
        configuration_ref=configuration_ref,
        harness_auth=auth,
        credential_sources=tuple(ids),
        problems=tuple(problems),
    )


def _checked(mode: str, resolved: _Resolved) -> ConfigurationRecord:
    checks.refuse(resolved.problems)
    checks.refuse(rules.draft_problems(mode, resolved.harness_auth, resolved.credential_sources))
    if resolved.configuration is None:
        raise NotFound
    return resolved.configuration


async def _require_references(
    platform: Platform,
    actor: Actor,
    owner: Namespace,
    resolved: _Resolved,
    current: Iterable[tuple[str, str]],
) -> None:
    """Require `configuration:read`, and `operate` on everything the draft names or named (reference/control-plane.md §4.4)."""
    configuration = resolved.configuration
    wanted = set(current)
    wanted |= {("credential_source", source_id) for source_id in resolved.credential_sources}
    if configuration is not None:
        wanted |= {("secret", secret_id) for secret_id in configuration.secret_bindings.values()}
    auth = resolved.harness_auth
    if auth is not None and auth.source_id is not None:
        by_source = auth.method == rules.SOURCE_METHOD
        wanted.add(("credential_source" if by_source else "secret", auth.source_id))

    def ask(action: str, kind: str, resource_id: str) -> AccessRequest:
        return AccessRequest(
            principal_id=actor.principal_id,
            action=action,
            resource_kind=kind,
            resource_id=resource_id,
            namespace_id=owner.id,
        )

    configuration_id = configuration.id if configuration else resolved.configuration_ref
    await guard.require_all(
        platform,
        actor,
        [
            ask("read", "configuration", configuration_id),
            *(ask("operate", kind, resource_id) for kind, resource_id in sorted(wanted)),
        ],
    )


def _wanted(agent: Agent, held: ConfigurationRecord) -> frozenset[tuple[str, str]]:
    return rules.references(agent, tuple(held.secret_bindings.values()))


async def _hold(tx: Tx, platform: Platform, agent: Agent) -> ConfigurationRecord:
    """Keep what the draft names from being deleted, and refuse what cannot be named any more."""
    configuration = await configurations.hold(tx, agent.namespace_id, agent.configuration_id)
    if configuration is None or configuration.state == "deleting":
        raise Conflict("The Configuration is being deleted.")
    gateway = platform.drivers.credential_gateway
    for kind, resource_id in sorted(_wanted(agent, configuration)):
        if kind == "secret":
            secret = await secrets.hold(tx, agent.namespace_id, resource_id)
            if secret is None or secret.state != "ready":
                raise Conflict(f"The Secret {resource_id} is not usable.")
            continue
        source = await credential_sources.hold(tx, agent.namespace_id, resource_id)
        if source is None or source.state is not SourceState.READY:
            raise Conflict(f"The credential source {resource_id} is not ready.")
        if gateway is None:
            raise Conflict(code="CREDENTIAL_GATEWAY_NOT_CONFIGURED")
        if source.driver_id != gateway.id:
            raise Dependency(
                "The source is registered with another Credential Gateway. Select it again in the startup YAML."
            )
    return configuration
