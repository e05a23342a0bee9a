"""Commands on Configurations.

The record is ours, the documents are the Configuration Driver's, stored by (id, generation). A generation number is reserved in the
database before its document is handed over and never used twice, so an interrupted write can collide with nothing; the current
generation moves only after the document is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oce.contracts.iam import AccessRequest
from oce.contracts.refusals import Detail
from oce.core import checks, idempotency, scope
from oce.core.access import guard
from oce.core.audit import record as audit_record
from oce.core.configurations.queries import load
from oce.core.configurations.schema import binding_problems, value_problems
from oce.core.errors import Conflict, Dependency, NotFound, PreconditionFailed
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import Configuration
from oce.store import configurations, iam, namespaces, secrets
from oce.store.configurations import ConfigurationRecord
from oce.store.errors import ConstraintViolated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Json, Namespace
    from oce.store.database import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationDraft:
    """What a caller writes; `secret_bindings` maps an environment name to a Secret id or name. `name` is ours and optional."""

    values: Json
    secret_bindings: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationChange:
    """A full replacement of `values` (None keeps) and of the bindings (None keeps, {} clears)."""

    values: Json | None = None
    secret_bindings: Mapping[str, str] | None = None


def check_values(values: Json) -> None:
    """Raise InvalidRequest unless every key of the document is known and well formed; paths start with `/values`."""
    checks.refuse(
        Detail(f"/values{one.path}", one.code, one.note) for one in value_problems(values)
    )


async def create(
    platform: Platform,
    actor: Actor,
    namespace: str,
    draft: ConfigurationDraft,
    *,
    idempotency_key: str | None = None,
) -> Configuration:
    """Store a Configuration. Raises InvalidRequest, Forbidden (also `secret:operate` on each bound Secret), NotFound, Conflict."""
    owner = await scope.parent(platform, actor, namespace, action="create", kind="configuration")
    if draft.name is not None:
        checks.name(draft.name)
    check_values(draft.values)
    bindings = await _bound(platform, actor, owner, draft.secret_bindings)
    scope.require_open(owner)
    key = idempotency.use(
        actor,
        "createConfiguration",
        owner.id,
        idempotency_key,
        {"name": draft.name, "values": draft.values, "bindings": bindings},
    )
    record = ConfigurationRecord(
        id=new_id(IdKind.CONFIGURATION),
        namespace_id=owner.id,
        name=draft.name,
        kind="agent",
        generation=1,
        reserved_generation=1,
        state="writing",
        secret_bindings=bindings,
        created_at=platform.clock.now(),
    )
    earlier = await idempotency.earlier(platform, key)
    if earlier is None:
        try:
            async with platform.db.transact() as tx:
                scope.require_open(await namespaces.share(tx, owner.id))
                await _hold(tx, owner, bindings)
                earlier = await idempotency.claim(tx, key, record.id)
                if earlier is None:
                    await configurations.insert_writing(tx, record)
                    await _note(tx, platform, actor, "create", record)
        except ConstraintViolated as error:
            raise Conflict("A Configuration of this Namespace has this name.") from error
    if earlier is not None:
        async with platform.db.read() as reader:
            found = await configurations.get(reader, owner.id, earlier)
        if found is None:
            raise idempotency.gone()
        if found.state != "writing":
            return await load(platform, owner, found)
        record = found
    await _write(platform, owner, record.id, 1, draft.values)
    async with platform.db.transact() as tx:
        if not await configurations.publish(
            tx, record, generation=1, secret_bindings=record.secret_bindings
        ):
            raise Conflict("The Configuration was changed meanwhile.")
        await _note(tx, platform, actor, "create.finish", record)
    return _public(record, 1, draft.values, record.secret_bindings)


async def update(
    platform: Platform,
    actor: Actor,
    namespace: str,
    configuration: str,
    change: ConfigurationChange,
    *,
    expected_generation: int | None = None,
    details: Mapping[str, object] | None = None,
) -> Configuration:
    """Replace a Configuration; running Agents keep their snapshot. `details` go into the audit event.

    Raises InvalidRequest, Forbidden, NotFound, PreconditionFailed, Conflict (a concurrent update without `If-Match` too), Dependency.
    """
    owner, found = await scope.resource(
        platform, actor, scope.CONFIGURATIONS, namespace, configuration, action="update"
    )
    checks.generation(found.generation, expected_generation)
    if change.values is not None:
        check_values(change.values)
    wanted = found.secret_bindings if change.secret_bindings is None else change.secret_bindings
    bindings = await _bound(platform, actor, owner, wanted)
    values = change.values
    if values is None:
        values = (await load(platform, owner, found)).values
    async with platform.db.transact() as tx:
        await namespaces.share(tx, owner.id)
        current = await configurations.lock(tx, owner.id, found.id)
        _unchanged(found, current)
        await _hold(tx, owner, bindings)
        generation = await configurations.reserve(tx, found.id)
    await _write(platform, owner, found.id, generation, values)
    async with platform.db.transact() as tx:
        await namespaces.share(tx, owner.id)
        await _hold(tx, owner, bindings)
        if not await configurations.publish(
            tx, found, generation=generation, secret_bindings=bindings
        ):
            raise PreconditionFailed("The Configuration was changed meanwhile.")
        await _note(tx, platform, actor, "update", found, generation=generation, more=details or {})
    return _public(found, generation, values, bindings)


async def delete(
    platform: Platform,
    actor: Actor,
    namespace: str,
    configuration: str,
    *,
    expected_generation: int | None = None,
) -> None:
    """Delete a Configuration that no Agent uses; repeating finishes an interrupted deletion. Raises Conflict, PreconditionFailed."""
    owner, found = await scope.resource(
        platform, actor, scope.CONFIGURATIONS, namespace, configuration, action="delete"
    )
    async with platform.db.transact() as tx:
        await namespaces.share(tx, owner.id)
        current = await configurations.lock(tx, owner.id, found.id)
        if current is None:
            raise NotFound
        checks.generation(current.generation, expected_generation)
        users = await configurations.used_by(tx, found.id, 4)
        if users:
            raise Conflict(f"The Configuration is in use by agent {', '.join(users[:3])}.")
        if current.state != "deleting":
            await configurations.set_deleting(tx, found.id)
            await _note(tx, platform, actor, "delete", found)
    physical = platform.drivers.compute.physical_namespace(owner)
    try:
        await platform.drivers.configuration.delete(physical, found.id)
    except Exception as error:
        raise Dependency("The document may still be stored; repeat the deletion.") from error
    async with platform.db.transact() as tx:
        removed = await iam.remove_targeting(tx, "configuration", found.id)
        await configurations.remove(tx, found.id)
        await _note(tx, platform, actor, "delete.finish", found, removed=removed)


def _unchanged(seen: ConfigurationRecord, current: ConfigurationRecord | None) -> None:
    if current is None:
        raise NotFound
    if current.state == "deleting":
        raise Conflict("The Configuration is being deleted.")
    if current.generation != seen.generation:
        raise PreconditionFailed("The Configuration was changed meanwhile.")


async def _write(
    platform: Platform, owner: Namespace, configuration_id: str, generation: int, values: Json
) -> None:
    physical = platform.drivers.compute.physical_namespace(owner)
    try:
        await platform.drivers.configuration.write(physical, configuration_id, generation, values)
    except Exception as error:
        raise Dependency(
            f"The document of {configuration_id} may not be stored; the current generation is unchanged."
        ) from error


def _public(
    record: ConfigurationRecord, generation: int, values: Json, bindings: Mapping[str, str]
) -> Configuration:
    return Configuration(
        id=record.id,
        namespace_id=record.namespace_id,
        kind=record.kind,
        generation=generation,
        values=values,
        secret_bindings=dict(bindings),
        created_at=record.created_at,
        name=record.name,
    )


async def _bound(
    platform: Platform, actor: Actor, owner: Namespace, named: Mapping[str, str]
) -> dict[str, str]:
    """Return environment name to Secret id after checking the names and requiring `secret:operate` on each Secret."""
    checks.refuse(binding_problems(named))
    if not named:
        return {}
    async with platform.db.read() as reader:
        found = {
            name: await scope.find_in(reader, scope.SECRETS, owner.id, ref)
            for name, ref in named.items()
        }
    await guard.require_all(
        platform,
        actor,
        [
            AccessRequest(
                principal_id=actor.principal_id,
                action="operate",
                resource_kind="secret",
                resource_id=secret.id if secret else named[name],
                namespace_id=owner.id,
            )
            for name, secret in found.items()
        ],
    )
    checks.refuse(
        Detail(f"/secretBindings/{name}", "INVALID_VALUE", "no such Secret here")
        for name, secret in found.items()
        if secret is None
    )
    return {name: secret.id for name, secret in found.items() if secret is not None}


async def _hold(tx: Tx, owner: Namespace, bindings: Mapping[str, str]) -> None:
    for secret_id in sorted(set(bindings.values())):
        held = await secrets.hold(tx, owner.id, secret_id)
        if held is None or held.state != "ready":
            raise Conflict(f"The Secret {secret_id} is not usable any more.")


async def _note(
    tx: Tx,
    platform: Platform,
    actor: Actor,
    verb: str,
    record: ConfigurationRecord,
    *,
    generation: int | None = None,
    removed: list[str] | None = None,
    more: Mapping[str, object] | None = None,
) -> None:
    details: dict[str, object] = dict(more or {})
    if generation is not None:
        details["generation"] = generation
    if removed is not None:
        details["removedAccessBindingIds"] = removed
    await audit_record.mutation(
        tx,
        platform,
        actor,
        f"configurations.{verb}",
        ("configuration", record.id),
        record.namespace_id,
        details=details,
    )
