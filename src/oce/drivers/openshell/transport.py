"""The service transport: how the control plane itself reaches a Harness through the gateway's service router.

A service has two addresses. The *advertised* URL is what the gateway names; its host selects the service. The *control* URL is the
configured gateway endpoint, which is what can be dialled (a port-forward, a loopback address): TCP and TLS go there and are verified
against that name, while `Host` carries the advertised one (reference/sandbox-openshell.md §10.2).

The WebSocket handshake comes first, by hand: a serving app-server must never get a plain request. Only after a refused upgrade is
the held-failure document read. Redirects are not followed; nothing larger than 16 KiB is read.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import h11

from oce.contracts.refusals import TransientDependency
from oce.drivers.openshell.app_server import Conversation
from oce.drivers.openshell.failures import Category, GatewayFailure, protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.domain.resources import Json
    from oce.domain.secret import SecretText
    from oce.drivers.openshell.backend import Backend

STATUS_PATH: Final = "/openclaw/runtime/status"
_TOKEN68: Final = re.compile(r"[A-Za-z0-9\-._~+/]{1,4096}=*")
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 §1.3
_MAX_BODY: Final = 16 * 1024
_SWITCHING: Final = 101
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """The advertised and the control origin of a service, both http or https."""

    advertised: str
    control: str

    @property
    def authority(self) -> str:
        """What goes into `Host`."""
        return urlsplit(self.advertised).netloc


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, bounded."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Whether the handshake was accepted, and whether the question (if one was asked) was answered with yes."""

    accepted: bool
    answer: bool


Question = Callable[[Conversation], Awaitable[bool]]


def service_url(backend: Backend, advertised: str) -> ServiceUrls:
    """Check an advertised URL and pair it with the control origin.

    Only an http(s) origin without path, query, fragment or credentials counts. Its port becomes the gateway endpoint's, whatever the
    gateway believes about its own. Raises GatewayFailure.
    """
    try:
        url = urlsplit(advertised)
        host, _ = url.hostname or "", url.port
    except ValueError:
        raise protocol("GetService", "a service URL that is none") from None
    plain = url.path in {"", "/"} and not url.query and not url.fragment and "@" not in url.netloc
    if url.scheme not in {"http", "https"} or not plain or not _HOST.fullmatch(host):
        raise protocol("GetService", "a service URL that is not an http(s) origin")
    if (url.scheme == "https") != backend.tls:
        raise protocol("GetService", "a service URL of another scheme than the endpoint")
    scheme = url.scheme
    return ServiceUrls(f"{scheme}://{host}:{backend.port}", f"{scheme}://{backend.authority}")


def websocket(origin: str) -> str:
    """Return the ws(s) form of an http(s) origin."""
    return "ws" + origin.removeprefix("http")


@lru_cache(maxsize=8)
def _context(root: str | None, changed: int) -> ssl.SSLContext:
    """Build a context once per content of the root file: a waiting pass looks many times a second."""
    del changed
    return ssl.create_default_context(cafile=root)


def trust_context(backend: Backend) -> ssl.SSLContext | None:
    """Return the TLS context of the control link, or None without TLS. Verification is never off."""
    if not backend.tls:
        return None
    root = backend.root_certificate_path
    try:
        return _context(root, 0 if root is None else Path(root).stat().st_mtime_ns)
    except (OSError, ssl.SSLError):
        raise GatewayFailure(
            "service", "an unusable root certificate", Category.UNAVAILABLE
        ) from None


async def upgrade(
    backend: Backend, urls: ServiceUrls, bearer: SecretText, question: Question | None = None
) -> Upgrade:
    """Try the authenticated WebSocket handshake; accepted only with a correct `Sec-WebSocket-Accept`.

    `question` is asked over the accepted connection. Raises TransientDependency when nobody answers.
    """
    key = base64.b64encode(os.urandom(16))
    headers = [
        ("Host", urls.authority),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key.decode()),
        ("Authorization", f"Bearer {token68(bearer)}"),
    ]
    accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())

    def accepted(reply: _Reply) -> bool:
        return (
            reply.status == _SWITCHING
            and reply.headers.get(b"sec-websocket-accept") == accept
            and reply.headers.get(b"upgrade", b"").lower() == b"websocket"
        )

    reply = await _exchange(
        backend, "/", headers, _After(accepted=accepted, question=question), want_body=False
    )
    return Upgrade(accepted(reply), reply.answer)


async def read_status(backend: Backend, urls: ServiceUrls, bearer: SecretText) -> Answer:
    """GET the held-failure document. Raises TransientDependency when nobody answers."""
    headers = [
        ("Host", urls.authority),
        ("Connection", "close"),
        ("Accept", "application/json"),
        ("Authorization", f"Bearer {token68(bearer)}"),
    ]
    reply = await _exchange(backend, STATUS_PATH, headers, want_body=True)
    raw = reply.headers.get(b"content-type", b"").decode("latin-1")
    return Answer(reply.status, raw.partition(";")[0].strip().lower(), reply.body)


def held_failure(answer: Answer) -> Json:
    """Return the failure object of a held-failure document, unvalidated, or None when it is none."""
    if answer.status != _OK or answer.content_type != "application/json":
        return None
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    found = document.get("runtimeFailure") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else None


def token68(bearer: SecretText) -> str:
    """Return the bearer's value if it can stand in a header (RFC 9110 token68). Raises GatewayFailure."""
    value = bearer.reveal()
    if not _TOKEN68.fullmatch(value):
        raise GatewayFailure("service", "an unusable transport token", Category.REFUSED)
    return value


@dataclass(slots=True)
class _Reply:
    status: int = 0
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    answer: bool = True


@dataclass(frozen=True, slots=True)
class _After:
    """What to ask over the connection once it is a WebSocket."""

    accepted: Callable[[_Reply], bool]
    question: Question | None


async def _exchange(
    backend: Backend,
    path: str,
    headers: list[tuple[str, str]],
    after: _After | None = None,
    *,
    want_body: bool,
) -> _Reply:
    """Send one GET to the control endpoint and read its answer, all within the Backend's timeout."""
    context = trust_context(backend)
    try:
        async with asyncio.timeout(backend.timeout_seconds):
            reader, writer = await asyncio.open_connection(
                backend.host,
                backend.port,
                ssl=context,
                server_hostname=backend.host if context is not None else None,
            )
            try:
                connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_BODY)
                request = h11.Request(method="GET", target=path, headers=headers)
                writer.write(connection.send(request) + connection.send(h11.EndOfMessage()))
                await writer.drain()
                reply = await _reply(connection, reader, want_body=want_body)
                if after is not None and after.question is not None and after.accepted(reply):
                    talk = Conversation(reader, writer, connection.trailing_data[0])
                    reply.answer = await after.question(talk)
                return reply
            finally:
                writer.close()
    except (OSError, TimeoutError, ssl.SSLError, h11.RemoteProtocolError) as error:
        raise TransientDependency(
            "SANDBOX_GATEWAY_UNAVAILABLE", f"service route: {type(error).__name__}"
        ) from error


async def _reply(
    connection: h11.Connection, reader: asyncio.StreamReader, *, want_body: bool
) -> _Reply:
    """Read up to the end of the answer, a switch of protocols, or one byte too many (then there is no body)."""
    reply = _Reply()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(8192))
        elif isinstance(event, h11.InformationalResponse | h11.Response):
            reply.status, reply.headers = event.status_code, dict(event.headers)
            if reply.status == _SWITCHING or (isinstance(event, h11.Response) and not want_body):
                return reply
        elif isinstance(event, h11.Data):
            reply.body += bytes(event.data)
            if len(reply.body) > _MAX_BODY:
                reply.body = b""
                return reply
        else:
            return reply
