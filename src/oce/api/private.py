"""The private listener: health, metrics, and the question that the Agent Gateway asks.

It binds to loopback or a Pod's own address and is never routed to from outside. `/internal/agent-access` has its own bearer token, read
from a 0600 file; the comparison is constant-time and the 401 says nothing. This is not the public API: nothing here is versioned.
"""

import hmac
from typing import Annotated, Literal

from fastapi import FastAPI, Header, Request
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.responses import Response
from typing_extensions import TypedDict

from oce.api.errors import ApiError, envelope, json_response
from oce.api.parameters import CurrentPlatform, router
from oce.api.pipeline import Pipeline, not_routed
from oce.api.requests import AgentAccessCheck
from oce.api.views import Envelope
from oce.core.access.queries import agent_access
from oce.core.platform import Platform
from oce.domain.secret import SecretText
from oce.observability import metrics as metric_families
from oce.store.errors import StoreError

routes = router("private")
_PUBLIC = {"x-public": True}


class Allowed(TypedDict):
    """The key may use the Agent."""

    allowed: Literal[True]
    principalId: str
    namespaceId: str
    agentId: str


class Denied(TypedDict):
    """The key may not; the Agent Gateway answers with `status` and `code`."""

    allowed: Literal[False]
    status: int
    code: str
    message: str


@routes.get("/healthz", openapi_extra=_PUBLIC)
async def health() -> Response:
    """Answer as long as the process serves."""
    return Response("ok\n", media_type="text/plain")


@routes.get("/readyz", openapi_extra=_PUBLIC)
async def ready(platform: CurrentPlatform) -> Response:
    """Answer 200 only when the database answered just now."""
    try:
        await platform.db.ping()
    except StoreError:
        return Response("database unavailable\n", status_code=503, media_type="text/plain")
    return Response("ready\n", media_type="text/plain")


@routes.get("/metrics", openapi_extra=_PUBLIC)
async def metrics(request: Request) -> Response:
    """Answer in Prometheus' text format."""
    return Response(
        metric_families.render(request.app.state.registry),
        media_type=metric_families.CONTENT_TYPE,
        headers={"cache-control": "no-store"},
    )


def _check_token(expected: SecretText, authorization: str | None) -> None:
    scheme, _, given = (authorization or "").partition(" ")
    matches = hmac.compare_digest(given.strip().encode(), expected.reveal().encode())
    if scheme.lower() != "bearer" or not matches:
        raise ApiError("UNAUTHENTICATED", "The internal token is missing or wrong.")


@routes.post(
    "/internal/agent-access",
    openapi_extra=_PUBLIC,
    response_model=Envelope[Allowed | Denied],
)
async def check_agent_access(
    request: Request,
    platform: CurrentPlatform,
    body: AgentAccessCheck,
    authorization: Annotated[str | None, Header()] = None,
) -> Response:
    """Tell the Agent Gateway whether a service key may use an Agent."""
    _check_token(request.app.state.internal_token, authorization)
    found = await agent_access(platform, SecretText(body.api_key), body.namespace, body.agent)
    answer: Allowed | Denied
    if found.allowed:
        answer = Allowed(
            allowed=True,
            principalId=found.principal_id or "",
            namespaceId=found.namespace_id or "",
            agentId=found.agent_id or "",
        )
    else:
        answer = Denied(allowed=False, status=found.status, code=found.code, message=found.message)
    return json_response(envelope(answer, request.state.request_id))


def create_private_app(
    platform: Platform, internal_token: SecretText, registry: CollectorRegistry
) -> FastAPI:
    """Return the private ASGI application; raises ValueError for a token too short to protect anything."""
    if len(internal_token) < 32:  # noqa: PLR2004 # 128 bits in hex
        raise ValueError("the internal token has at least 32 characters")
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.platform = platform
    app.state.internal_token = internal_token
    app.state.registry = registry
    app.include_router(routes)
    app.add_exception_handler(HTTPException, not_routed)
    app.add_middleware(Pipeline, accepts_authorization=True)
    return app
