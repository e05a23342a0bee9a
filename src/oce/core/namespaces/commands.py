"""Commands on Namespaces."""

from __future__ import annotations

from oce.core.platform import Actor, Platform
from oce.domain.resources import Namespace


async def create(
    platform: Platform,
    actor: Actor,
    *,
    name: str,
    existing_namespace: str | None = None,
    idempotency_key: str | None = None,
) -> Namespace:
    """Record a Namespace as `provisioning` and queue its provisioning. Raises InvalidRequest, Forbidden, Conflict (duplicate name)."""
    raise NotImplementedError


async def delete(platform: Platform, actor: Actor, namespace: str) -> Namespace:
    """Start tearing down an empty Namespace (id or name); returns it as `deleting`. Repeating is safe. Raises Conflict NAMESPACE_NOT_EMPTY."""
    raise NotImplementedError
