"""The OpenAPI 3.1 document: what FastAPI derives, with the service key as the only way in and our error shape for every failure.

The errors are written in here instead of being declared on each route: FastAPI would build a validator for every pair of route and
status when the process starts, which took longer than everything else together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi.openapi.utils import get_openapi

from oce.api.views import ErrorEnvelope, RehearsedEnvelope

if TYPE_CHECKING:
    from fastapi import FastAPI


_SCHEMAS: Final = "#/components/schemas/"
ERRORS: Final = {
    400: "The request is not valid.",
    401: "The service key does not authenticate anybody.",
    403: "No grant allows this.",
    404: "There is no such resource here.",
    405: "This route does not answer that method.",
    409: "The resource's state does not allow this.",
    412: "The resource changed since it was read.",
    413: "The request body is too large.",
    415: "The request body must be JSON.",
    429: "Too many requests.",
    500: "Something went wrong inside the control plane.",
    501: "The selected Driver does not offer this.",
    503: "A dependency is away, or it is not known whether the request took effect.",
}
"""Every status besides success, for every route."""


def document_of(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application's routes."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version="3.1.0",
        summary="The control plane for sandboxed AI agents.",
        routes=app.routes,
    )
    components = document.setdefault("components", {})
    components["securitySchemes"] = {
        "serviceKey": {"type": "apiKey", "in": "header", "name": "x-api-key"}
    }
    document["security"] = [{"serviceKey": []}]
    schemas = components.setdefault("schemas", {})
    envelope = ErrorEnvelope.model_json_schema(ref_template=_SCHEMAS + "{model}")
    schemas.update(envelope.pop("$defs"))
    schemas["ErrorEnvelope"] = envelope
    rehearsed = RehearsedEnvelope.model_json_schema(ref_template=_SCHEMAS + "{model}")
    schemas.update(rehearsed.pop("$defs"))
    schemas["RehearsedEnvelope"] = rehearsed
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"].update(_error_responses())
            if any(item["name"] == "dryRun" for item in operation.get("parameters", ())):
                _add_rehearsed(operation["responses"])
    return dict(document)


def _add_rehearsed(responses: dict[str, Any]) -> None:
    """Let 200 be the answer to a dry run too."""
    found = responses.setdefault("200", {"description": "A dry run found nothing wrong."})
    media = found.setdefault("content", {}).setdefault("application/json", {})
    dry = {"$ref": f"{_SCHEMAS}RehearsedEnvelope"}
    media["schema"] = {"anyOf": [media["schema"], dry]} if "schema" in media else dry


def _error_responses() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}ErrorEnvelope"}}}
    return {
        str(status): {"description": text, "content": content} for status, text in ERRORS.items()
    }
