"""Queries on Secrets."""

from __future__ import annotations

from dataclasses import dataclass

from oce.core.paging import Page, PageRequest
from oce.core.platform import Actor, Platform
from oce.domain.resources import Secret


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
    """Return a Secret by id or name. Never its value."""
    raise NotImplementedError


async def list_page(
    platform: Platform, actor: Actor, namespace: str, page: PageRequest
) -> Page[Secret]:
    """Return the Secrets that the actor may read."""
    raise NotImplementedError
