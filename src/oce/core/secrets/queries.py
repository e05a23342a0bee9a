"""Queries on Secrets: metadata and who uses them, never a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oce.core import scope
from oce.core.access import guard
from oce.core.paging import Page, PageRequest, collect
from oce.store import secrets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.core.paging import Key
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Secret

_CONSUMERS_MAX: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumers:
    """Who references a Secret; each list at most 50 ids. `unreadable` counts what the actor may not read (0…50)."""

    agents: tuple[str, ...] = ()
    configurations: tuple[str, ...] = ()
    credential_sources: tuple[str, ...] = ()
    unreadable: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class SecretView:
    """A Secret and its consumers."""

    secret: Secret
    consumers: Consumers


async def get(platform: Platform, actor: Actor, namespace: str, secret: str) -> SecretView:
    """Return a Secret by id or name. Never its value. Raises Forbidden, NotFound."""
    owner, found = await scope.resource(
        platform, actor, scope.SECRETS, namespace, secret, action="read"
    )
    async with platform.db.read() as reader:
        users = await secrets.consumers(reader, found.id, 3 * _CONSUMERS_MAX + 1)
    shown: dict[str, list[str]] = {"agent": [], "configuration": [], "credential_source": []}
    unreadable = 0
    for kind, listed in shown.items():
        ids = [identifier for one, identifier in users if one == kind]
        allowed = await guard.allowed_each(
            platform, actor, "read", kind, [(identifier, owner.id) for identifier in ids]
        )
        listed.extend(one for one, may in zip(ids, allowed, strict=True) if may)
        unreadable += allowed.count(False)
    return SecretView(
        found,
        Consumers(
            agents=tuple(shown["agent"][:_CONSUMERS_MAX]),
            configurations=tuple(shown["configuration"][:_CONSUMERS_MAX]),
            credential_sources=tuple(shown["credential_source"][:_CONSUMERS_MAX]),
            unreadable=min(unreadable, _CONSUMERS_MAX),
            truncated=len(users) > 3 * _CONSUMERS_MAX
            or any(len(ids) > _CONSUMERS_MAX for ids in shown.values()),
        ),
    )


async def list_page(
    platform: Platform, actor: Actor, namespace: str, page: PageRequest
) -> Page[Secret]:
    """Return the Secrets that the actor may read, oldest first. Raises NotFound, InvalidRequest (cursor)."""
    owner = await scope.listed(platform, actor, namespace)
    if owner is None:
        return Page(())

    async def fetch(after: Key, count: int) -> Sequence[Secret]:
        async with platform.db.read() as reader:
            return await secrets.page(reader, owner.id, after, count)

    async def visible(batch: Sequence[Secret]) -> Sequence[bool]:
        return await guard.allowed_each(
            platform, actor, "read", "secret", [(one.id, owner.id) for one in batch]
        )

    return await collect(
        f"secrets:{owner.id}",
        page,
        fetch,
        lambda one: (one.created_at.isoformat(), one.id),
        visible,
    )
