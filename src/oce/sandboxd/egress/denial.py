"""What a client inside the Sandbox is told when something is refused: one JSON shape, with the next step in a sentence.

Carries host, port, program, method and path; never a query, a header or a value. Source: reference/openshell-gateway.md c.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from oce.policy.explain import addition_for, next_step

if TYPE_CHECKING:
    from oce.policy.decide import Connection, Request
    from oce.policy.model import Verdict

_REASONS = {
    400: b"Bad Request",
    403: b"Forbidden",
    417: b"Expectation Failed",
    421: b"Misdirected Request",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """A refusal: HTTP status, stable code, sentence, and for policy denials where it was decided."""

    status: int
    error: str
    detail: str
    rule: str = "-"
    next_step: str = ""
    layer: str = ""
    method: str = ""
    path: str = ""
    host: str = ""
    port: int = 0
    binary: str = ""


def policy_denial(verdict: Verdict, connection: Connection, request: Request | None) -> Denial:
    """Return the refusal for a verdict."""
    return Denial(
        status=403,
        error="policy_denied",
        detail=verdict.reason,
        rule=verdict.rule,
        next_step=next_step(verdict, addition_for(verdict, connection, request)),
        layer="l7" if request else "l4",
        method=request.method if request else "",
        path=request.path if request else "",
        host=connection.host,
        port=connection.port,
        binary=", ".join(connection.binaries),
    )


def render(denial: Denial) -> bytes:
    """Return the whole response; it closes the connection."""
    document: dict[str, object] = {
        "error": denial.error,
        "message": denial.detail,
        "detail": denial.detail,
        "policy": denial.rule,
        "rule": denial.rule,
        "layer": denial.layer,
        "protocol": "http",
        "method": denial.method,
        "path": denial.path,
        "host": denial.host,
        "port": denial.port,
        "binary": denial.binary,
        "next_steps": [denial.next_step] if denial.next_step else [],
    }
    body = msgspec.json.encode({k: v for k, v in document.items() if v not in ("", 0, [])})
    policy = denial.rule.encode("ascii", "replace") if denial.rule != "-" else b""
    head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (
        denial.status,
        _REASONS.get(denial.status, b"Refused"),
        len(body),
    )
    if policy:
        head += b"X-OpenShell-Policy: " + policy + b"\r\n"
    return head + b"Connection: close\r\n\r\n" + body
