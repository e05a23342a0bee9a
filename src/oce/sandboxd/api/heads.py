"""Rules for requests to a Sandbox's service: whose host name is it, may it pass, which headers go on. Pure.

Facts: reference/openshell-gateway.md b.7. A service with bearer passthrough authenticates each request itself, so a browser's
cross-site request is its own to refuse; in front of any other service the gateway refuses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Headers: TypeAlias = "list[tuple[bytes, bytes]]"

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    }
)
_IDENTITY = frozenset(
    {
        b"cf-access-jwt-assertion",
        b"x-forwarded-client-cert",
        b"x-ssl-client-cert",
        b"x-client-cert",
    }
)
_ACCESS_COOKIES = frozenset({"CF_Authorization", "CF_AppSession"})
_BEARER = re.compile(rb"[Bb]earer [A-Za-z0-9._~+/-]+=*")
_PARTS = (2, 3)


@dataclass(frozen=True, slots=True)
class ServiceName:
    """What a host name addresses."""

    workspace: str
    sandbox: str
    service: str


class HeadError(Exception):
    """A request that does not go on: HTTP status and a text for the caller."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Return all values of a header (lower-case name)."""
    return [value for key, value in headers if key.lower() == name]


def host_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the request's host without its port. Raises HeadError 400 unless there is exactly one."""
    found = values(headers, b"host")
    if len(found) != 1:
        raise HeadError(400, "Bad request: exactly one Host is required")
    host = found[0].decode("latin-1").strip().lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def service_name(host: str, domain: str) -> ServiceName | None:
    """Parse `workspace--sandbox[--service].domain`."""
    label, dot, rest = host.rstrip(".").partition(".")
    parts = label.split("--")
    if not dot or rest != domain or len(parts) not in _PARTS or not all(parts):
        return None
    return ServiceName(parts[0], parts[1], parts[2] if len(parts) == _PARTS[1] else "")


def check_bearer(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Accept no Authorization, or exactly one that is a bearer. Raises HeadError 400."""
    found = values(headers, b"authorization")
    if len(found) > 1 or (found and not _BEARER.fullmatch(found[0].strip())):
        raise HeadError(400, "Bad request: at most one Authorization with a bearer token")


def check_same_site(headers: Sequence[tuple[bytes, bytes]], host: str) -> None:
    """Refuse a browser's request from another site. Raises HeadError 403."""
    for origin in values(headers, b"origin"):
        if urlsplit(origin.decode("latin-1")).hostname != host:
            raise HeadError(403, "Cross-origin request refused")
    for site in values(headers, b"sec-fetch-site"):
        if site.strip().lower() not in {b"same-origin", b"none"}:
            raise HeadError(403, "Cross-origin request refused")


def is_websocket(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the request asks to become a WebSocket."""
    upgrade = {value.strip().lower() for value in values(headers, b"upgrade")}
    return upgrade == {b"websocket"} and b"upgrade" in _tokens(headers, b"connection")


def _tokens(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> set[bytes]:
    return {token.strip().lower() for value in values(headers, name) for token in value.split(b",")}


def forwarded(
    headers: Sequence[tuple[bytes, bytes]], *, port: int, bearer_passthrough: bool
) -> Headers:
    """Return the headers that go to the service (b.7)."""
    dropped = _HOP_BY_HOP | _IDENTITY | {b"host"} | _tokens(headers, b"connection")
    dropped -= {b"content-length", b"transfer-encoding"}
    if not bearer_passthrough:
        dropped |= {b"authorization"}
    else:
        dropped -= {b"authorization"}
    result: Headers = [(b"host", f"127.0.0.1:{port}".encode())]
    for key, value in headers:
        name = key.lower()
        if name in dropped:
            continue
        if name == b"cookie":
            kept = _cookies(value)
            if kept:
                result.append((key, kept))
            continue
        result.append((key, value))
    if is_websocket(headers):
        result += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    return result


def returned(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Return the headers of a service's answer that go back."""
    dropped = (_HOP_BY_HOP | _tokens(headers, b"connection")) - {
        b"content-length",
        b"transfer-encoding",
    }
    return [(key, value) for key, value in headers if key.lower() not in dropped]


def _cookies(value: bytes) -> bytes:
    pairs = [pair.strip() for pair in value.decode("latin-1").split(";")]
    kept = [pair for pair in pairs if pair and pair.partition("=")[0] not in _ACCESS_COOKIES]
    return "; ".join(kept).encode("latin-1")
