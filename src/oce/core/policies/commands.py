"""Commands on an Agent's network policy: change the draft, and put the draft in force on the running revision.

The draft's additions stand in the Agent's Configuration and nowhere else, so that `occ apply`, a deploy and these commands see one
text. A Configuration that several Agents share is changed as what it is, never through one of them.

`apply` replaces the additions of the revision that runs, under the defaults that were admitted with it. The operation is recorded
before it is sent, sent under compare-and-swap, and confirmed only when the provider shows exactly this policy loaded and active; a
lost answer leaves it `sent`, and repeating `apply` goes on with the same operation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from oce.contracts.refusals import ConfigurationRefused, Detail, DriverRefusal, NotVisible
from oce.contracts.sandbox import PolicyApplication
from oce.core import checks, idempotency, scope
from oce.core.access import guard
from oce.core.audit import record
from oce.core.configurations import commands as configuration_commands
from oce.core.configurations.schema import NETWORK_POLICY_KEY, value_problems
from oce.core.errors import Conflict, Dependency, NotFound, NotOffered
from oce.core.policies import rules
from oce.core.policies.queries import (
    PolicyDraft,
    active_revision,
    attached_layers,
    context_of,
    draft_of,
    effective,
    require_running,
)
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import AgentStatus
from oce.store import agents, configurations, namespaces, network_policies
from oce.store.network_policies import Application

if TYPE_CHECKING:
    from oce.contracts.sandbox import AppliesNetworkPolicy, PolicyObservation, RevisionContext
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Agent, AgentRevision, Configuration, Json, Namespace
    from oce.store.database import Tx
    from oce.store.idempotency import KeyUse
    from oce.store.network_policies import State

_WAIT_SECONDS: Final = 5.0
_FIRST_LOOK: Final = 0.02
_SLOWEST_LOOK: Final = 0.5
_IN_BODY: Final = "/additions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The outcome of an application. `pending`: accepted and not yet seen loaded and active; repeat to look again."""

    operation_id: str
    revision_id: str
    state: Literal["confirmed", "pending"]
    configuration_generation: int
    observation: PolicyObservation


async def set_additions(
    platform: Platform,
    actor: Actor,
    namespace: str,
    agent: str,
    additions: Json,
    *,
    expected_generation: int | None = None,
) -> PolicyDraft:
    """Replace the additions of the draft; what runs is untouched until `apply` or a deploy.

    Needs `agent:update`, and `configuration:read` and `configuration:update` on the Agent's Configuration. Raises ConfigurationRefused
    with pointers below `/additions`, Forbidden, NotFound, NotOffered, Conflict (the Configuration is shared; a reserved host),
    PreconditionFailed, Dependency.
    """
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="update"
    )
    _alive(found)
    configuration = await draft_of(platform, actor, owner, found)
    await guard.require(platform, actor, "update", "configuration", configuration.id, owner.id)
    checks.generation(configuration.generation, expected_generation)
    contribution = f"/{NETWORK_POLICY_KEY}"
    checks.refuse(
        Detail(one.path.removeprefix(contribution), one.code, one.note)
        for one in value_problems({NETWORK_POLICY_KEY: {"additions": additions}})
    )
    layers = await attached_layers(platform, owner, found.credential_sources)
    try:
        rules.require_composable(
            rules.judge(platform, additions, where=_IN_BODY), layers, where=_IN_BODY
        )
    except DriverRefusal as refusal:
        raise Conflict(f"{refusal.code}: {refusal}") from refusal
    await _require_sole_user(platform, found, configuration)
    changed = await configuration_commands.update(
        platform,
        actor,
        owner.id,
        configuration.id,
        configuration_commands.ConfigurationChange(
            values=rules.with_additions(configuration.values, additions)
        ),
        expected_generation=configuration.generation,
        details={"networkPolicyOfAgentId": found.id},
    )
    return PolicyDraft(
        configuration_id=changed.id,
        generation=changed.generation,
        additions=rules.additions_of(changed.values) or [],
    )


async def _require_sole_user(
    platform: Platform, agent: Agent, configuration: Configuration
) -> None:
    async with platform.db.read() as reader:
        users = await configurations.used_by(reader, configuration.id, 4)
    others = [one for one in users if one != agent.id]
    if others:
        raise Conflict(
            f"The Configuration {configuration.id} is shared with agent {', '.join(others[:3])}: change the Configuration for all of "
            "them, or give this Agent its own."
        )


async def apply(
    platform: Platform,
    actor: Actor,
    namespace: str,
    agent: str,
    *,
    expected_generation: int | None = None,
    idempotency_key: str | None = None,
) -> Applied:
    """Put the draft's additions in force on the running revision.

    Needs `agent:deploy` (it changes what was deployed), `agent:operate` (it changes what runs), `configuration:read` and
    `agent_revision:read`. `expected_generation` is the Configuration's. Raises ConfigurationRefused, Forbidden, NotFound, NotOffered,
    Conflict (nothing runs; changed meanwhile; the provider rejects it), PreconditionFailed, Dependency (the outcome is not known).
    """
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="deploy"
    )
    await guard.require(platform, actor, "operate", "agent", found.id, owner.id)
    live = _live(platform)
    _alive(found)
    key = idempotency.use(
        actor, "applyNetworkPolicy", owner.id, idempotency_key, {"agent": found.id}
    )
    configuration = await draft_of(platform, actor, owner, found)
    revision = require_running(found, await active_revision(platform, actor, found))
    earlier = await idempotency.earlier(platform, key)
    if earlier is None:
        checks.generation(configuration.generation, expected_generation)
        operation = await _begin(platform, actor, owner, found, revision, configuration, key)
    else:
        operation = await _again(platform, actor, owner, found, earlier)
        if operation.revision_id != revision.id:
            raise Conflict("The revision that this operation changed is not active any more.")
    context = context_of(platform, owner, revision)
    observation = await _send(platform, actor, owner, live, context, operation)
    confirmed = _in_force(observation)
    if confirmed and operation.state == "sent":
        await _finish(platform, actor, owner, operation, "confirmed")
    return Applied(
        operation_id=operation.id,
        revision_id=revision.id,
        state="confirmed" if confirmed else "pending",
        configuration_generation=operation.configuration_generation,
        observation=observation,
    )


def _live(platform: Platform) -> AppliesNetworkPolicy:
    sandbox = platform.drivers.sandbox
    found = sandbox.live_policies if sandbox is not None else None
    if found is None or not rules.admitting(platform).network_policy.live:
        raise NotOffered(
            "The selected Sandbox Driver cannot change a running policy; deploy instead."
        )
    return found


def _alive(agent: Agent) -> None:
    if agent.status is AgentStatus.DELETING:
        raise Conflict(code="AGENT_DELETING")


async def _begin(
    platform: Platform,
    actor: Actor,
    owner: Namespace,
    agent: Agent,
    revision: AgentRevision,
    configuration: Configuration,
    key: KeyUse | None,
) -> Application:
    """Record the operation that is about to be sent, or take up the one of unknown outcome that wants the same."""
    base = await effective(platform, revision)
    attached = tuple(one.source_id for one in revision.credential_sources)
    layers = await attached_layers(platform, owner, attached)
    try:
        snapshot = rules.judge(
            platform,
            rules.additions_of(configuration.values),
            where=rules.IN_DOCUMENT,
            defaults=base.snapshot.defaults or [],
        )
        rules.require_composable(snapshot, layers, where=rules.IN_DOCUMENT)
    except DriverRefusal as refusal:
        raise Conflict(f"{refusal.code}: {refusal}") from refusal
    document = asdict(snapshot)
    async with platform.db.transact() as tx:
        scope.require_ready(await namespaces.share(tx, owner.id))
        current = await agents.lock(tx, owner.id, agent.id)
        if current is None:
            raise NotFound
        _alive(current)
        if current.active_revision_id != revision.id:
            raise Conflict("Another revision became active meanwhile; apply again.")
        require_running(current, revision)
        unknown = await network_policies.newest(tx, revision.id, "sent")
        resumed = unknown is not None and unknown.snapshot == document
        operation = (
            unknown
            if resumed and unknown is not None
            else Application(
                id=new_id(IdKind.POLICY_OPERATION),
                agent_id=agent.id,
                revision_id=revision.id,
                actor_id=actor.principal_id,
                configuration_id=configuration.id,
                configuration_generation=configuration.generation,
                snapshot=document,
                state="sent",
                requested_at=platform.clock.now(),
            )
        )
        taken = await idempotency.claim(tx, key, operation.id)
        if taken is not None:
            raise Conflict("The same request is being carried out.")
        if not resumed:
            await network_policies.insert(tx, operation)
        await _note(tx, platform, actor, owner, operation, "apply", resumed=resumed)
    return operation


async def _again(
    platform: Platform, actor: Actor, owner: Namespace, agent: Agent, operation_id: str
) -> Application:
    async with platform.db.transact() as tx:
        found = await network_policies.get(tx, agent.id, operation_id)
        if found is None:
            raise idempotency.gone()
        if found.state in ("refused", "superseded"):
            raise Conflict("This operation was refused, or replaced by a later one.")
        await _note(tx, platform, actor, owner, found, "apply", resumed=True)
    return found


async def _send(
    platform: Platform,
    actor: Actor,
    owner: Namespace,
    live: AppliesNetworkPolicy,
    context: RevisionContext,
    operation: Application,
) -> PolicyObservation:
    """Send the operation unless its policy is in force already, and look until it is or the time is up."""
    snapshot = rules.snapshot_of(operation.snapshot)
    try:
        seen = await live.observe_network_policy(context, snapshot)
        if operation.state == "sent" and not _in_force(seen):
            seen = await live.apply_network_policy(
                context,
                PolicyApplication(
                    snapshot=snapshot,
                    expected_provider_version=seen.provider_version,
                    operation_id=operation.id,
                ),
            )
        pause, end = _FIRST_LOOK, platform.clock.monotonic() + _WAIT_SECONDS
        while _waits(seen) and platform.clock.monotonic() < end:
            await platform.clock.sleep(pause)
            pause = min(pause * 2, _SLOWEST_LOOK)
            seen = await live.observe_network_policy(context, snapshot)
    except ConfigurationRefused as error:
        await _refuse(platform, actor, owner, operation, "INVALID_REQUEST", error)
    except DriverRefusal as error:
        if error.code == "RECONCILIATION_PENDING":
            await _refuse(platform, actor, owner, operation, error.code, error)
        raise Dependency(_UNKNOWN) from error
    except NotVisible as error:
        raise Dependency(
            "The provider does not show the Sandbox; nothing is known of it."
        ) from error
    except Exception as error:
        raise Dependency(_UNKNOWN) from error
    if seen.load_state in ("failed", "superseded") and operation.state == "sent":
        await _refuse(platform, actor, owner, operation, "RESOURCE_CONFLICT", None)
    return seen


_UNKNOWN: Final = "It is not known whether the policy took effect; repeat it."


def _in_force(seen: PolicyObservation) -> bool:
    return seen.matches and seen.load_state == "loaded"


def _waits(seen: PolicyObservation) -> bool:
    return seen.matches and seen.load_state == "pending"


async def _refuse(
    platform: Platform,
    actor: Actor,
    owner: Namespace,
    operation: Application,
    code: str,
    error: Exception | None,
) -> NoReturn:
    await _finish(platform, actor, owner, operation, "refused", code)
    if isinstance(error, ConfigurationRefused):
        raise Conflict(
            "The provider rejects this change of a running Sandbox; deploy instead."
        ) from error
    if error is not None:
        raise Conflict("The Sandbox was changed meanwhile; look at it and apply again.") from error
    raise Conflict("The Sandbox did not load the policy; its predecessor stays in force.")


async def _finish(
    platform: Platform,
    actor: Actor,
    owner: Namespace,
    operation: Application,
    state: State,
    code: str | None = None,
) -> None:
    async with platform.db.transact() as tx:
        if await network_policies.finish(tx, operation.id, state):
            await _note(tx, platform, actor, owner, operation, "apply.finish", code=code)


async def _note(
    tx: Tx,
    platform: Platform,
    actor: Actor,
    owner: Namespace,
    operation: Application,
    verb: str,
    *,
    resumed: bool = False,
    code: str | None = None,
) -> None:
    await record.mutation(
        tx,
        platform,
        actor,
        f"agents.network_policy.{verb}",
        ("agent", operation.agent_id),
        owner.id,
        outcome="failure" if code else "success",
        reason_code=code,
        details={
            "operationId": operation.id,
            "revisionId": operation.revision_id,
            "configurationId": operation.configuration_id,
            "configurationGeneration": operation.configuration_generation,
            **({"resumed": True} if resumed else {}),
        },
    )
