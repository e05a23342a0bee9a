"""Reading the Installation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oce.core.access import guard
from oce.core.errors import NotFound
from oce.store import installation

if TYPE_CHECKING:
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
    """Return the Installation (needs `installation:read`). Raises Forbidden."""
    await guard.require(platform, actor, "read", "installation", platform.installation_id, None)
    found = await find(platform.db)
    if found is None:
        raise NotFound
    sandbox = platform.drivers.sandbox
    gateway = platform.drivers.credential_gateway
    return InstallationView(
        installation=found,
        execution_modes=("dedicated",) if sandbox is not None else ("embedded",),
        harnesses=tuple(sorted(platform.settings.harness_versions)),
        source_types=tuple(one.id for one in gateway.source_types()) if gateway else (),
        live_network_policy=sandbox is not None and sandbox.live_policies is not None,
        sandbox_logs=sandbox is not None and sandbox.logs is not None,
    )


async def backends(platform: Platform, actor: Actor) -> tuple[tuple[str, str], ...]:
    """Return id and type of each configured Backend (needs `installation:administer`). Raises Forbidden."""
    await guard.require(
        platform, actor, "administer", "installation", platform.installation_id, None
    )
    return platform.settings.backends


async def find(db: Database) -> Installation | None:
    """Return the Installation, or None before bootstrap; for startup, not for callers."""
    async with db.read() as reader:
        return await installation.find(reader)
