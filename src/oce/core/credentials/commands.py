"""Commands on credential sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oce.contracts.credential_gateway import SourceStatus
from oce.core.platform import Actor, Platform
from oce.domain.resources import CredentialSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDraft:
    """What a caller registers; `secrets` maps a field of the type to a Secret id or name."""

    name: str
    type: str
    config: Mapping[str, str]
    secrets: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SourceView:
    """OCC's record and the gateway's live view."""

    source: CredentialSource
    status: SourceStatus


async def create(
    platform: Platform,
    actor: Actor,
    namespace: str,
    draft: SourceDraft,
    *,
    idempotency_key: str | None = None,
) -> SourceView:
    """Register a source with the Credential Gateway."""
    raise NotImplementedError


async def update(
    platform: Platform,
    actor: Actor,
    namespace: str,
    source: str,
    *,
    secrets: Mapping[str, str] | None = None,
) -> SourceView:
    """Hand the current (or newly named) Secrets to the gateway again."""
    raise NotImplementedError


async def delete(platform: Platform, actor: Actor, namespace: str, source: str) -> None:
    """Remove a source that nothing references."""
    raise NotImplementedError
