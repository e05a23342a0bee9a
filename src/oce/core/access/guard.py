"""Asking for permission: what every use case does first.

A denial is recorded before it is answered. Nothing here looks at whether the resource exists, so that 403 tells nothing about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.contracts.iam import AccessDecision, AccessRequest
from oce.core.audit import rules as audit_rules
from oce.core.errors import Forbidden
from oce.store import audit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.core.platform import Actor, Platform

AREAS = {
    "installation": "installation",
    "namespace": "namespaces",
    "configuration": "configurations",
    "secret": "secrets",
    "credential_source": "credential_sources",
    "agent": "agents",
    "agent_revision": "agent_revisions",
}
"""Kind to the area in an audit action."""


def key_reaches(actor: Actor, kind: str, resource_id: str | None, namespace_id: str | None) -> bool:
    """Tell whether the actor's key may be used here at all: a Namespace key stays in its Namespace."""
    if actor.key_namespace_id is None:
        return True
    where = resource_id if kind == "namespace" and resource_id is not None else namespace_id
    return where == actor.key_namespace_id and not (kind == "namespace" and resource_id is None)


async def require(
    platform: Platform,
    actor: Actor,
    action: str,
    kind: str,
    resource_id: str | None,
    namespace_id: str | None,
) -> AccessDecision:
    """Return the decision that allows this. Raises Forbidden (after recording it), StoreError."""
    request = AccessRequest(
        principal_id=actor.principal_id,
        action=action,
        resource_kind=kind,
        resource_id=resource_id,
        namespace_id=namespace_id,
    )
    iam = platform.drivers.iam
    if key_reaches(actor, kind, resource_id, namespace_id):
        decision = await iam.authorize(request)
    else:
        decision = AccessDecision(
            allowed=False, reason="the key is for another Namespace", driver_id=iam.id
        )
    if decision.allowed:
        return decision
    await record_denial(platform, actor, request, decision)
    raise Forbidden


async def require_all(platform: Platform, actor: Actor, requests: Sequence[AccessRequest]) -> None:
    """Require every request of the actor, decided from one snapshot. Raises Forbidden for the first denied one."""
    if not requests:
        return
    decisions = await platform.drivers.iam.authorize_many(requests)
    for request, decision in zip(requests, decisions, strict=True):
        if not decision.allowed:
            await record_denial(platform, actor, request, decision)
            raise Forbidden


async def allowed_each(
    platform: Platform,
    actor: Actor,
    action: str,
    kind: str,
    targets: Sequence[tuple[str, str | None]],
) -> list[bool]:
    """Tell for each (resource id, namespace id) whether the actor may; nothing is recorded."""
    if not targets:
        return []
    requests = [
        AccessRequest(
            principal_id=actor.principal_id,
            action=action,
            resource_kind=kind,
            resource_id=resource_id,
            namespace_id=namespace_id,
        )
        for resource_id, namespace_id in targets
    ]
    decisions = await platform.drivers.iam.authorize_many(requests)
    return [
        decision.allowed and key_reaches(actor, kind, resource_id, namespace_id)
        for decision, (resource_id, namespace_id) in zip(decisions, targets, strict=True)
    ]


async def record_denial(
    platform: Platform,
    actor: Actor,
    request: AccessRequest,
    decision: AccessDecision,
    *,
    reason_code: str = "FORBIDDEN",
) -> None:
    """Append the denial in a transaction of its own; when it cannot be written, that failure is the answer."""
    event = audit_rules.denial(
        installation_id=platform.installation_id,
        at=platform.clock.now(),
        request=request,
        decision=decision,
        action=f"openclaw.{AREAS[request.resource_kind]}.{request.action}",
        request_id=actor.request_id,
        reason_code=reason_code,
        initiating_actor_id=actor.principal_id,
    )
    async with (platform.denials or platform.db).transact() as tx:
        await audit.append(tx, event)
