"""Routes of the Installation, Namespaces and Backends (reference/control-plane.md §6.1, §6.2)."""

from typing import Any

from starlette.responses import Response

from oce.api.parameters import (
    ChangeablePlatform,
    CurrentActor,
    CurrentPlatform,
    IdempotencyKey,
    Paging,
    PathReference,
    answer,
    answer_page,
    router,
)
from oce.api.render import (
    installation_view,
    namespace_view,
)
from oce.api.requests import NamespaceCreate
from oce.api.views import (
    BackendView,
    Envelope,
    InstallationView,
    NamespaceView,
)
from oce.core.installation import queries as installation_queries
from oce.core.namespaces import commands, queries

routes = router("Installation and Namespaces")


@routes.get("/installation", response_model=Envelope[InstallationView])
async def get_installation(platform: CurrentPlatform, actor: CurrentActor) -> Response:
    """Read the Installation and what its Drivers can admit."""
    found = await installation_queries.get(platform, actor)
    capabilities: dict[str, Any] = {
        "agentProvisioning": {"executionModes": list(found.execution_modes)},
        "harnesses": list(found.harnesses),
        "credentialSourceTypes": list(found.source_types),
        "liveNetworkPolicy": found.live_network_policy,
        "sandboxLogs": found.sandbox_logs,
    }
    return answer(actor, installation_view(found.installation, capabilities))


@routes.get("/backends", response_model=Envelope[list[BackendView]])
async def list_backends(platform: CurrentPlatform, actor: CurrentActor) -> Response:
    """List the configured Backends: id and type, never how they are reached."""
    found = await installation_queries.backends(platform, actor)
    return answer(actor, [BackendView(id=one, type=kind) for one, kind in found])


@routes.get("/namespaces", response_model=Envelope[list[NamespaceView]])
async def list_namespaces(platform: CurrentPlatform, actor: CurrentActor, page: Paging) -> Response:
    """List the Namespaces that the caller may read."""
    return answer_page(actor, await queries.list_page(platform, actor, page), namespace_view)


@routes.post("/namespaces", status_code=201, response_model=Envelope[NamespaceView])
async def create_namespace(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    body: NamespaceCreate,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a Namespace; it is `provisioning` until the worker has prepared it."""
    made = await commands.create(
        platform,
        actor,
        name=body.name,
        existing_namespace=body.existing_namespace,
        idempotency_key=idempotency_key,
    )
    return answer(actor, namespace_view(made), 201)


@routes.get("/namespaces/{namespace}", response_model=Envelope[NamespaceView])
async def get_namespace(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference
) -> Response:
    """Read a Namespace."""
    return answer(actor, namespace_view(await queries.get(platform, actor, namespace)))


@routes.delete("/namespaces/{namespace}", status_code=202, response_model=Envelope[NamespaceView])
async def delete_namespace(
    platform: ChangeablePlatform, actor: CurrentActor, namespace: PathReference
) -> Response:
    """Tear down an empty Namespace."""
    gone = await commands.delete(platform, actor, namespace)
    return answer(actor, namespace_view(gone), 202)
