"""Queries on Agents."""

from __future__ import annotations

from oce.core.paging import Page, PageRequest
from oce.core.platform import Actor, Platform
from oce.domain.resources import Agent


async def get(platform: Platform, actor: Actor, namespace: str, agent: str) -> Agent:
    """Return an Agent by id or name."""
    raise NotImplementedError


async def list_page(
    platform: Platform, actor: Actor, namespace: str, page: PageRequest
) -> Page[Agent]:
    """Return the Agents that the actor may read."""
    raise NotImplementedError
