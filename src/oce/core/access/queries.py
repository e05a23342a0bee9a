"""Authentication, access checks for the Agent Gateway and the worker, and reads of the policy. Nothing is cached."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from oce.contracts.iam import AccessRequest
from oce.core import scope
from oce.core.access import guard, keys, rules
from oce.core.access.commands import administer, policy_scope
from oce.core.audit import rules as audit_rules
from oce.core.errors import Forbidden, NotFound, Unauthenticated
from oce.core.paging import Page, PageRequest, collect
from oce.core.platform import Actor
from oce.domain.failures import CATALOGUE
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import AgentStatus
from oce.store import audit, iam, service_keys
from oce.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.core.paging import Key
    from oce.core.platform import Platform
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

_TOUCH_EVERY: Final = timedelta(minutes=1)


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
    """Return the Actor of a service key. Raises Unauthenticated (malformed, unknown, expired, of another scope), StoreError."""
    parsed = keys.parse(key)
    if parsed is None:
        raise Unauthenticated
    key_id, secret = parsed
    async with platform.db.read() as reader:
        found = await service_keys.verifier(reader, key_id)
    if found is None:
        raise Unauthenticated
    known, stored, principal_namespace = found
    now = platform.clock.now()
    if not keys.verify(secret, stored) or known.expires_at <= now:
        raise Unauthenticated
    if principal_namespace is not None and principal_namespace != known.namespace_id:
        raise Unauthenticated
    if known.last_used_at is None or now - known.last_used_at >= _TOUCH_EVERY:
        # Only information: a database that cannot write (a full disk) must still let people read.
        with contextlib.suppress(StoreError):
            async with platform.db.transact() as tx:
                await service_keys.touch(tx, known.id, now)
    return Actor(
        principal_id=known.service_principal_id,
        request_id=request_id,
        key_namespace_id=known.namespace_id,
        key_id=known.id,
    )


def _refused(code: str) -> AgentAccess:
    row = CATALOGUE[code]
    return AgentAccess(allowed=False, status=row.http or 500, code=code, message=row.message)


async def agent_access(
    platform: Platform, api_key: SecretText, namespace: str, agent: str
) -> AgentAccess:
    """Tell whether this key may use this Agent (`agent:use`); ids or names. Raises StoreError when the database is away."""
    try:
        actor = await authenticate(platform, api_key, request_id=new_id(IdKind.REQUEST))
        owner, found = await scope.resource(
            platform, actor, scope.AGENTS, namespace, agent, action="use"
        )
    except Unauthenticated:
        return _refused("UNAUTHENTICATED")
    except Forbidden:
        return _refused("FORBIDDEN")
    except NotFound:
        return _refused("NOT_FOUND")
    if found.status is AgentStatus.DELETING:
        return _refused("AGENT_DELETING")
    return AgentAccess(
        allowed=True,
        status=200,
        code="",
        message="",
        principal_id=actor.principal_id,
        namespace_id=owner.id,
        agent_id=found.id,
    )


async def _recheck(
    platform: Platform, actor_id: str, requests: Sequence[AccessRequest], *, code: str
) -> Refusal | None:
    """Decide again for queued work; the first denial is recorded."""
    decisions = await platform.drivers.iam.authorize_many(requests)
    for request, decision in zip(requests, decisions, strict=True):
        if decision.allowed:
            continue
        event = audit_rules.denial(
            installation_id=platform.installation_id,
            at=platform.clock.now(),
            request=request,
            decision=decision,
            action=f"openclaw.{guard.AREAS[request.resource_kind]}.{request.action}",
            reason_code=code,
            initiating_actor_id=actor_id,
        )
        async with platform.db.transact() as tx:
            await audit.append(tx, event)
        return Refusal(
            code=code, reason=f"{request.resource_kind}:{request.action} {decision.reason}"
        )
    return None


async def _gone(platform: Platform, actor_id: str) -> Refusal | None:
    if await platform.drivers.iam.lookup_identity(actor_id) is None:
        return Refusal(code="ACTOR_REVOKED", reason="the actor no longer exists")
    return None


async def reauthorize_namespace(
    platform: Platform,
    *,
    actor_id: str,
    namespace: Namespace,
    target: Literal["ready", "deleted"],
) -> Refusal | None:
    """Check the original actor of Namespace work again: `create` on the Installation, or `delete` on the Namespace; a denial is recorded."""
    gone = await _gone(platform, actor_id)
    if gone is not None:
        return gone
    ensure = target == "ready"
    request = AccessRequest(
        principal_id=actor_id,
        action="create" if ensure else "delete",
        resource_kind="namespace",
        resource_id=None if ensure else namespace.id,
        namespace_id=None if ensure else namespace.id,
    )
    return await _recheck(platform, actor_id, (request,), code="AUTHORIZATION_DENIED")


async def reauthorize_agent(
    platform: Platform, *, actor_id: str, agent: Agent, target: Literal["stopped", "deleted"]
) -> Refusal | None:
    """Check the original actor of a stop (`operate`) or a deletion (`delete`) again; a denial is recorded."""
    gone = await _gone(platform, actor_id)
    if gone is not None:
        return gone
    request = AccessRequest(
        principal_id=actor_id,
        action="operate" if target == "stopped" else "delete",
        resource_kind="agent",
        resource_id=agent.id,
        namespace_id=agent.namespace_id,
    )
    return await _recheck(platform, actor_id, (request,), code="AUTHORIZATION_DENIED")


async def reauthorize_revision(
    platform: Platform, *, actor_id: str, agent: Agent, revision: AgentRevision
) -> Refusal | None:
    """Check actor and Agent principal of a deploy again, over what the revision froze; a denial is recorded."""
    gone = await _gone(platform, actor_id)
    if gone is not None:
        return gone
    if await platform.drivers.iam.lookup_identity(revision.service_principal_id) is None:
        return Refusal(
            code="AGENT_PRINCIPAL_NOT_AUTHORIZED", reason="the Agent's principal is gone"
        )

    def ask(action: str, kind: str, resource_id: str) -> AccessRequest:
        return AccessRequest(
            principal_id=actor_id,
            action=action,
            resource_kind=kind,
            resource_id=resource_id,
            namespace_id=revision.namespace_id,
        )

    references = [
        ask("operate", "credential_source", one.source_id) for one in revision.credential_sources
    ]
    references += [
        ask("operate", "secret", secret_id)
        for secret_id in sorted(set(revision.secret_bindings.values()))
    ]
    denied = await _recheck(
        platform,
        actor_id,
        [
            ask("deploy", "agent", agent.id),
            ask("read", "configuration", revision.configuration_id),
            *references,
        ],
        code="AUTHORIZATION_DENIED",
    )
    if denied is not None:
        return denied
    return await _recheck(
        platform,
        actor_id,
        [replace(one, principal_id=revision.service_principal_id) for one in references],
        code="AGENT_PRINCIPAL_NOT_AUTHORIZED",
    )


async def _everything(batch: Sequence[object]) -> Sequence[bool]:
    return [True] * len(batch)


async def list_keys(platform: Platform, actor: Actor, page: PageRequest) -> Page[ServiceKey]:
    """Return the service keys without their secrets (needs `installation:administer`), oldest first."""
    await administer(platform, actor)

    async def fetch(after: Key, count: int) -> Sequence[ServiceKey]:
        async with platform.db.read() as reader:
            return await service_keys.page(reader, after, count)

    return await collect(
        "service_keys", page, fetch, lambda one: (one.created_at.isoformat(), one.id), _everything
    )


def _shown(role: Role) -> Role:
    return rules.BUILT_IN.get(role.id, role) if role.built_in else role


async def list_roles(
    platform: Platform, actor: Actor, namespace: str | None, page: PageRequest
) -> Page[Role]:
    """Return the roles that can be bound in a scope: its own, and the built-in ones. Raises Forbidden, NotFound."""
    owner = await policy_scope(platform, actor, namespace)
    owner_id = owner.id if owner else None

    async def fetch(after: Key, count: int) -> Sequence[Role]:
        async with platform.db.read() as reader:
            return await iam.roles(reader, owner_id, after[1], count)

    found = await collect(f"roles:{owner_id}", page, fetch, lambda one: ("", one.id), _everything)
    return Page(tuple(_shown(one) for one in found.items), found.next_cursor)


async def get_role(platform: Platform, actor: Actor, namespace: str | None, role_id: str) -> Role:
    """Return a role of a scope or a built-in one. Raises Forbidden, NotFound."""
    owner = await policy_scope(platform, actor, namespace)
    async with platform.db.read() as reader:
        found = await iam.role(reader, role_id)
    if found is None or not (found.built_in or found.namespace_id == (owner.id if owner else None)):
        raise NotFound
    return _shown(found)


async def list_bindings(
    platform: Platform, actor: Actor, namespace: str | None, page: PageRequest
) -> Page[AccessBinding]:
    """Return the bindings of a Namespace, or the Installation-wide ones. Raises Forbidden, NotFound."""
    owner = await policy_scope(platform, actor, namespace)
    owner_id = owner.id if owner else None

    async def fetch(after: Key, count: int) -> Sequence[AccessBinding]:
        async with platform.db.read() as reader:
            return await iam.bindings(reader, owner_id, after[1], count)

    return await collect(f"bindings:{owner_id}", page, fetch, lambda one: ("", one.id), _everything)


async def get_binding(
    platform: Platform, actor: Actor, namespace: str | None, binding_id: str
) -> AccessBinding:
    """Return a binding of exactly that scope. Raises Forbidden, NotFound."""
    owner = await policy_scope(platform, actor, namespace)
    async with platform.db.read() as reader:
        found = await iam.binding(reader, binding_id)
    if found is None or found.namespace_id != (owner.id if owner else None):
        raise NotFound
    return found


async def list_service_principals(
    platform: Platform, actor: Actor, namespace: str | None, page: PageRequest
) -> Page[Identity]:
    """Return the ServicePrincipals of a scope, without those of Agents. Raises Forbidden, NotFound."""
    owner = await policy_scope(platform, actor, namespace)
    owner_id = owner.id if owner else None

    async def fetch(after: Key, count: int) -> Sequence[Identity]:
        async with platform.db.read() as reader:
            return await iam.service_principals(reader, owner_id, after[1], count)

    return await collect(
        f"service_principals:{owner_id}", page, fetch, lambda one: ("", one.id), _everything
    )


async def get_service_principal(
    platform: Platform, actor: Actor, namespace: str | None, principal_id: str
) -> Identity:
    """Return a ServicePrincipal that no Agent owns. Raises Forbidden, NotFound."""
    owner = await policy_scope(platform, actor, namespace)
    async with platform.db.read() as reader:
        found = await iam.identity(reader, principal_id)
    if (
        found is None
        or found.kind != "service_principal"
        or found.agent_id is not None
        or found.namespace_id != (owner.id if owner else None)
    ):
        raise NotFound
    return found
