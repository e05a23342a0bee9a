"""The public HTTP application: `create_app(platform)`.

It composes routes, pipeline and OpenAPI document, and decides nothing itself. There is no interactive documentation page: it would
need scripts from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from oce.api.openapi import document_of
from oce.api.pipeline import Pipeline, not_routed
from oce.api.routes import access, agents, material, namespaces, policies

if TYPE_CHECKING:
    from oce.core.platform import Platform
    from oce.observability.metrics import HttpMetrics


def create_app(platform: Platform, *, metrics: HttpMetrics | None = None) -> FastAPI:
    """Return the ASGI application over a composed platform."""
    app = FastAPI(
        title="OpenClaw Enterprise",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.platform = platform
    for module in (namespaces, material, agents, policies, access):
        app.include_router(module.routes)
    app.add_exception_handler(HTTPException, not_routed)
    app.add_middleware(Pipeline, metrics=metrics)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = document_of(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's documented way to extend the document
    return app
