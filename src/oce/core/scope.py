"""Finding what a path names, and asking for permission in the right order.

A path names a Namespace, and often a resource in it, by id or by name. The order is always the same: look up which id is meant, ask
whether the actor may do this to that id, and only then say whether it exists. A name that nobody has is asked about as if it were an
id, so that somebody with a grant on the whole Namespace hears "not found" and anybody else hears "forbidden", existing or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from oce.core.access import guard
from oce.core.errors import Conflict, NotFound
from oce.domain.ids import IdKind, is_id
from oce.domain.resources import Agent, CredentialSource, NamespaceStatus, Secret
from oce.store import agents, configurations, credential_sources, namespaces, secrets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Namespace
    from oce.store.configurations import ConfigurationRecord
    from oce.store.database import Reader


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_Identified)


@dataclass(frozen=True, slots=True)
class Lookup(Generic[T]):
    """How resources of one kind are found in a Namespace."""

    kind: str
    prefix: IdKind
    get: Callable[[Reader, str, str], Awaitable[T | None]]
    find: Callable[[Reader, str, str], Awaitable[T | None]]


AGENTS: Final[Lookup[Agent]] = Lookup("agent", IdKind.AGENT, agents.get, agents.find)
SECRETS: Final[Lookup[Secret]] = Lookup("secret", IdKind.SECRET, secrets.get, secrets.find)
SOURCES: Final[Lookup[CredentialSource]] = Lookup(
    "credential_source", IdKind.CREDENTIAL_SOURCE, credential_sources.get, credential_sources.find
)
CONFIGURATIONS: Final[Lookup[ConfigurationRecord]] = Lookup(
    "configuration", IdKind.CONFIGURATION, configurations.get, configurations.find
)


async def find_namespace(reader: Reader, ref: str) -> Namespace | None:
    """Return a live Namespace by id or name."""
    if is_id(IdKind.NAMESPACE, ref):
        return await namespaces.get(reader, ref)
    return await namespaces.find(reader, ref)


async def find_in(reader: Reader, lookup: Lookup[T], namespace_id: str, ref: str) -> T | None:
    """Return a resource of that Namespace by id or name."""
    if is_id(lookup.prefix, ref):
        return await lookup.get(reader, namespace_id, ref)
    return await lookup.find(reader, namespace_id, ref)


async def namespace(platform: Platform, actor: Actor, ref: str, *, action: str) -> Namespace:
    """Return the Namespace after requiring `namespace:<action>` on it. Raises Forbidden, NotFound."""
    async with platform.db.read() as reader:
        found = await find_namespace(reader, ref)
    target = found.id if found else ref
    await guard.require(platform, actor, action, "namespace", target, target)
    if found is None:
        raise NotFound
    return found


async def parent(
    platform: Platform, actor: Actor, ref: str, *, action: str, kind: str
) -> Namespace:
    """Return the Namespace after requiring a permission on the collection of `kind` in it (create). Raises Forbidden, NotFound."""
    async with platform.db.read() as reader:
        found = await find_namespace(reader, ref)
    await guard.require(platform, actor, action, kind, None, found.id if found else ref)
    if found is None:
        raise NotFound
    return found


async def listed(platform: Platform, actor: Actor, ref: str) -> Namespace | None:
    """Return the Namespace of a list whose elements are authorized one by one.

    An absent one is NotFound for who may read it, and None (an empty list, as for a foreign one) for anybody else.
    """
    async with platform.db.read() as reader:
        found = await find_namespace(reader, ref)
    if found is not None and guard.key_reaches(actor, "namespace", found.id, found.id):
        return found
    if found is None and all(
        await guard.allowed_each(platform, actor, "read", "namespace", [(ref, ref)])
    ):
        raise NotFound
    return None


async def resource(
    platform: Platform,
    actor: Actor,
    lookup: Lookup[T],
    namespace_ref: str,
    ref: str,
    *,
    action: str,
) -> tuple[Namespace, T]:
    """Return Namespace and resource after requiring `<kind>:<action>` on it. Raises Forbidden, NotFound."""
    async with platform.db.read() as reader:
        owner = await find_namespace(reader, namespace_ref)
        found = await find_in(reader, lookup, owner.id, ref) if owner else None
    await guard.require(
        platform,
        actor,
        action,
        lookup.kind,
        found.id if found else ref,
        owner.id if owner else namespace_ref,
    )
    if owner is None or found is None:
        raise NotFound
    return owner, found


def require_ready(found: Namespace | None) -> Namespace:
    """Raise Conflict NAMESPACE_NOT_READY unless the Namespace is ready (NotFound when it is gone meanwhile)."""
    if found is None:
        raise NotFound
    if found.status is not NamespaceStatus.READY:
        raise Conflict(f"The Namespace is {found.status}.", code="NAMESPACE_NOT_READY")
    return found


def require_open(found: Namespace | None) -> Namespace:
    """Raise Conflict NAMESPACE_NOT_READY unless the Namespace is provisioning or ready."""
    if found is None:
        raise NotFound
    if found.status not in (NamespaceStatus.READY, NamespaceStatus.PROVISIONING):
        raise Conflict(f"The Namespace is {found.status}.", code="NAMESPACE_NOT_READY")
    return found
