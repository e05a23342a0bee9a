"""Queries on Namespaces."""

from __future__ import annotations

from oce.core.paging import Page, PageRequest
from oce.core.platform import Actor, Platform
from oce.domain.resources import Namespace


async def get(platform: Platform, actor: Actor, namespace: str) -> Namespace:
    """Return a Namespace by id or name. Raises Forbidden, NotFound."""
    raise NotImplementedError


async def list_page(platform: Platform, actor: Actor, page: PageRequest) -> Page[Namespace]:
    """Return the Namespaces that the actor may read, oldest first."""
    raise NotImplementedError
