"""Queries on Namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.core import scope
from oce.core.access import guard
from oce.core.paging import Page, PageRequest, collect
from oce.store import namespaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.core.paging import Key
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Namespace


async def get(platform: Platform, actor: Actor, namespace: str) -> Namespace:
    """Return a Namespace by id or name. Raises Forbidden, NotFound."""
    return await scope.namespace(platform, actor, namespace, action="read")


async def list_page(platform: Platform, actor: Actor, page: PageRequest) -> Page[Namespace]:
    """Return the Namespaces that the actor may read, oldest first."""

    async def fetch(after: Key, count: int) -> Sequence[Namespace]:
        async with platform.db.read() as reader:
            return await namespaces.page(reader, after, count)

    async def visible(batch: Sequence[Namespace]) -> Sequence[bool]:
        return await guard.allowed_each(
            platform, actor, "read", "namespace", [(one.id, one.id) for one in batch]
        )

    return await collect(
        "namespaces", page, fetch, lambda one: (one.created_at.isoformat(), one.id), visible
    )
