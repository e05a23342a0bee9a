"""The OpenAPI 3.1 document: what FastAPI derives, with the service key as the only way in and nothing internal in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi

if TYPE_CHECKING:
    from fastapi import FastAPI


def document_of(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application's routes."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version="3.1.0",
        summary="The control plane for sandboxed AI agents.",
        routes=app.routes,
    )
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["serviceKey"] = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    document["security"] = [{"serviceKey": []}]
    for operations in document["paths"].values():
        for operation in operations.values():
            operation.get("responses", {}).pop("422", None)
    for unused in ("HTTPValidationError", "ValidationError"):
        document["components"].get("schemas", {}).pop(unused, None)
    return dict(document)
