"""Dialling a Harness: TCP to where the route says, TLS and Host as its URL says, the transport token as bearer.

The client's own WebSocket key is passed on, so that the Harness's accept value is the client's too and the frames can be spliced
unchanged. No extension is offered: compressed frames could not be looked at.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ssl
from typing import TYPE_CHECKING, cast

import h11

from oce.agentgw import errors, log

if TYPE_CHECKING:
    from collections.abc import Callable

    from oce.agentgw.routes import Target

DIAL_SECONDS = 10.0
MAX_HEAD_BYTES = 16 * 1024
_ACCEPT_SUFFIX = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 §1.3
_SWITCHING_PROTOCOLS = 101
STARTING_STATUSES = frozenset((412, 502, 503))
"""What a provider answers while nothing listens behind its service (reference/openshell-gateway.md: not ready, not reachable)."""


class NotListeningError(ConnectionError):
    """The provider answers that nothing listens behind it."""


def accept_value(key: str) -> str:
    """Return the ``Sec-WebSocket-Accept`` of a key (RFC 6455 §4.2.2)."""
    digest = hashlib.sha1((key + _ACCEPT_SUFFIX).encode(), usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


class TrustStore:
    """TLS contexts by what they trust. A bundle is trusted alone, never beside the system's authorities."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[str | None, str | None], ssl.SSLContext] = {}

    def context(self, target: Target) -> ssl.SSLContext | None:
        """Return the context for a target, None for clear text on loopback. Raises OSError (ssl.SSLError)."""
        if not target.tls:
            return None
        key = (target.ca_file, target.ca_bundle)
        if key not in self._contexts:
            if len(self._contexts) >= 256:  # noqa: PLR2004 - a bound, not a tuning
                self._contexts.clear()
            context = ssl.create_default_context(cafile=target.ca_file, cadata=target.ca_bundle)
            context.set_alpn_protocols(["http/1.1"])
            self._contexts[key] = context
        return self._contexts[key]


class UpstreamProtocol(asyncio.Protocol):
    """The Harness's side of a connection: first the handshake, then whatever :meth:`splice` is given."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.switched: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._http = h11.Connection(our_role=h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._on_data: Callable[[bytes], None] | None = None
        self._on_lost: Callable[[], None] | None = None
        self._on_pressure: Callable[[bool], None] | None = None
        self._accept = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        # uvloop's TLS transport is one in deed, not by inheritance.
        stream = cast("asyncio.Transport", transport)
        self.transport = stream

    def ask(self, target: Target, key: str) -> None:
        """Send the upgrade request."""
        self._accept = accept_value(key)
        request = h11.Request(
            method="GET",
            target=target.path,
            headers=[
                ("host", target.host_header),
                ("upgrade", "websocket"),
                ("connection", "upgrade"),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", key),
                ("authorization", f"Bearer {target.token}"),
            ],
        )
        data = self._http.send(request) + self._http.send(h11.EndOfMessage())
        if self.transport is not None:
            self.transport.write(data)

    def splice(
        self,
        on_data: Callable[[bytes], None],
        on_lost: Callable[[], None],
        on_pressure: Callable[[bool], None],
    ) -> None:
        """From now on hand everything to the relay."""
        self._on_data, self._on_lost, self._on_pressure = on_data, on_lost, on_pressure

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the relay, or read the answer to the upgrade."""
        if self._on_data is not None:
            self._on_data(data)
        elif not self.switched.done():
            self._read_answer(data)

    def _read_answer(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError:
            self.switched.set_exception(ConnectionError("malformed"))
            return
        if event is h11.NEED_DATA:
            return
        if not isinstance(event, h11.InformationalResponse | h11.Response):
            self.switched.set_exception(ConnectionError("closed"))
            return
        accept = dict(event.headers).get(b"sec-websocket-accept", b"").decode("latin-1")
        if event.status_code in STARTING_STATUSES:
            self.switched.set_exception(NotListeningError(f"status-{event.status_code}"))
        elif event.status_code != _SWITCHING_PROTOCOLS:
            self.switched.set_exception(ConnectionError(f"status-{event.status_code}"))
        elif not hmac.compare_digest(accept.encode(), self._accept.encode()):
            self.switched.set_exception(ConnectionError("accept"))
        else:
            self.switched.set_result(self._http.trailing_data[0])
            if self.transport is not None:
                self.transport.pause_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell whoever waits."""
        if not self.switched.done():
            self.switched.set_exception(ConnectionError("closed"))
        if self._on_lost is not None:
            self._on_lost()

    def pause_writing(self) -> None:
        """Hold the client back."""
        if self._on_pressure is not None:
            self._on_pressure(True)  # noqa: FBT003 - the one meaning of the callback

    def resume_writing(self) -> None:
        """Let the client go on."""
        if self._on_pressure is not None:
            self._on_pressure(False)  # noqa: FBT003 - the same


async def dial(target: Target, key: str, trust: TrustStore) -> tuple[UpstreamProtocol, bytes]:
    """Connect and upgrade; return the protocol (reading paused) and bytes that came early. Raises Starting, Refusal 503."""
    loop = asyncio.get_running_loop()
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            context = trust.context(target)
            transport, protocol = await loop.create_connection(
                UpstreamProtocol,
                target.connect[0],
                target.connect[1],
                ssl=context,
                server_hostname=None if context is None else target.host,
            )
            protocol.ask(target, key)
            return protocol, await protocol.switched
    except BaseException as error:
        if transport is not None:
            transport.abort()
        if not isinstance(
            error, OSError
        ):  # a cancellation; TimeoutError and ssl.SSLError are OSErrors
            raise
        log.event("gateway.dial_failed", kind=type(error).__name__, detail=_reason(error))
        if isinstance(error, NotListeningError | ConnectionRefusedError):
            raise errors.Starting from error
        raise errors.not_answering() from error


def _reason(error: BaseException) -> str | None:
    """Return a fixed word about a failure, never a peer's text."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "certificate"
    if type(error) in {ConnectionError, NotListeningError}:
        return str(error)
    return None
