"""Deploy: judge the draft, freeze it as a revision, queue its reconciliation (reference/control-plane.md §6.6).

Everything that can be judged without touching infrastructure is judged here, so that a person hears it at once. Nothing is started:
that is the worker's, under the same actor's authority, asked again. Capability refusals come before the question about the Agent's own
principal, because a grant cannot make an unsupported topology work.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oce.contracts.iam import AccessRequest
from oce.contracts.refusals import ConfigurationRefused, Detail, DriverRefusal
from oce.core import checks, idempotency, scope
from oce.core.access import guard
from oce.core.access.errors import AgentPrincipalForbidden
from oce.core.audit import record
from oce.core.configurations.queries import load
from oce.core.configurations.schema import harness_of, stamp_logging, value_problems
from oce.core.errors import Conflict, Dependency, InvalidRequest, NotFound, PreconditionFailed
from oce.core.policies.rules import admit as admit_policy
from oce.core.revisions.rules import endpoint_matches
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import (
    AgentRevision,
    AgentStatus,
    Harness,
    RevisionSource,
    RuntimeState,
    SourceState,
)
from oce.store import agents, configurations, credential_sources, namespaces, revisions, work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Agent, Configuration, CredentialSource, Json, Namespace
    from oce.store.configurations import ConfigurationRecord
    from oce.store.database import Tx
    from oce.store.idempotency import KeyUse


@dataclass(frozen=True, slots=True, kw_only=True)
class _Admitted:
    """A judged draft: all that the revision freezes."""

    harness: Harness
    values: Json
    network_policy: Json | None
    sources: tuple[CredentialSource, ...]
    configuration: Configuration


async def deploy(
    platform: Platform,
    actor: Actor,
    namespace: str,
    agent: str,
    *,
    idempotency_key: str | None = None,
    expected_generation: int | None = None,
) -> AgentRevision:
    """Admit a revision of the draft and queue its reconciliation; the revision's id is the deployment's.

    Raises InvalidRequest or ConfigurationRefused (the document), Forbidden, NotFound, PreconditionFailed, Conflict
    (AGENT_DELETING, NAMESPACE_NOT_READY, SECRET_BINDINGS_UNSUPPORTED, stopping, topology, missing credential), Dependency, StorageFull.
    """
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="deploy"
    )
    key = idempotency.use(actor, "deployAgent", owner.id, idempotency_key, {"agent": found.id})
    earlier = await idempotency.earlier(platform, key)
    if earlier is not None:
        return await _replayed(platform, found, earlier)
    _deployable(found)
    checks.generation(found.generation, expected_generation)
    scope.require_ready(owner)
    async with platform.db.read() as reader:
        configuration = await configurations.get(reader, owner.id, found.configuration_id)
        sources = await credential_sources.many(reader, owner.id, found.credential_sources)
    if configuration is None:
        raise Conflict("The Agent's Configuration is gone.")
    await _require_actor(platform, actor, found, configuration)
    admitted = await _judge(platform, owner, found, configuration, tuple(sources))
    await _require_principal(platform, actor, found)
    return await _freeze(platform, actor, owner, found, admitted, key)


async def _replayed(platform: Platform, agent: Agent, revision_id: str) -> AgentRevision:
    async with platform.db.read() as reader:
        found = await revisions.get(reader, agent.namespace_id, agent.id, revision_id)
    if found is None:
        raise idempotency.gone()
    return found


def _deployable(agent: Agent) -> None:
    if agent.status is AgentStatus.DELETING:
        raise Conflict(code="AGENT_DELETING")
    if agent.desired_runtime_state is RuntimeState.STOPPED and agent.active_revision_id is not None:
        raise Conflict("The Agent is being stopped; deploy it when that is finished.")


async def _require_actor(
    platform: Platform, actor: Actor, agent: Agent, configuration: ConfigurationRecord
) -> None:
    await guard.require_all(
        platform,
        actor,
        [
            AccessRequest(
                principal_id=actor.principal_id,
                action="read",
                resource_kind="configuration",
                resource_id=configuration.id,
                namespace_id=agent.namespace_id,
            ),
            *operate_requests(
                actor.principal_id, agent, tuple(configuration.secret_bindings.values())
            ),
        ],
    )


def operate_requests(
    principal_id: str, agent: Agent, bound_secrets: Sequence[str]
) -> list[AccessRequest]:
    """Return the `operate` questions that a draft raises for a principal."""
    auth = agent.harness_auth
    wanted = {("credential_source", source_id) for source_id in agent.credential_sources}
    wanted |= {("secret", secret_id) for secret_id in bound_secrets}
    if auth is not None and auth.source_id is not None and auth.method != "credential_source":
        wanted.add(("secret", auth.source_id))
    return [
        AccessRequest(
            principal_id=principal_id,
            action="operate",
            resource_kind=kind,
            resource_id=resource_id,
            namespace_id=agent.namespace_id,
        )
        for kind, resource_id in sorted(wanted)
    ]


async def _require_principal(platform: Platform, actor: Actor, agent: Agent) -> None:
    requests = operate_requests(agent.service_principal_id, agent, ())
    if not requests:
        return
    decisions = await platform.drivers.iam.authorize_many(requests)
    for request, decision in zip(requests, decisions, strict=True):
        if decision.allowed:
            continue
        await guard.record_denial(
            platform, actor, request, decision, reason_code="AGENT_PRINCIPAL_NOT_AUTHORIZED"
        )
        raise AgentPrincipalForbidden(
            agent.service_principal_id,
            request.action,
            request.resource_kind,
            request.resource_id or "",
        )


async def _judge(
    platform: Platform,
    owner: Namespace,
    agent: Agent,
    record_: ConfigurationRecord,
    sources: tuple[CredentialSource, ...],
) -> _Admitted:
    if record_.secret_bindings:
        raise Conflict(code="SECRET_BINDINGS_UNSUPPORTED")
    configuration = await load(platform, owner, record_)
    problems = value_problems(configuration.values)
    checks.refuse(Detail(f"/values{one.path}", one.code, one.note) for one in problems)
    harness = _harness(platform, agent, configuration)
    try:
        platform.drivers.compute.admit(agent, agent.execution_mode, harness.id)
        _check_sources(platform, agent, sources)
        _check_endpoint(agent, configuration, sources)
        values = _configured(platform, configuration, harness)
        _check_workspace(platform, agent, harness, values)
        policy = admit_policy(platform, values, sources)
    except DriverRefusal as refusal:
        raise Conflict(f"{refusal.code}: {refusal}") from refusal
    return _Admitted(
        harness=harness,
        values=stamp_logging(values),
        network_policy=policy,
        sources=sources,
        configuration=configuration,
    )


def _harness(platform: Platform, agent: Agent, configuration: Configuration) -> Harness:
    chosen = harness_of(configuration.values)
    if chosen is None:
        raise InvalidRequest(
            "The Configuration names no model, so no Harness can be chosen.",
            details=(Detail("/values/agents/defaults/model/primary", "REQUIRED"),),
        )
    version = platform.settings.harness_versions.get(chosen)
    if version is None or chosen not in ("codex", "openclaw"):
        raise Conflict(f"This installation does not run the Harness {chosen}.")
    return Harness(
        id="codex" if chosen == "codex" else "openclaw", version=version, mode=agent.execution_mode
    )


def _check_sources(platform: Platform, agent: Agent, sources: Sequence[CredentialSource]) -> None:
    gateway = platform.drivers.credential_gateway
    auth = agent.harness_auth
    if auth is None:
        raise Conflict("The Agent has no model credential: set harnessAuth.")
    if gateway is None:
        raise Conflict(code="CREDENTIAL_GATEWAY_NOT_CONFIGURED")
    if auth.method != "credential_source":
        raise Conflict(
            f"harnessAuth {auth.method} cannot be used beside a Credential Gateway; register a credential source."
        )
    known = {one.id: one for one in sources}
    for source_id in agent.credential_sources:
        source = known.get(source_id)
        if source is None or source.state is not SourceState.READY:
            raise Conflict(f"The credential source {source_id} is not ready.")
        if source.driver_id != gateway.id:
            raise Dependency(
                "A source is registered with another Credential Gateway. Select it again in the startup YAML."
            )
    types = {one.id: one for one in gateway.source_types()}
    model = known.get(auth.source_id or "")
    if model is None or model.type not in types or types[model.type].harness_login_mode is None:
        raise Conflict("The credential source of harnessAuth is not one for a model.")


def _check_endpoint(
    agent: Agent, configuration: Configuration, sources: Sequence[CredentialSource]
) -> None:
    auth = agent.harness_auth
    model = next((one for one in sources if auth is not None and one.id == auth.source_id), None)
    if model is not None and not endpoint_matches(configuration.values, model):
        raise InvalidRequest(
            "The Configuration's baseUrl is not the endpoint that the credential source is bound to.",
            details=(Detail("/values/models/providers/openai/baseUrl", "INVALID_VALUE"),),
        )


def _configured(platform: Platform, configuration: Configuration, harness: Harness) -> Json:
    sandbox = platform.drivers.sandbox
    configures = sandbox.configures if sandbox is not None else None
    if configures is None:
        return configuration.values
    try:
        values = configures.configure_agent(copy.deepcopy(configuration.values), harness)
    except ConfigurationRefused as error:
        raise ConfigurationRefused(
            *(Detail(f"/values{one.path}", one.code, one.note) for one in error.details)
        ) from error
    if harness_of(values) != harness.id:
        raise Dependency("The Sandbox Driver changed the selected Harness.")
    return values


def _check_workspace(platform: Platform, agent: Agent, harness: Harness, values: Json) -> None:
    """Let the Sandbox Driver judge whether initial files can land in this document's workspace. Raises WorkspaceSetupRefused."""
    if agent.initial_workspace is None:
        return
    sandbox = platform.drivers.sandbox
    if sandbox is None or sandbox.workspace_setup is None:
        raise Conflict(code="WORKSPACE_SETUP_UNSUPPORTED")
    sandbox.workspace_setup.validate_workspace_setup(harness, copy.deepcopy(values))


async def _freeze(
    platform: Platform,
    actor: Actor,
    owner: Namespace,
    seen: Agent,
    admitted: _Admitted,
    key: KeyUse | None,
) -> AgentRevision:
    revision_id = new_id(IdKind.REVISION)
    async with platform.db.transact() as tx:
        scope.require_ready(await namespaces.share(tx, owner.id))
        current = await agents.lock(tx, owner.id, seen.id)
        await _recheck(tx, seen, current, admitted)
        earlier = await idempotency.claim(tx, key, revision_id)
        if earlier is None:
            revision = _revision(
                platform, revision_id, seen, admitted, await revisions.next_number(tx, seen.id)
            )
            await revisions.insert(tx, revision)
            await agents.set_desired(tx, seen.id, RuntimeState.RUNNING)
            await work.enqueue(
                tx,
                key=work.reconcile_key(revision.id),
                namespace_id=owner.id,
                actor_id=actor.principal_id,
                agent_id=seen.id,
                revision_id=revision.id,
            )
            await record.mutation(
                tx,
                platform,
                actor,
                "agents.deploy",
                ("agent", seen.id),
                owner.id,
                details={"revisionId": revision.id, "revision": revision.revision},
            )
            return revision
    return await _replayed(platform, seen, earlier)


async def _recheck(tx: Tx, seen: Agent, current: Agent | None, admitted: _Admitted) -> None:
    """Refuse when anything that was judged has changed since."""
    if current is None:
        raise NotFound
    _deployable(current)
    if any(
        one.agent_target == "stopped" for one in await work.unfinished_for_agent(tx, current.id)
    ):
        raise Conflict("The Agent is being stopped; deploy it when that is finished.")
    if current.generation != seen.generation:
        raise PreconditionFailed("The Agent's draft was changed meanwhile.")
    held = await configurations.hold(tx, seen.namespace_id, seen.configuration_id)
    if held is None or held.generation != admitted.configuration.generation:
        raise PreconditionFailed("The Configuration was changed meanwhile.")
    for source in admitted.sources:
        kept = await credential_sources.hold(tx, seen.namespace_id, source.id)
        if kept is None or kept.state is not SourceState.READY:
            raise Conflict(f"The credential source {source.id} is not ready.")


def _revision(
    platform: Platform, revision_id: str, agent: Agent, admitted: _Admitted, number: int
) -> AgentRevision:
    sandbox = platform.drivers.sandbox
    configures = sandbox.configures if sandbox is not None else None
    return AgentRevision(
        id=revision_id,
        namespace_id=agent.namespace_id,
        agent_id=agent.id,
        revision=number,
        configuration_id=admitted.configuration.id,
        configuration_generation=admitted.configuration.generation,
        configuration=admitted.values,
        harness=admitted.harness,
        compute_id=platform.drivers.compute.id,
        compute_implementation=platform.drivers.compute.implementation,
        sandbox_driver_id=sandbox.driver.id if sandbox is not None else None,
        harness_auth=agent.harness_auth,
        credential_sources=tuple(
            RevisionSource(
                source_id=one.id, credential_gateway_id=one.driver_id, source_type=one.type
            )
            for one in admitted.sources
        ),
        secret_bindings={},
        service_principal_id=agent.service_principal_id,
        network_policy=admitted.network_policy,
        render_version=configures.render_version if configures is not None else 0,
        created_at=platform.clock.now(),
        workspace_setup_id=(
            None if agent.initial_workspace is None else agent.initial_workspace.id
        ),
        compute_render_version=platform.drivers.compute.render_version,
    )
