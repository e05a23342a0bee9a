"""Commands on service keys, roles, bindings and service principals."""

from __future__ import annotations

from dataclasses import dataclass

from oce.core.platform import Actor, Platform
from oce.domain.resources import AccessBinding, Identity, Permission, Role, ServiceKey
from oce.domain.secret import SecretText


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDraft:
    """A key to issue; `expires_in` is 86,400…31,536,000 seconds."""

    service_principal_id: str
    name: str
    namespace: str | None = None
    expires_in: int = 2_592_000


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key and its text, shown once."""

    key: ServiceKey
    text: SecretText


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingDraft:
    """Subject, role and target; both resource fields None binds a built-in role to the whole scope (ours)."""

    subject_id: str
    role_id: str
    resource_kind: str | None = None
    resource_id: str | None = None


async def issue_key(platform: Platform, actor: Actor, draft: KeyDraft) -> IssuedKey:
    """Issue a service key for a principal whose grants the actor holds. `namespace` is an id or name."""
    raise NotImplementedError


async def revoke_key(platform: Platform, actor: Actor, key_id: str) -> ServiceKey:
    """Delete a key; it is dead at once."""
    raise NotImplementedError


async def create_role(
    platform: Platform,
    actor: Actor,
    namespace: str,
    *,
    name: str | None,
    permissions: tuple[Permission, ...],
) -> Role:
    """Create a role of a Namespace."""
    raise NotImplementedError


async def delete_role(platform: Platform, actor: Actor, namespace: str, role_id: str) -> None:
    """Delete an unreferenced role."""
    raise NotImplementedError


async def create_binding(
    platform: Platform, actor: Actor, namespace: str | None, draft: BindingDraft
) -> AccessBinding:
    """Bind a role; namespace None is the Installation (built-in roles only)."""
    raise NotImplementedError


async def delete_binding(
    platform: Platform, actor: Actor, namespace: str | None, binding_id: str
) -> None:
    """Remove a binding."""
    raise NotImplementedError


async def create_service_principal(
    platform: Platform, actor: Actor, namespace: str | None
) -> Identity:
    """Create a ServicePrincipal without grants; namespace None makes an Installation-scoped one (ours)."""
    raise NotImplementedError
