"""HTTP/1.1 to the services of Sandboxes, and `/healthz` (reference/openshell-gateway.md b.7).

Both sides are parsed and framed by h11, so that nothing after a request's end can slip past the header rules; bytes are spliced
unread only after a service agreed to become a WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import h11

from oce.sandboxd.api import heads
from oce.sandboxd.api.heads import HeadError
from oce.sandboxd.api.services import route_of
from oce.sandboxd.place import PlaceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from oce.sandboxd.api.services import Route
    from oce.sandboxd.lifecycle.supervisor import Supervisor
    from oce.sandboxd.state.store import Reader

CHUNK = 64 * 1024
_HEAD = 16 * 1024
_IDLE = 75.0
_CONNECT = 10.0
_SWITCHING = 101


async def splice(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    other: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Copy bytes both ways until both directions ended, or one broke."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()

    tasks = [
        asyncio.ensure_future(copy(one[0], other[1])),
        asyncio.ensure_future(copy(other[0], one[1])),
    ]
    try:
        await asyncio.gather(*tasks)
    except (ConnectionError, OSError):
        pass
    finally:
        for task in tasks:
            task.cancel()


class _Side:
    """One parsed connection."""

    def __init__(
        self,
        role: type[h11.CLIENT | h11.SERVER],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=_HEAD)
        self.reader = reader
        self.writer = writer

    async def receive(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                if self.http.they_are_waiting_for_100_continue:
                    await self.send(h11.InformationalResponse(status_code=100, headers=[]))
                self.http.receive_data(await self.reader.read(CHUNK))
                continue
            return event  # type: ignore[return-value]

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()

    async def body(self) -> AsyncIterator[h11.Event]:
        while True:
            event = await self.receive()
            if not isinstance(event, (h11.Data, h11.EndOfMessage)):
                raise ConnectionError("the peer left in the middle of a message")
            yield event
            if isinstance(event, h11.EndOfMessage):
                return


class Router:
    """Serves the HTTP/1.1 connections of the front door."""

    def __init__(
        self, domain: str, reader: Reader, supervisor: Supervisor, healthy: Callable[[], bool]
    ) -> None:
        self._domain = domain
        self._reader = reader
        self._supervisor = supervisor
        self._healthy = healthy

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        client = _Side(h11.SERVER, reader, writer)
        try:
            while True:
                event = await asyncio.wait_for(client.receive(), _IDLE)
                if not isinstance(event, h11.Request):
                    return
                try:
                    if not await self._request(client, event):
                        return
                except HeadError as error:
                    await _answer(client, error.status, error.text)
                    return
                if client.http.our_state is not h11.DONE or client.http.their_state is not h11.DONE:
                    return
                client.http.start_next_cycle()
        except (h11.RemoteProtocolError, h11.LocalProtocolError):
            if client.http.our_state is h11.IDLE or client.http.our_state is h11.SEND_RESPONSE:
                with contextlib.suppress(h11.LocalProtocolError):
                    await _answer(client, 400, "Bad request")
        except TimeoutError:
            return

    async def _request(self, client: _Side, request: h11.Request) -> bool:
        """Answer one request; return whether the connection may go on."""
        raw = list(request.headers.raw_items())
        host = heads.host_of(raw)
        name = heads.service_name(host, self._domain)
        if name is None:
            if request.target == b"/healthz":
                healthy = self._healthy()
                await _answer(client, 200 if healthy else 503, "ok" if healthy else "degraded")
                return False
            raise HeadError(404, "Unknown host")
        route = route_of(self._reader, name.workspace, name.sandbox, name.service)
        if route is None:
            raise HeadError(404, "Service endpoint not found")
        if route.bearer_passthrough:
            heads.check_bearer(raw)
        else:
            heads.check_same_site(raw, host)
        if not route.ready:
            raise HeadError(412, "Sandbox is not ready")
        headers = heads.forwarded(raw, port=route.port, bearer_passthrough=route.bearer_passthrough)
        upstream = await self._connect(route)
        try:
            return await _exchange(client, upstream, request, headers)
        except (ConnectionError, OSError, h11.RemoteProtocolError) as error:
            if client.http.our_state is h11.SEND_RESPONSE:
                raise HeadError(502, "Service is not reachable") from error
            return False
        finally:
            upstream.writer.transport.abort()

    async def _connect(self, route: Route) -> _Side:
        running = self._supervisor.running(route.sandbox_id)
        if running is None:
            raise HeadError(412, "Sandbox is not ready")
        try:
            async with asyncio.timeout(_CONNECT):
                sock = await running.connect(route.port)
                reader, writer = await asyncio.open_connection(sock=sock)
        except (OSError, PlaceError, TimeoutError) as error:
            raise HeadError(502, "Service is not reachable") from error
        return _Side(h11.CLIENT, reader, writer)


async def _answer(client: _Side, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    headers = [
        ("content-type", "text/plain; charset=utf-8"),
        ("content-length", str(len(body))),
        ("connection", "close"),
    ]
    await client.send(h11.Response(status_code=status, headers=headers))
    await client.send(h11.Data(data=body))
    await client.send(h11.EndOfMessage())


async def _exchange(
    client: _Side, upstream: _Side, request: h11.Request, headers: heads.Headers
) -> bool:
    await upstream.send(h11.Request(method=request.method, target=request.target, headers=headers))
    sending = asyncio.ensure_future(_upload(client, upstream))
    try:
        while True:
            event = await upstream.receive()
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == _SWITCHING:
                    await sending
                    await _switch(client, upstream, event)
                    return False
                continue
            break
        if not isinstance(event, h11.Response):
            raise ConnectionError("the service closed without an answer")
        answer = heads.returned(list(event.headers.raw_items()))
        await client.send(
            h11.Response(status_code=event.status_code, headers=answer, reason=event.reason)
        )
        async for part in upstream.body():
            await client.send(part)
        return sending.done()
    finally:
        sending.cancel()
        with contextlib.suppress(
            asyncio.CancelledError, ConnectionError, OSError, h11.ProtocolError
        ):
            await sending


async def _upload(client: _Side, upstream: _Side) -> None:
    async for part in client.body():
        await upstream.send(part)


async def _switch(client: _Side, upstream: _Side, event: h11.InformationalResponse) -> None:
    answer = heads.returned(list(event.headers.raw_items()))
    answer += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    await client.send(h11.InformationalResponse(status_code=_SWITCHING, headers=answer))
    early, late = client.http.trailing_data[0], upstream.http.trailing_data[0]
    upstream.writer.write(early)
    client.writer.write(late)
    await splice((client.reader, client.writer), (upstream.reader, upstream.writer))
