"""Routes of access: roles, bindings, service principals, service keys and the audit trail (reference/control-plane.md §4.3, §6.2, §6.5).

The same three collections exist under a Namespace and, as ours, under `/iam` for the whole Installation, where the built-in roles live.
"""

from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import Response

from oce.api.parameters import (
    ChangeablePlatform,
    CurrentActor,
    CurrentPlatform,
    Moment,
    Paging,
    PathReference,
    answer,
    answer_page,
    router,
)
from oce.api.render import (
    audit_view,
    binding_view,
    key_view,
    role_view,
    service_principal_view,
)
from oce.api.requests import BindingCreate, Empty, KeyCreate, OpaqueId, Reference, RoleCreate
from oce.api.views import (
    AuditEventView,
    BindingView,
    Envelope,
    KeyView,
    RevokedView,
    RoleView,
    ServicePrincipalView,
)
from oce.core.access import commands, queries
from oce.core.audit import queries as audit_queries
from oce.core.platform import Actor, Platform
from oce.domain.resources import Permission

routes = router("Access")
_NS = "/namespaces/{namespace}/iam"
_ALL = "/iam"


@routes.get(f"{_NS}/roles", response_model=Envelope[list[RoleView]])
async def list_namespace_roles(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, page: Paging
) -> Response:
    """List the roles of a Namespace."""
    return answer_page(actor, await queries.list_roles(platform, actor, namespace, page), role_view)


@routes.get(f"{_ALL}/roles", response_model=Envelope[list[RoleView]])
async def list_roles(platform: CurrentPlatform, actor: CurrentActor, page: Paging) -> Response:
    """List the Installation's roles with the built-in ones (ours)."""
    return answer_page(actor, await queries.list_roles(platform, actor, None, page), role_view)


@routes.post(f"{_NS}/roles", status_code=201, response_model=Envelope[RoleView])
async def create_role(
    platform: ChangeablePlatform, actor: CurrentActor, namespace: PathReference, body: RoleCreate
) -> Response:
    """Create an immutable role of a Namespace."""
    pairs = tuple(
        Permission(action=item.action, resource_kind=item.resource_kind)
        for item in body.permissions
    )
    made = await commands.create_role(platform, actor, namespace, name=body.name, permissions=pairs)
    return answer(actor, role_view(made), 201)


@routes.get(f"{_NS}/roles/{{role}}", response_model=Envelope[RoleView])
async def get_namespace_role(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, role: PathReference
) -> Response:
    """Read a role of a Namespace."""
    return answer(actor, role_view(await queries.get_role(platform, actor, namespace, role)))


@routes.get(f"{_ALL}/roles/{{role}}", response_model=Envelope[RoleView])
async def get_role(platform: CurrentPlatform, actor: CurrentActor, role: PathReference) -> Response:
    """Read an Installation-wide role (ours)."""
    return answer(actor, role_view(await queries.get_role(platform, actor, None, role)))


@routes.delete(f"{_NS}/roles/{{role}}", status_code=204)
async def delete_role(
    platform: ChangeablePlatform, actor: CurrentActor, namespace: PathReference, role: PathReference
) -> Response:
    """Delete a role that no binding uses."""
    await commands.delete_role(platform, actor, namespace, role)
    return Response(status_code=204)


async def _bind(
    platform: Platform, actor: Actor, namespace: str | None, body: BindingCreate
) -> Response:
    draft = commands.BindingDraft(
        subject_id=body.subject_id,
        role_id=body.role_id,
        resource_kind=body.resource_kind,
        resource_id=body.resource_id,
    )
    made = await commands.create_binding(platform, actor, namespace, draft)
    return answer(actor, binding_view(made), 201)


@routes.get(f"{_NS}/access-bindings", response_model=Envelope[list[BindingView]])
async def list_namespace_bindings(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, page: Paging
) -> Response:
    """List the bindings of a Namespace."""
    found = await queries.list_bindings(platform, actor, namespace, page)
    return answer_page(actor, found, binding_view)


@routes.get(f"{_ALL}/access-bindings", response_model=Envelope[list[BindingView]])
async def list_bindings(platform: CurrentPlatform, actor: CurrentActor, page: Paging) -> Response:
    """List the Installation-wide bindings (ours)."""
    found = await queries.list_bindings(platform, actor, None, page)
    return answer_page(actor, found, binding_view)


@routes.post(f"{_NS}/access-bindings", status_code=201, response_model=Envelope[BindingView])
async def create_namespace_binding(
    platform: ChangeablePlatform, actor: CurrentActor, namespace: PathReference, body: BindingCreate
) -> Response:
    """Bind a role to a resource, or (ours) a built-in role to the whole Namespace."""
    return await _bind(platform, actor, namespace, body)


@routes.post(f"{_ALL}/access-bindings", status_code=201, response_model=Envelope[BindingView])
async def create_binding(
    platform: ChangeablePlatform, actor: CurrentActor, body: BindingCreate
) -> Response:
    """Bind a built-in role to the whole Installation (ours)."""
    return await _bind(platform, actor, None, body)


@routes.get(f"{_NS}/access-bindings/{{binding}}", response_model=Envelope[BindingView])
async def get_namespace_binding(
    platform: CurrentPlatform,
    actor: CurrentActor,
    namespace: PathReference,
    binding: PathReference,
) -> Response:
    """Read a binding of a Namespace."""
    found = await queries.get_binding(platform, actor, namespace, binding)
    return answer(actor, binding_view(found))


@routes.get(f"{_ALL}/access-bindings/{{binding}}", response_model=Envelope[BindingView])
async def get_binding(
    platform: CurrentPlatform, actor: CurrentActor, binding: PathReference
) -> Response:
    """Read an Installation-wide binding (ours)."""
    found = await queries.get_binding(platform, actor, None, binding)
    return answer(actor, binding_view(found))


@routes.delete(f"{_NS}/access-bindings/{{binding}}", status_code=204)
async def delete_namespace_binding(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    binding: PathReference,
) -> Response:
    """Remove a binding of a Namespace."""
    await commands.delete_binding(platform, actor, namespace, binding)
    return Response(status_code=204)


@routes.delete(f"{_ALL}/access-bindings/{{binding}}", status_code=204)
async def delete_binding(
    platform: ChangeablePlatform, actor: CurrentActor, binding: PathReference
) -> Response:
    """Remove an Installation-wide binding (ours)."""
    await commands.delete_binding(platform, actor, None, binding)
    return Response(status_code=204)


@routes.get(f"{_NS}/service-principals", response_model=Envelope[list[ServicePrincipalView]])
async def list_namespace_principals(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, page: Paging
) -> Response:
    """List the ServicePrincipals of a Namespace, without those of Agents."""
    found = await queries.list_service_principals(platform, actor, namespace, page)
    return answer_page(actor, found, service_principal_view)


@routes.get(f"{_ALL}/service-principals", response_model=Envelope[list[ServicePrincipalView]])
async def list_principals(platform: CurrentPlatform, actor: CurrentActor, page: Paging) -> Response:
    """List the Installation-wide ServicePrincipals (ours)."""
    found = await queries.list_service_principals(platform, actor, None, page)
    return answer_page(actor, found, service_principal_view)


@routes.post(
    f"{_NS}/service-principals", status_code=201, response_model=Envelope[ServicePrincipalView]
)
async def create_namespace_principal(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    body: Empty | None = None,  # noqa: ARG001 # an empty object is allowed and says nothing
) -> Response:
    """Create a ServicePrincipal without grants."""
    made = await commands.create_service_principal(platform, actor, namespace)
    return answer(actor, service_principal_view(made), 201)


@routes.post(
    f"{_ALL}/service-principals", status_code=201, response_model=Envelope[ServicePrincipalView]
)
async def create_principal(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    body: Empty | None = None,  # noqa: ARG001 # an empty object is allowed and says nothing
) -> Response:
    """Create an Installation-wide ServicePrincipal without grants (ours)."""
    made = await commands.create_service_principal(platform, actor, None)
    return answer(actor, service_principal_view(made), 201)


@routes.get(
    f"{_NS}/service-principals/{{principal}}", response_model=Envelope[ServicePrincipalView]
)
async def get_namespace_principal(
    platform: CurrentPlatform,
    actor: CurrentActor,
    namespace: PathReference,
    principal: PathReference,
) -> Response:
    """Read a ServicePrincipal of a Namespace."""
    found = await queries.get_service_principal(platform, actor, namespace, principal)
    return answer(actor, service_principal_view(found))


@routes.get(
    f"{_ALL}/service-principals/{{principal}}", response_model=Envelope[ServicePrincipalView]
)
async def get_principal(
    platform: CurrentPlatform, actor: CurrentActor, principal: PathReference
) -> Response:
    """Read an Installation-wide ServicePrincipal (ours)."""
    found = await queries.get_service_principal(platform, actor, None, principal)
    return answer(actor, service_principal_view(found))


@routes.get("/api/auth/service-keys", response_model=Envelope[list[KeyView]])
async def list_keys(platform: CurrentPlatform, actor: CurrentActor, page: Paging) -> Response:
    """List service keys, never their secrets (ours)."""
    return answer_page(actor, await queries.list_keys(platform, actor, page), key_view)


@routes.post("/api/auth/service-keys", status_code=201, response_model=Envelope[KeyView])
async def create_key(
    platform: ChangeablePlatform, actor: CurrentActor, body: KeyCreate
) -> Response:
    """Issue a service key; its text is in this answer and nowhere else."""
    draft = commands.KeyDraft(
        service_principal_id=body.service_principal_id,
        name=body.name,
        namespace=body.namespace_id,
    )
    if body.expires_in is not None:
        draft = commands.KeyDraft(
            service_principal_id=body.service_principal_id,
            name=body.name,
            namespace=body.namespace_id,
            expires_in=body.expires_in,
        )
    issued = await commands.issue_key(platform, actor, draft)
    return answer(actor, key_view(issued.key, issued.text.reveal()), 201)


@routes.delete("/api/auth/service-keys/{key}", response_model=Envelope[RevokedView])
async def revoke_key(
    platform: ChangeablePlatform, actor: CurrentActor, key: PathReference
) -> Response:
    """Revoke a key; it is dead at once."""
    gone = await commands.revoke_key(platform, actor, key)
    return answer(actor, RevokedView(id=gone.id, revoked=True))


@routes.get("/audit", response_model=Envelope[list[AuditEventView]])
async def list_audit(
    platform: CurrentPlatform,
    actor: CurrentActor,
    page: Paging,
    namespace: Annotated[Reference | None, Query()] = None,
    actor_id: Annotated[OpaqueId | None, Query(alias="actorId")] = None,
    action: Annotated[OpaqueId | None, Query()] = None,
    resource_kind: Annotated[OpaqueId | None, Query(alias="resourceKind")] = None,
    resource_id: Annotated[OpaqueId | None, Query(alias="resourceId")] = None,
    outcome: Annotated[Literal["success", "denied", "failure"] | None, Query()] = None,
    since: Annotated[Moment | None, Query()] = None,
    until: Annotated[Moment | None, Query()] = None,
) -> Response:
    """List audit events, newest first (ours); needs `installation:administer`."""
    criteria = audit_queries.AuditFilter(
        namespace=namespace,
        actor_id=actor_id,
        action=action,
        resource_kind=resource_kind,
        resource_id=resource_id,
        outcome=outcome,
        since=since,
        until=until,
    )
    found = await audit_queries.list_page(platform, actor, criteria, page)
    return answer_page(actor, found, audit_view)
