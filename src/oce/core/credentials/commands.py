"""Commands on credential sources, in the careful order of reference/control-plane.md §5.5.

The record is committed before the gateway hears of the source, so that a crash leaves a trace. A clean refusal removes both; an
unknown outcome keeps the record as `deleting`, which means "clean me up". Ours: the wait for a late effect applies only when an
answer was really missing, so that deleting a source just after a successful creation is immediate.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oce.contracts.iam import AccessRequest
from oce.contracts.refusals import ConfigurationRefused, Detail
from oce.core import checks, idempotency, scope
from oce.core.access import guard
from oce.core.audit import record
from oce.core.credentials import rules
from oce.core.errors import Conflict, Dependency, NotFound
from oce.core.secrets.commands import require_own_driver
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import CredentialSource, SourceState
from oce.store import credential_sources, iam, namespaces, secrets
from oce.store.errors import ConstraintViolated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.contracts.credential_gateway import CredentialGatewayDriver, SourceStatus
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Namespace, Secret
    from oce.domain.secret import SecretText
    from oce.store.database import Tx

_FOREIGN_GATEWAY = "The source is registered with another Credential Gateway. Select that gateway again in the startup YAML."


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDraft:
    """What a caller registers; `secrets` maps a field of the type to a Secret id or name."""

    name: str
    type: str
    config: Mapping[str, str]
    secrets: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SourceView:
    """OCC's record and the gateway's live view; None when the gateway could not be asked just now."""

    source: CredentialSource
    status: SourceStatus | None


def gateway_of(platform: Platform) -> CredentialGatewayDriver:
    """Return the selected gateway. Raises Conflict CREDENTIAL_GATEWAY_NOT_CONFIGURED."""
    gateway = platform.drivers.credential_gateway
    if gateway is None:
        raise Conflict(code="CREDENTIAL_GATEWAY_NOT_CONFIGURED")
    return gateway


def _own(platform: Platform, source: CredentialSource) -> CredentialGatewayDriver:
    gateway = gateway_of(platform)
    if source.driver_id != gateway.id:
        raise Dependency(_FOREIGN_GATEWAY)
    return gateway


async def create(
    platform: Platform,
    actor: Actor,
    namespace: str,
    draft: SourceDraft,
    *,
    idempotency_key: str | None = None,
) -> SourceView:
    """Register a source with the Credential Gateway.

    Raises InvalidRequest, Forbidden (also `secret:operate` on each Secret), NotFound, Conflict, Dependency (the record stays
    `deleting`).
    """
    owner = await scope.parent(
        platform, actor, namespace, action="create", kind="credential_source"
    )
    gateway = gateway_of(platform)
    checks.name(draft.name)
    checks.refuse(
        rules.draft_problems(draft.type, draft.config, draft.secrets, gateway.source_types())
    )
    gateway.validate_source(draft.type, draft.config)
    scope.require_ready(owner)
    named = await _authorized_secrets(platform, actor, owner, draft.secrets)
    key = idempotency.use(
        actor,
        "createCredentialSource",
        owner.id,
        idempotency_key,
        {
            "name": draft.name,
            "type": draft.type,
            "config": dict(draft.config),
            "secrets": {field: secret.id for field, secret in named.items()},
        },
    )
    source = CredentialSource(
        id=new_id(IdKind.CREDENTIAL_SOURCE),
        namespace_id=owner.id,
        name=draft.name,
        type=draft.type,
        config=dict(draft.config),
        secrets={field: secret.id for field, secret in named.items()},
        driver_id=gateway.id,
        state=SourceState.REGISTERING,
        created_at=platform.clock.now(),
    )
    earlier = await idempotency.earlier(platform, key)
    if earlier is None:
        try:
            async with platform.db.transact() as tx:
                scope.require_ready(await namespaces.share(tx, owner.id))
                await _hold_secrets(tx, owner, source.secrets)
                earlier = await idempotency.claim(tx, key, source.id)
                if earlier is None:
                    await credential_sources.insert(tx, source)
                    await credential_sources.touch(tx, source.id, platform.clock.now())
                    await _note(tx, platform, actor, "create", source)
        except ConstraintViolated as error:
            raise Conflict("A credential source of this Namespace has this name.") from error
    if earlier is not None:
        async with platform.db.read() as reader:
            found = await credential_sources.get(reader, owner.id, earlier)
        if found is None:
            raise idempotency.gone()
        return SourceView(found, None)
    return await _register(platform, actor, owner, source, named)


async def _register(
    platform: Platform,
    actor: Actor,
    owner: Namespace,
    source: CredentialSource,
    named: Mapping[str, Secret],
) -> SourceView:
    gateway = gateway_of(platform)
    context = platform.drivers.compute.namespace_context(owner)
    sent = False
    try:
        values = await _values(platform, named)
        sent = True
        async with asyncio.timeout(rules.EFFECT_TIMEOUT):
            status = await gateway.register_source(context, source, values)
    except Exception as error:
        async with platform.db.transact() as tx:
            await credential_sources.set_state(
                tx, source.id, SourceState.DELETING, expected=(SourceState.REGISTERING,)
            )
            if not sent:
                await credential_sources.touch(tx, source.id, None)
            await _note(tx, platform, actor, "create", source, failed="DEPENDENCY_UNAVAILABLE")
        if isinstance(error, ConfigurationRefused):
            raise
        raise Dependency(
            f"The Credential Gateway did not confirm {source.id}. It is kept as `deleting`: delete it, then create it again."
        ) from error
    if status.state in ("ready", "pending"):
        async with platform.db.transact() as tx:
            await credential_sources.touch(tx, source.id, None)
            if not await credential_sources.set_state(
                tx, source.id, SourceState.READY, expected=(SourceState.REGISTERING,)
            ):
                raise Conflict("The credential source was deleted meanwhile.")
            await _note(tx, platform, actor, "create.finish", source)
        return SourceView(replace(source, state=SourceState.READY), status)
    await _withdraw_refused(platform, actor, owner, source)
    raise Conflict("The Credential Gateway refused the source.")


async def _withdraw_refused(
    platform: Platform, actor: Actor, owner: Namespace, source: CredentialSource
) -> None:
    gateway = gateway_of(platform)
    context = platform.drivers.compute.namespace_context(owner)
    async with platform.db.transact() as tx:
        await credential_sources.touch(tx, source.id, None)
        await credential_sources.set_state(
            tx, source.id, SourceState.DELETING, expected=(SourceState.REGISTERING,)
        )
        await _note(tx, platform, actor, "create", source, failed="CREDENTIAL_SOURCE_UNAVAILABLE")
    try:
        await gateway.remove_source(context, source)
    except Exception as error:
        raise Dependency(
            f"The Credential Gateway refused {source.id} and did not confirm its removal; delete it."
        ) from error
    async with platform.db.transact() as tx:
        await credential_sources.remove(tx, source.id)


async def update(
    platform: Platform,
    actor: Actor,
    namespace: str,
    source: str,
    *,
    secrets: Mapping[str, str] | None = None,
) -> SourceView:
    """Hand the current (or newly named) Secrets to the gateway again; running Agents keep what they have until redeployed.

    Raises InvalidRequest, Forbidden, NotFound, Conflict (not ready), Dependency.
    """
    owner, found = await scope.resource(
        platform, actor, scope.SOURCES, namespace, source, action="update"
    )
    gateway = _own(platform, found)
    if found.state is not SourceState.READY:
        raise Conflict(f"The credential source is {found.state}.")
    if secrets is not None:
        chosen = next((one for one in gateway.source_types() if one.id == found.type), None)
        if chosen is None:
            raise Dependency(_FOREIGN_GATEWAY)
        checks.refuse(rules.secret_problems(secrets, chosen))
    named = await _authorized_secrets(
        platform, actor, owner, found.secrets if secrets is None else secrets
    )
    wanted = replace(found, secrets={field: secret.id for field, secret in named.items()})
    values = await _values(platform, named)
    async with platform.db.transact() as tx:
        scope.require_ready(await namespaces.share(tx, owner.id))
        current = await credential_sources.lock(tx, owner.id, found.id)
        if current is None:
            raise NotFound
        if current[0].state is not SourceState.READY:
            raise Conflict(f"The credential source is {current[0].state}.")
        await _hold_secrets(tx, owner, wanted.secrets)
        await credential_sources.replace_secrets(tx, found, wanted.secrets)
        await credential_sources.touch(tx, found.id, platform.clock.now())
        await _note(tx, platform, actor, "update", wanted)
    context = platform.drivers.compute.namespace_context(owner)
    try:
        async with asyncio.timeout(rules.EFFECT_TIMEOUT):
            status = await gateway.update_source(context, wanted, values)
    except Exception as error:
        async with platform.db.transact() as tx:
            await _note(tx, platform, actor, "update", wanted, failed="DEPENDENCY_UNAVAILABLE")
        raise Dependency("The Credential Gateway did not confirm the update; repeat it.") from error
    async with platform.db.transact() as tx:
        await credential_sources.touch(tx, found.id, None)
    return SourceView(wanted, status)


async def delete(platform: Platform, actor: Actor, namespace: str, source: str) -> None:
    """Remove a source that nothing references; repeating is safe.

    Raises Conflict while a draft, active revision or pending deployment names it; Dependency while an effect may still land.
    """
    owner, found = await scope.resource(
        platform, actor, scope.SOURCES, namespace, source, action="delete"
    )
    gateway = _own(platform, found)
    async with platform.db.transact() as tx:
        await namespaces.share(tx, owner.id)
        current = await credential_sources.lock(tx, owner.id, found.id)
        if current is None:
            raise NotFound
        locked, effect_at = current
        users = await credential_sources.consumers(tx, found.id, 4)
        if users:
            raise Conflict(f"The credential source is in use by agent {', '.join(users[:3])}.")
        if locked.state is not SourceState.DELETING:
            await credential_sources.set_state(
                tx,
                found.id,
                SourceState.DELETING,
                expected=(SourceState.READY, SourceState.REGISTERING),
            )
            await _note(tx, platform, actor, "delete", found)
    context = platform.drivers.compute.namespace_context(owner)
    try:
        async with asyncio.timeout(rules.EFFECT_TIMEOUT):
            await gateway.remove_source(context, found)
    except Exception as error:
        async with platform.db.transact() as tx:
            await _note(tx, platform, actor, "delete", found, failed="DEPENDENCY_UNAVAILABLE")
        raise Dependency(
            "The Credential Gateway did not confirm the removal; repeat it."
        ) from error
    if rules.may_still_land(effect_at, platform.clock.now()):
        raise Dependency(
            "Removed, but an earlier unanswered registration may still arrive; repeat the deletion in a minute."
        )
    async with platform.db.transact() as tx:
        removed = await iam.remove_targeting(tx, "credential_source", found.id)
        await credential_sources.remove(tx, found.id)
        await _note(tx, platform, actor, "delete.finish", found, removed=removed)


async def _authorized_secrets(
    platform: Platform, actor: Actor, owner: Namespace, named: Mapping[str, str]
) -> dict[str, Secret]:
    """Return field to Secret after requiring `secret:operate` on each. Raises InvalidRequest, Forbidden, Conflict."""
    found: dict[str, Secret | None] = {}
    async with platform.db.read() as reader:
        for field, ref in named.items():
            found[field] = await scope.find_in(reader, scope.SECRETS, owner.id, ref)
    await guard.require_all(
        platform,
        actor,
        [
            AccessRequest(
                principal_id=actor.principal_id,
                action="operate",
                resource_kind="secret",
                resource_id=secret.id if secret else named[field],
                namespace_id=owner.id,
            )
            for field, secret in found.items()
        ],
    )
    usable: dict[str, Secret] = {}
    problems: list[Detail] = []
    for field, secret in found.items():
        if secret is None:
            problems.append(Detail(f"/secrets/{field}", "INVALID_VALUE", "no such Secret here"))
        else:
            usable[field] = secret
    checks.refuse(problems)
    for secret in usable.values():
        require_own_driver(platform, secret)
        if secret.state != "ready":
            raise Conflict(f"The Secret {secret.id} is not stored completely.")
    return usable


async def _hold_secrets(tx: Tx, owner: Namespace, named: Mapping[str, str]) -> None:
    for secret_id in sorted(set(named.values())):
        held = await secrets.hold(tx, owner.id, secret_id)
        if held is None or held.state != "ready":
            raise Conflict(f"The Secret {secret_id} is not usable any more.")


async def _values(platform: Platform, named: Mapping[str, Secret]) -> dict[str, SecretText]:
    driver = platform.drivers.secret
    try:
        return {field: await driver.resolve(secret.locator) for field, secret in named.items()}
    except Exception as error:
        raise Dependency("A Secret's value could not be read.") from error


async def _note(
    tx: Tx,
    platform: Platform,
    actor: Actor,
    verb: str,
    source: CredentialSource,
    *,
    failed: str | None = None,
    removed: list[str] | None = None,
) -> None:
    details: dict[str, object] = {"sourceTypeName": source.type}
    if removed is not None:
        details["removedAccessBindingIds"] = removed
    await record.mutation(
        tx,
        platform,
        actor,
        f"credential_sources.{verb}",
        ("credential_source", source.id),
        source.namespace_id,
        outcome="failure" if failed else "success",
        reason_code=failed,
        details=details,
    )
