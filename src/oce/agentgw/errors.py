"""What a caller is told when something is refused: the one error shape of design §6.

``{"error": {"code", "message", "hint"?}, "meta": {"requestId"}}``. The codes are those of the platform's failure catalogue, which this
room may not import; the sentences say nothing about whether a resource exists until the caller is allowed to know.
"""

from __future__ import annotations

import json
import uuid


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a crash
    """An answer other than success; ``status`` is the HTTP status."""

    def __init__(self, status: int, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint

    def body(self, request_id: str) -> bytes:
        """Render the error document."""
        error = {"code": self.code, "message": self.message}
        if self.hint is not None:
            error["hint"] = self.hint
        return json.dumps({"error": error, "meta": {"requestId": request_id}}).encode()


class Starting(Refusal):
    """Nothing listens behind the provider now: the Harness starts (again), or it is lost; only time tells."""

    def __init__(self) -> None:
        super().__init__(
            503,
            "DEPENDENCY_UNAVAILABLE",
            "The Agent's Harness does not answer yet.",
            "`occ agent harness-status NAME` shows what its Sandbox does; deploy it again if it is lost.",
        )


def new_request_id() -> str:
    """Make the identifier that an answer carries in ``meta`` and ``x-request-id``."""
    return f"req_{uuid.uuid4()}"


def unauthenticated() -> Refusal:
    """Say that no usable service key came."""
    return Refusal(
        401,
        "UNAUTHENTICATED",
        "A valid service key is needed.",
        "Send it in the header `x-api-key`; `authorization` is not used here.",
    )


def forbidden() -> Refusal:
    """Say that the key is known but may not use this Agent."""
    return Refusal(
        403,
        "FORBIDDEN",
        "This key may not use this Agent.",
        "Bind a role with `agent:use` to the key's principal.",
    )


def origin_refused() -> Refusal:
    """Refuse a browser's cross-site request."""
    return Refusal(403, "FORBIDDEN", "Requests from web pages are not accepted here.")


def not_found(what: str = "resource") -> Refusal:
    """Say that nothing is there, or nothing this caller may see."""
    return Refusal(404, "NOT_FOUND", f"The {what} does not exist.")


def invalid(message: str) -> Refusal:
    """Say what is malformed."""
    return Refusal(400, "INVALID_REQUEST", message)


def unavailable(message: str, hint: str | None = None) -> Refusal:
    """Say that something behind the gateway does not answer."""
    return Refusal(503, "DEPENDENCY_UNAVAILABLE", message, hint)


def not_serving() -> Refusal:
    """Say that the Agent exists but no revision of it is routed."""
    return unavailable(
        "No revision of this Agent is serving.",
        "Deploy it, or look at `occ agent deployment-status`.",
    )


def not_answering() -> Refusal:
    """Say that the Harness is there and does not take this connection, as one that holds a startup failure."""
    return unavailable(
        "The Agent's Harness does not answer.",
        "`occ agent logs NAME` shows what it said; deploy it again when that is mended.",
    )
