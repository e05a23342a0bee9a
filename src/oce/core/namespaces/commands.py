"""Commands on Namespaces: accept, record, queue. Provisioning and teardown belong to the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.contracts.iam import AccessRequest
from oce.core import checks, idempotency, scope
from oce.core.access import guard
from oce.core.audit import record
from oce.core.errors import Conflict, NotFound
from oce.core.namespaces.rules import not_empty_message
from oce.core.retry import takeover_of
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import Namespace, NamespaceStatus
from oce.store import namespaces, work
from oce.store.errors import ConstraintViolated

if TYPE_CHECKING:
    from oce.core.platform import Actor, Platform


async def create(
    platform: Platform,
    actor: Actor,
    *,
    name: str,
    existing_namespace: str | None = None,
    idempotency_key: str | None = None,
) -> Namespace:
    """Record a Namespace as `provisioning` and queue its provisioning.

    Raises InvalidRequest, Forbidden, Conflict (a name used now or ever before; an existing namespace without Kubernetes Compute).
    """
    await guard.require(platform, actor, "create", "namespace", None, None)
    if existing_namespace is not None:
        await guard.require(
            platform, actor, "administer", "installation", platform.installation_id, None
        )
        raise Conflict("Adopting an existing namespace needs the bundled Kubernetes Compute.")
    checks.name(name)
    key = idempotency.use(actor, "createNamespace", "-", idempotency_key, {"name": name})
    earlier = await idempotency.earlier(platform, key)
    if earlier is None:
        new = Namespace(
            id=new_id(IdKind.NAMESPACE),
            name=name,
            status=NamespaceStatus.PROVISIONING,
            created_at=platform.clock.now(),
        )
        try:
            async with platform.db.transact() as tx:
                earlier = await idempotency.claim(tx, key, new.id)
                if earlier is None:
                    await namespaces.insert(tx, new)
                    await work.enqueue(
                        tx,
                        key=work.operation_key("namespace", new.id, "ensure"),
                        namespace_id=new.id,
                        actor_id=actor.principal_id,
                        namespace_target="ready",
                    )
                    await record.mutation(
                        tx, platform, actor, "namespaces.create", ("namespace", new.id), new.id
                    )
        except ConstraintViolated as error:
            raise Conflict(
                "A Namespace has or had this name; names are never used again."
            ) from error
        if earlier is None:
            return new
    async with platform.db.read() as reader:
        found = await namespaces.get(reader, earlier)
    if found is None:
        raise idempotency.gone()
    return found


async def delete(platform: Platform, actor: Actor, namespace: str) -> Namespace:
    """Start tearing down an empty Namespace (id or name); returns it as `deleting`.

    A repeat while the teardown is under way changes nothing; after a failed one it starts the next, for the actor who began it, or
    for another one when the first has lost the permission. Raises Forbidden, NotFound, Conflict NAMESPACE_NOT_EMPTY.
    """
    found = await scope.namespace(platform, actor, namespace, action="delete")
    async with platform.db.read() as reader:
        previous = await work.newest_for_namespace(reader, found.id, "deleted")
    takeover = await takeover_of(
        platform,
        actor,
        previous,
        AccessRequest(
            principal_id=actor.principal_id,
            action="delete",
            resource_kind="namespace",
            resource_id=found.id,
            namespace_id=found.id,
        ),
    )
    async with platform.db.transact() as tx:
        current = await namespaces.lock(tx, found.id)
        if current is None:
            raise NotFound
        newest = await work.newest_for_namespace(tx, found.id, "deleted")
        if current.status is NamespaceStatus.DELETING:
            if newest is not None and newest.state in ("queued", "claimed"):
                return current
        else:
            contents = await namespaces.contents(tx, found.id)
            if contents:
                raise Conflict(not_empty_message(contents), code="NAMESPACE_NOT_EMPTY")
            await namespaces.set_status(
                tx, found.id, NamespaceStatus.DELETING, expected=current.status
            )
        await work.enqueue(
            tx,
            key=work.operation_key("namespace", found.id, "delete"),
            namespace_id=found.id,
            actor_id=actor.principal_id,
            namespace_target="deleted",
        )
        await record.mutation(
            tx,
            platform,
            actor,
            "namespaces.delete",
            ("namespace", found.id),
            found.id,
            details={"takeover": takeover},
        )
        changed = await namespaces.get(tx, found.id)
    if changed is None:
        raise NotFound
    return changed
