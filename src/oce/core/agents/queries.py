"""Queries on Agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.core import scope
from oce.core.access import guard
from oce.core.paging import Page, PageRequest, collect
from oce.store import agents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.core.paging import Key
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Agent


async def get(platform: Platform, actor: Actor, namespace: str, agent: str) -> Agent:
    """Return an Agent by id or name. Raises Forbidden, NotFound."""
    _, found = await scope.resource(platform, actor, scope.AGENTS, namespace, agent, action="read")
    return found


async def list_page(
    platform: Platform, actor: Actor, namespace: str, page: PageRequest
) -> Page[Agent]:
    """Return the Agents that the actor may read, oldest first (also needs `namespace:read`). Raises Forbidden, NotFound."""
    owner = await scope.namespace(platform, actor, namespace, action="read")

    async def fetch(after: Key, count: int) -> Sequence[Agent]:
        async with platform.db.read() as reader:
            return await agents.page(reader, owner.id, after, count)

    async def visible(batch: Sequence[Agent]) -> Sequence[bool]:
        return await guard.allowed_each(
            platform, actor, "read", "agent", [(one.id, owner.id) for one in batch]
        )

    return await collect(
        f"agents:{owner.id}", page, fetch, lambda one: (one.created_at.isoformat(), one.id), visible
    )
