"""Reading the Installation."""

from __future__ import annotations

from dataclasses import dataclass

from oce.core.platform import Actor, Platform
from oce.domain.resources import Installation
from oce.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationView:
    """The Installation and what its Drivers can admit."""

    installation: Installation
    execution_modes: tuple[str, ...]
    harnesses: tuple[str, ...]
    source_types: tuple[str, ...]
    live_network_policy: bool
    sandbox_logs: bool


async def get(platform: Platform, actor: Actor) -> InstallationView:
    """Return the Installation (installation:read)."""
    raise NotImplementedError


async def find(db: Database) -> Installation | None:
    """Return the Installation, or None before bootstrap; for startup, not for callers."""
    raise NotImplementedError
