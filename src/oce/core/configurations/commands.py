"""Commands on Configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oce.core.platform import Actor, Platform
from oce.domain.resources import Configuration, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationDraft:
    """What a caller writes; `secret_bindings` maps an environment name to a Secret id or name. `name` is ours and optional."""

    values: Json
    secret_bindings: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationChange:
    """A full replacement of `values` (None keeps) and of the bindings (None keeps, {} clears)."""

    values: Json | None = None
    secret_bindings: Mapping[str, str] | None = None


async def create(
    platform: Platform,
    actor: Actor,
    namespace: str,
    draft: ConfigurationDraft,
    *,
    idempotency_key: str | None = None,
) -> Configuration:
    """Store a Configuration."""
    raise NotImplementedError


async def update(
    platform: Platform,
    actor: Actor,
    namespace: str,
    configuration: str,
    change: ConfigurationChange,
    *,
    expected_generation: int | None = None,
) -> Configuration:
    """Replace a Configuration. Raises PreconditionFailed."""
    raise NotImplementedError


async def delete(
    platform: Platform,
    actor: Actor,
    namespace: str,
    configuration: str,
    *,
    expected_generation: int | None = None,
) -> None:
    """Delete a Configuration that no Agent uses."""
    raise NotImplementedError
