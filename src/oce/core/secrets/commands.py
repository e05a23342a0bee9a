"""Commands on Secrets."""

from __future__ import annotations

from oce.core.platform import Actor, Platform
from oce.domain.resources import Secret
from oce.domain.secret import SecretText


async def create(
    platform: Platform,
    actor: Actor,
    namespace: str,
    *,
    name: str,
    value: SecretText,
    idempotency_key: str | None = None,
) -> Secret:
    """Store a Secret; the record precedes the value."""
    raise NotImplementedError


async def update(
    platform: Platform, actor: Actor, namespace: str, secret: str, *, value: SecretText
) -> Secret:
    """Replace the value (id or name); also finishes an interrupted creation."""
    raise NotImplementedError


async def delete(platform: Platform, actor: Actor, namespace: str, secret: str) -> None:
    """Forget a Secret that nothing references."""
    raise NotImplementedError
