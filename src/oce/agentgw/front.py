"""The HTTP side of the Agent Gateway: one small protocol over h11, so that an upgraded socket can be spliced without a framework.

It parses requests, bounds what they may cost (head, body, time), and gives each to one handler as an :class:`Exchange`. What a path
means is decided in :mod:`service`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import h11

from oce.agentgw import log
from oce.agentgw.errors import Refusal, new_request_id

MAX_HEAD_BYTES = 16 * 1024
HEAD_SECONDS = 15.0
KEEP_ALIVE_SECONDS = 60.0
_JSON = ("content-type", "application/json; charset=utf-8")
_FIXED = [("cache-control", "no-store"), ("x-content-type-options", "nosniff")]


class Spliced(Protocol):
    """What takes over an upgraded connection."""

    def client_data(self, data: bytes) -> None:
        """Take bytes of the client."""

    def client_lost(self) -> None:
        """Notice that the client left."""

    def hold_harness(self, hold: bool) -> None:
        """Stop or resume the other side."""


class Exchange:
    """One request and the means to answer it."""

    def __init__(self, front: Front, request: h11.Request, body: bytes) -> None:
        self._front = front
        self.request_id = new_request_id()
        self.method = request.method.decode("ascii")
        self.target = request.target.decode("latin-1")
        self.body = body
        self.headers: dict[str, list[str]] = {}
        for name, value in request.headers:
            self.headers.setdefault(name.decode("ascii"), []).append(value.decode("latin-1"))

    def header(self, name: str) -> str:
        """Return a header's only value; empty when it is absent or given twice."""
        values = self.headers.get(name, [])
        return values[0] if len(values) == 1 else ""

    def refuse(self, refusal: Refusal) -> None:
        """Answer with the error shape."""
        self._front.send_json(refusal.status, refusal.body(self.request_id), self.request_id)

    def answer(self, document: object) -> None:
        """Answer 200 with a JSON document."""
        self._front.send_json(200, json.dumps(document).encode(), self.request_id)

    def start_events(self) -> None:
        """Begin an event stream."""
        self._front.send_head(
            200, [("content-type", "text/event-stream"), ("x-request-id", self.request_id)]
        )

    async def send_event(self, name: str, data: object) -> None:
        """Send one event and wait until the client takes it."""
        await self._front.send_body(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())

    async def send_comment(self) -> None:
        """Keep an idle event stream open."""
        await self._front.send_body(b":\n\n")

    def end_events(self) -> None:
        """Complete the event stream."""
        self._front.send_end()

    @property
    def client(self) -> asyncio.Transport:
        """The client's transport, for splicing."""
        return self._front.socket

    def upgrade(self, accept: str, spliced: Spliced) -> None:
        """Answer 101 and hand the connection over."""
        self._front.upgrade(accept, spliced)


Handler = Callable[[Exchange], Awaitable[None]]


class Front(asyncio.Protocol):
    """One client connection."""

    def __init__(
        self, handler: Handler, open_fronts: set[Front], *, limit: int, max_body: int
    ) -> None:
        self._handler = handler
        self._fronts = open_fronts
        self._limit = limit
        self._max_body = max_body
        self._http = h11.Connection(our_role=h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._spliced: Spliced | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def socket(self) -> asyncio.Transport:
        """The transport; only between connection_made and connection_lost."""
        if self._transport is None:
            raise ConnectionResetError
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or drop it when there are too many."""
        # uvloop's TLS transport is one in deed, not by inheritance.
        stream = cast("asyncio.Transport", transport)
        self._transport = stream
        self._fronts.add(self)
        if len(self._fronts) > self._limit:
            log.event("gateway.connection_limit", limit=self._limit)
            stream.abort()
            return
        self._expect(HEAD_SECONDS)

    def _expect(self, seconds: float) -> None:
        """Close the connection unless a whole request arrives in time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.stop)

    def data_received(self, data: bytes) -> None:
        """Parse HTTP, or pass bytes on once upgraded."""
        if self._spliced is not None:
            self._spliced.client_data(data)
            return
        try:
            self._http.receive_data(data)
            self._pump()
            if self._task is not None and len(self._http.trailing_data[0]) > MAX_HEAD_BYTES:
                # Nobody reads ahead while a request is answered; a flood is not kept either.
                self.socket.abort()
        except h11.RemoteProtocolError as error:
            self._reject(Refusal(error.error_status_hint, "INVALID_REQUEST", "Malformed HTTP."))

    def _pump(self) -> None:
        while self._task is None:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._request = event
                self._body.clear()
                self._expect(HEAD_SECONDS)
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._max_body:
                    self._reject(
                        Refusal(413, "PAYLOAD_TOO_LARGE", "The request body is too large.")
                    )
                    return
            elif isinstance(event, h11.EndOfMessage) and self._request is not None:
                if self._timer is not None:
                    self._timer.cancel()
                exchange = Exchange(self, self._request, bytes(self._body))
                self._task = asyncio.create_task(self._run(exchange))
            elif isinstance(event, h11.ConnectionClosed):
                self.stop()
                return
            else:
                return

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
        except Refusal as refusal:
            exchange.refuse(refusal)
        except ConnectionError:
            self.stop()
        except Exception as error:  # noqa: BLE001 - the edge: an unknown failure is one answer and one log line
            log.event("gateway.failed", kind=type(error).__name__, request_id=exchange.request_id)
            if self._http.our_state in {h11.SEND_RESPONSE, h11.IDLE}:
                exchange.refuse(Refusal(500, "INTERNAL_ERROR", "The gateway failed."))
            self.stop()
        finally:
            self._task = None
        if self._spliced is None:
            self._next()

    def _next(self) -> None:
        """Go on with the next request of a kept connection, or close."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._request = None
            self._expect(KEEP_ALIVE_SECONDS)
            try:
                self._pump()
            except h11.RemoteProtocolError:
                self.stop()
        else:
            self.stop()

    def _reject(self, refusal: Refusal) -> None:
        """Answer a request that could not be read, and close."""
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            request_id = new_request_id()
            self.send_json(refusal.status, refusal.body(request_id), request_id, close=True)
        self.stop()

    def stop(self) -> None:
        """Close after what was written."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell whoever works for this client."""
        self._fronts.discard(self)
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._spliced is not None:
            self._spliced.client_lost()
        if self._task is not None:
            self._task.cancel()
        self._transport = None

    def pause_writing(self) -> None:
        """Hold back whoever writes to this client."""
        self._writable.clear()
        if self._spliced is not None:
            self._spliced.hold_harness(hold=True)

    def resume_writing(self) -> None:
        """Let them go on."""
        self._writable.set()
        if self._spliced is not None:
            self._spliced.hold_harness(hold=False)

    def send_json(
        self, status: int, content: bytes, request_id: str, *, close: bool = False
    ) -> None:
        """Send a complete JSON answer."""
        headers = [_JSON, ("content-length", str(len(content))), ("x-request-id", request_id)]
        if close:
            headers.append(("connection", "close"))
        self.send_head(status, headers)
        self.socket.write(self._http.send(h11.Data(content)) or b"")
        self.send_end()

    def send_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Send the head of an answer."""
        response = h11.Response(status_code=status, headers=[*headers, *_FIXED])
        self.socket.write(self._http.send(response) or b"")

    async def send_body(self, data: bytes) -> None:
        """Send a piece of a streamed body."""
        self.socket.write(self._http.send(h11.Data(data)) or b"")
        await self._writable.wait()

    def send_end(self) -> None:
        """Complete an answer."""
        self.socket.write(self._http.send(h11.EndOfMessage()) or b"")

    def upgrade(self, accept: str, spliced: Spliced) -> None:
        """Answer 101; bytes that came early are the first of the new protocol."""
        response = h11.InformationalResponse(
            status_code=101,
            headers=[
                ("upgrade", "websocket"),
                ("connection", "upgrade"),
                ("sec-websocket-accept", accept),
            ],
        )
        self.socket.write(self._http.send(response) or b"")
        self._spliced = spliced
        early = self._http.trailing_data[0]
        if early:
            spliced.client_data(early)
