"""Queries on Configurations."""

from __future__ import annotations

from oce.core.paging import Page, PageRequest
from oce.core.platform import Actor, Platform
from oce.domain.resources import Configuration


async def get(
    platform: Platform, actor: Actor, namespace: str, configuration: str
) -> Configuration:
    """Return a Configuration by id or name, with its document."""
    raise NotImplementedError


async def list_page(
    platform: Platform, actor: Actor, namespace: str, page: PageRequest
) -> Page[Configuration]:
    """Return the Configurations that the actor may read, with their documents."""
    raise NotImplementedError
