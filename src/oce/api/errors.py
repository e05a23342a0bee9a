"""The one error shape of the HTTP API, and how everything that goes wrong becomes it.

`{"error": {code, message, details?, hint?, docs?}, "meta": {requestId}}` (reference/control-plane.md §2.2; hint and docs are ours and come
from the failure catalogue). A message never holds a submitted value. What is not a known refusal is `INTERNAL_ERROR`: the log has
its cause under the request id and the caller learns nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from oce.domain.failures import failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MESSAGE_MAX: Final = 256
DETAILS_MAX: Final = 32
POINTER_MAX: Final = 512
JSON_HEADERS: Final = {
    "cache-control": "no-store",
    "content-type": "application/json; charset=utf-8",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Where a request is wrong: a JSON Pointer, a detail code, and words for the message."""

    path: str
    code: str
    words: str = ""


class ApiError(Exception):
    """An answer other than success. `code` is a row of the failure catalogue, whose status is used unless `status` is given."""

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        problems: Sequence[Problem] = (),
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        row = failure(code)
        super().__init__(message or row.message)
        self.code = code
        self.message = clip(message or row.message, MESSAGE_MAX)
        self.problems = tuple(problems)[:DETAILS_MAX]
        self.status = status or row.http or 500
        self.headers = dict(headers or {})


def clip(text: str, limit: int) -> str:
    """Shorten a text to `limit` code points, showing that it was."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """Replace control and format characters of a submitted key so that it can stand in a message."""
    return "".join(character if character.isprintable() else "?" for character in text)


def pointer(parts: Sequence[str | int]) -> str:
    """Return the JSON Pointer (RFC 6901) of a path, cut at whole segments to the documented length."""
    path = ""
    for part in parts:
        segment = "/" + printable(str(part)).replace("~", "~0").replace("/", "~1")
        if len(path) + len(segment) > POINTER_MAX:
            break
        path += segment
    return path


def envelope(data: object, request_id: str, **meta: object) -> dict[str, Any]:
    """Return the success envelope; meta entries that are None are left out."""
    extra = {key: value for key, value in meta.items() if value is not None}
    return {"data": data, "meta": {"requestId": request_id, **extra}}


def error_document(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return the error envelope."""
    row = failure(error.code)
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.problems:
        body["details"] = [{"path": item.path, "code": item.code} for item in error.problems]
    if row.hint:
        body["hint"] = row.hint
    body["docs"] = row.docs
    return {"error": body, "meta": {"requestId": request_id}}


def json_response(
    document: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON answer with the headers every answer carries."""
    return Response(
        msgspec.json.encode(document),
        status_code=status,
        headers={**JSON_HEADERS, **(headers or {})},
    )


def error_response(error: ApiError, request_id: str) -> Response:
    """Return the error as an HTTP answer."""
    return json_response(error_document(error, request_id), error.status, error.headers)
