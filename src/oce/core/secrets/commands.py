"""Commands on Secrets.

The record always precedes the effect: a crash between the two leaves a record in `writing` or `deleting` that a person sees and
that a repeated PATCH or DELETE finishes, never a value that nobody knows of. No Driver is called inside a transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.contracts.refusals import NotVisible
from oce.core import checks, idempotency, scope
from oce.core.audit import record
from oce.core.errors import Conflict, Dependency, NotFound
from oce.core.secrets.rules import value_problems
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import Secret, SecretLocator
from oce.domain.secret import SecretText
from oce.store import iam, namespaces, secrets
from oce.store.errors import ConstraintViolated

if TYPE_CHECKING:
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Namespace

_FOREIGN_DRIVER = "The Secret belongs to another Secret Driver. Select that Driver again in the startup YAML, or delete the Secret there."


def require_own_driver(platform: Platform, secret: Secret) -> None:
    """Raise Dependency when the Secret was stored through a Driver that is not the selected one."""
    if secret.locator.driver_id != platform.drivers.secret.id:
        raise Dependency(_FOREIGN_DRIVER)


async def create(
    platform: Platform,
    actor: Actor,
    namespace: str,
    *,
    name: str,
    value: SecretText,
    idempotency_key: str | None = None,
) -> Secret:
    """Store a Secret. Raises InvalidRequest, Forbidden, NotFound, Conflict, Dependency (the record stays; repeat with PATCH)."""
    owner = await scope.parent(platform, actor, namespace, action="create", kind="secret")
    checks.name(name)
    checks.refuse(value_problems(value))
    scope.require_ready(owner)
    key = idempotency.use(actor, "createSecret", owner.id, idempotency_key, {"name": name})
    earlier = await idempotency.earlier(platform, key)
    new = Secret(
        id=earlier or new_id(IdKind.SECRET),
        namespace_id=owner.id,
        name=name,
        locator=SecretLocator(
            driver_id=platform.drivers.secret.id, namespace_name="", name="", key="", uid=""
        ),
        created_at=platform.clock.now(),
        state="writing",
    )
    if earlier is None:
        try:
            async with platform.db.transact() as tx:
                scope.require_ready(await namespaces.share(tx, owner.id))
                earlier = await idempotency.claim(tx, key, new.id)
                if earlier is None:
                    await secrets.insert_writing(tx, new)
                    await record.mutation(
                        tx, platform, actor, "secrets.create", ("secret", new.id), owner.id
                    )
        except ConstraintViolated as error:
            raise Conflict("A Secret of this Namespace has this name.") from error
    if earlier is not None:
        async with platform.db.read() as reader:
            found = await secrets.get(reader, owner.id, earlier)
        if found is None:
            raise idempotency.gone()
        if found.state != "writing":
            return found
        new = found
    return await _store(platform, actor, owner, new, value)


async def update(
    platform: Platform, actor: Actor, namespace: str, secret: str, *, value: SecretText
) -> Secret:
    """Replace the value (id or name); also finishes an interrupted creation. Raises like `create`."""
    owner, found = await scope.resource(
        platform, actor, scope.SECRETS, namespace, secret, action="update"
    )
    checks.refuse(value_problems(value))
    scope.require_ready(owner)
    require_own_driver(platform, found)
    if found.state == "deleting":
        raise Conflict("The Secret is being deleted.")
    if found.state == "writing":
        return await _store(platform, actor, owner, found, value)
    async with platform.db.transact() as tx:
        await record.mutation(tx, platform, actor, "secrets.update", ("secret", found.id), owner.id)
    try:
        await platform.drivers.secret.update(found.locator, value)
    except NotVisible:
        return await _store(platform, actor, owner, found, value)
    except Exception as error:
        await _failed(platform, actor, "secrets.update", found)
        raise Dependency("It is not known whether the value was replaced; repeat it.") from error
    return found


async def delete(platform: Platform, actor: Actor, namespace: str, secret: str) -> None:
    """Forget a Secret that nothing references; repeating finishes an interrupted deletion. Raises Conflict while it is in use."""
    owner, found = await scope.resource(
        platform, actor, scope.SECRETS, namespace, secret, action="delete"
    )
    require_own_driver(platform, found)
    async with platform.db.transact() as tx:
        await namespaces.share(tx, owner.id)
        current = await secrets.lock(tx, owner.id, found.id)
        if current is None:
            raise NotFound
        users = await secrets.consumers(tx, found.id, 4)
        if users:
            shown = ", ".join(f"{kind} {identifier}" for kind, identifier in users[:3])
            raise Conflict(f"The Secret is in use by {shown}.")
        if current.state != "deleting":
            await secrets.set_deleting(tx, found.id)
            await record.mutation(
                tx, platform, actor, "secrets.delete", ("secret", found.id), owner.id
            )
    await _forget(platform, actor, owner, current)
    async with platform.db.transact() as tx:
        await secrets.remove(tx, found.id)
        removed = await iam.remove_targeting(tx, "secret", found.id)
        await record.mutation(
            tx,
            platform,
            actor,
            "secrets.delete.finish",
            ("secret", found.id),
            owner.id,
            details={"removedAccessBindingIds": removed},
        )


async def _forget(platform: Platform, actor: Actor, owner: Namespace, current: Secret) -> None:
    driver = platform.drivers.secret
    try:
        locator = current.locator
        if not locator.name:
            # An interrupted creation left no locator: the Driver's names are deterministic, so asking again tells it.
            physical = platform.drivers.compute.physical_namespace(owner)
            locator = await driver.create(physical, current.id, SecretText("forgotten"))
        await driver.delete(locator)
    except Exception as error:
        await _failed(platform, actor, "secrets.delete", current)
        raise Dependency("The value may still be stored; repeat the deletion.") from error


async def _store(
    platform: Platform, actor: Actor, owner: Namespace, secret: Secret, value: SecretText
) -> Secret:
    physical = platform.drivers.compute.physical_namespace(owner)
    try:
        locator = await platform.drivers.secret.create(physical, secret.id, value)
    except Exception as error:
        await _failed(platform, actor, "secrets.create", secret)
        raise Dependency(
            f"The Secret {secret.id} is recorded and its value may not be stored; update or delete it."
        ) from error
    async with platform.db.transact() as tx:
        if not await secrets.set_ready(tx, secret.id, locator):
            raise Conflict("The Secret was deleted meanwhile.")
        await record.mutation(
            tx, platform, actor, "secrets.create.finish", ("secret", secret.id), owner.id
        )
        stored = await secrets.get(tx, owner.id, secret.id)
    if stored is None:
        raise NotFound
    return stored


async def _failed(platform: Platform, actor: Actor, action: str, secret: Secret) -> None:
    async with platform.db.transact() as tx:
        await record.mutation(
            tx,
            platform,
            actor,
            action,
            ("secret", secret.id),
            secret.namespace_id,
            outcome="failure",
            reason_code="DEPENDENCY_UNAVAILABLE",
        )
