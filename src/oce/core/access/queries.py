"""Authentication, access checks for the Agent Gateway and the worker, and reads of the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oce.core.paging import Page, PageRequest
from oce.core.platform import Actor, Platform
from oce.domain.resources import (
    AccessBinding,
    Agent,
    AgentRevision,
    Identity,
    Namespace,
    Role,
    ServiceKey,
)
from oce.domain.secret import SecretText


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAccess:
    """The Agent Gateway's answer; `status` is the HTTP status to give when not allowed."""

    allowed: bool
    status: int
    code: str
    message: str
    principal_id: str | None = None
    namespace_id: str | None = None
    agent_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why queued work may not go on; `code` is ACTOR_REVOKED, AUTHORIZATION_DENIED or AGENT_PRINCIPAL_NOT_AUTHORIZED."""

    code: str
    reason: str


async def authenticate(platform: Platform, key: SecretText, *, request_id: str) -> Actor:
    """Return the Actor of a service key. Raises Unauthenticated."""
    raise NotImplementedError


async def agent_access(
    platform: Platform, api_key: SecretText, namespace: str, agent: str
) -> AgentAccess:
    """Tell whether this key may use this Agent (`agent:use`); ids or names."""
    raise NotImplementedError


async def reauthorize_namespace(
    platform: Platform, *, actor_id: str, namespace: Namespace, target: Literal["ready", "deleted"]
) -> Refusal | None:
    """Check the original actor of Namespace work again; a denial is audited."""
    raise NotImplementedError


async def reauthorize_agent(
    platform: Platform, *, actor_id: str, agent: Agent, target: Literal["stopped", "deleted"]
) -> Refusal | None:
    """Check the original actor of a stop or a deletion again; a denial is audited."""
    raise NotImplementedError


async def reauthorize_revision(
    platform: Platform, *, actor_id: str, agent: Agent, revision: AgentRevision
) -> Refusal | None:
    """Check actor and Agent principal of a deploy again; a denial is audited."""
    raise NotImplementedError


async def whoami(platform: Platform, actor: Actor) -> Identity:
    """Return the actor's identity."""
    raise NotImplementedError


async def list_keys(platform: Platform, actor: Actor, page: PageRequest) -> Page[ServiceKey]:
    """Return the service keys (needs installation:administer)."""
    raise NotImplementedError


async def list_roles(
    platform: Platform, actor: Actor, namespace: str | None, page: PageRequest
) -> Page[Role]:
    """Return the roles of a Namespace, or of the Installation with the built-in ones."""
    raise NotImplementedError


async def get_role(platform: Platform, actor: Actor, namespace: str | None, role_id: str) -> Role:
    """Return a role."""
    raise NotImplementedError


async def list_bindings(
    platform: Platform, actor: Actor, namespace: str | None, page: PageRequest
) -> Page[AccessBinding]:
    """Return the bindings of a Namespace, or the Installation-wide ones."""
    raise NotImplementedError


async def get_binding(
    platform: Platform, actor: Actor, namespace: str | None, binding_id: str
) -> AccessBinding:
    """Return a binding."""
    raise NotImplementedError


async def list_service_principals(
    platform: Platform, actor: Actor, namespace: str | None, page: PageRequest
) -> Page[Identity]:
    """Return the ServicePrincipals of a scope, without those of Agents."""
    raise NotImplementedError


async def get_service_principal(
    platform: Platform, actor: Actor, namespace: str | None, principal_id: str
) -> Identity:
    """Return a ServicePrincipal that no Agent owns."""
    raise NotImplementedError
