"""What every request passes, in this order, whatever the route.

1. `Pipeline` (around the whole application): a request id, the answer's headers, the completed log line and the metrics; an
   `Authorization` header is refused here, cookies are never read.
2. `StrictRoute` (around each route): path text, authentication by `x-api-key`, closed query, media type, body size, strict JSON;
   then the schema; then the handler. Whatever is raised becomes the one error shape.

Authentication comes before everything that looks at the request's content, so that a stranger learns nothing from a 400. The order
of the later checks is part of the API's behaviour and has a test.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request

from oce.api import documents, problems
from oce.api.errors import (
    ApiError,
    Problem,
    envelope,
    error_response,
    json_response,
    pointer,
)
from oce.api.refusals import translate
from oce.core.access.queries import authenticate
from oce.core.rehearsal import Rehearsed
from oce.domain.ids import IdKind, new_id
from oce.domain.secret import SecretText
from oce.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from fastapi.dependencies.models import Dependant
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from oce.core.platform import Platform
    from oce.observability.metrics import HttpMetrics

BODY_MAX: Final = 1_048_576
AGENT_BODY_MAX: Final = 448 * 1024
_BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Pipeline:
    """The outermost ASGI layer."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: HttpMetrics | None = None,
        *,
        accepts_authorization: bool = False,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._accepts_authorization = accepts_authorization

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; lifespan events pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = new_id(IdKind.REQUEST)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        try:
            if not self._accepts_authorization and any(
                name == b"authorization" for name, _ in scope["headers"]
            ):
                refusal = error_response(ApiError("UNAUTHENTICATED"), request_id)
                await refusal(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        finally:
            self._finished(scope, request_id, status, time.perf_counter() - started)

    def _finished(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        get_logger().info(
            "http.completed",
            request_id=request_id,
            route=route,
            method=method,
            status=status,
            duration_ms=seconds * 1000,
            **scope["state"].get("log", {}),
        )
        if self._metrics is not None:
            self._metrics.finished(
                route=route, method=method, status=status or 500, seconds=seconds
            )


class StrictRequest(Request):
    """A request whose body is bounded and whose JSON is strict."""

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        super().__init__(scope, receive)
        self._limit = limit
        self._raw: bytes | None = None
        self.document: Any = None

    async def body(self) -> bytes:
        """Return the body. Raises ApiError PAYLOAD_TOO_LARGE as soon as that is known."""
        if self._raw is None:
            declared = self.headers.get("content-length", "")
            if declared.isdecimal() and int(declared) > self._limit:
                raise self._too_large()
            chunks: list[bytes] = []
            size = 0
            async for chunk in self.stream():
                size += len(chunk)
                if size > self._limit:
                    raise self._too_large()
                chunks.append(chunk)
            self._raw = b"".join(chunks)
        return self._raw

    def _too_large(self) -> ApiError:
        return ApiError(
            "PAYLOAD_TOO_LARGE",
            f"The request body may have at most {self._limit} bytes on this route.",
            headers={"connection": "close"},
        )

    async def json(self) -> Any:  # noqa: ANN401 # the base class says so
        """Return the document that `StrictRoute` parsed."""
        return self.document

    @property
    def request_id(self) -> str:
        """The id that the answer carries."""
        return str(self.state.request_id)


class StrictRoute(APIRoute):
    """A route behind the documented checks. `openapi_extra={"x-body-limit": n}` sets another body limit; `x-public` skips the key."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler wrapped in the checks."""
        inner = super().get_route_handler()
        query_names = frozenset(_query_names(self.dependant))
        takes_body = self.body_field is not None
        needs_body = takes_body and bool(
            self.body_field and self.body_field.field_info.is_required()
        )
        extra = self.openapi_extra or {}
        limit = int(extra.get("x-body-limit", BODY_MAX))

        async def handle(given: Request) -> Response:
            request = StrictRequest(given.scope, given.receive, limit)
            try:
                _check_path(request)
                if not extra.get("x-public"):
                    await _authenticate(request)
                _check_query(request, query_names)
                await _read_body(request, takes_body=takes_body, needs_body=needs_body)
                return await inner(request)
            except Rehearsed:
                return json_response(envelope(None, request.request_id, dryRun=True))
            except RequestValidationError as error:
                refusal = problems.from_pydantic(error.errors(), request.document)
            except Exception as error:  # noqa: BLE001 # the edge: whatever it is gets the one error shape
                refusal = translate(error)
                if refusal.code == "INTERNAL_ERROR":
                    get_logger().error(
                        "http.handler-failed", request_id=request.request_id, exc_info=error
                    )
            given.state.log = {"code": refusal.code, **getattr(given.state, "log", {})}
            return error_response(refusal, request.request_id)

        return handle


def _query_names(dependant: Dependant) -> Iterator[str]:
    for field in dependant.query_params:
        yield field.alias
    for inner in dependant.dependencies:
        yield from _query_names(inner)


def _check_path(request: StrictRequest) -> None:
    for name, value in request.path_params.items():
        problem = documents.text_problem(str(value))
        if problem is not None:
            raise documents.invalid(pointer(("path", name)), *problem)


async def _authenticate(request: StrictRequest) -> None:
    keys = request.headers.getlist("x-api-key")
    if len(keys) != 1:
        raise ApiError("UNAUTHENTICATED")
    platform: Platform = request.app.state.platform
    request.state.actor = await authenticate(
        platform, SecretText(keys[0]), request_id=request.request_id
    )


def _check_query(request: StrictRequest, allowed: frozenset[str]) -> None:
    found: list[Problem] = []
    for name in request.query_params:
        where = pointer(("query", name))
        if name not in allowed:
            found.append(Problem(where, "UNKNOWN_FIELD", "is not a query parameter here"))
        elif len(request.query_params.getlist(name)) > 1:
            found.append(Problem(where, "INVALID_VALUE", "is given twice"))
        else:
            problem = documents.text_problem(request.query_params[name])
            if problem is not None:
                found.append(Problem(where, *problem))
    if found:
        raise problems.refuse(found)


async def _read_body(request: StrictRequest, *, takes_body: bool, needs_body: bool) -> None:
    raw = await request.body()
    if not raw:
        if needs_body:
            raise documents.invalid("", "REQUIRED", "a JSON object is required")
        return
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method in _BODY_METHODS and media != "application/json":
        raise ApiError("UNSUPPORTED_MEDIA_TYPE")
    if not takes_body:
        raise documents.invalid("", "UNKNOWN_FIELD", "this operation takes no body")
    request.document = documents.parse(raw)


async def not_routed(request: Request, error: Exception) -> Response:
    """Answer what no route took: 404 and 405 in the one error shape."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(status, "INTERNAL_ERROR")
    message = "There is no such route." if code == "NOT_FOUND" else None
    refusal = ApiError(code, message, headers=headers)
    return error_response(refusal, str(request.state.request_id))
