"""What stands around the Agent Gateway in the relay benchmark: a Harness that echoes, an API that allows, and a bare splice as its peer.

`harness --certificate FILE --token TOKEN` prints the Harness's TLS port and the API's port; the Harness is a WebSocket server of the
`websockets` package on uvloop that sends every text back. `splice --certificate FILE --to PORT` prints a TLS port whose connections are copied
byte for byte to TLS connections to that port: the least that a relay in Python on uvloop can do, without access check, routes or turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
from typing import cast

import uvloop
import websockets

NAMESPACE = "ns_00000000-0000-4000-8000-000000000001"
AGENT = "agt_00000000-0000-4000-8000-000000000001"


async def _allow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
            answer = {
                "allowed": True,
                "principalId": "spn_1",
                "namespaceId": NAMESPACE,
                "agentId": AGENT,
            }
            content = json.dumps({"data": answer}).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                % len(content)
                + content
            )
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _echo(connection: websockets.ServerConnection) -> None:
    with contextlib.suppress(websockets.ConnectionClosed):
        async for text in connection:
            await connection.send(text)


class _Half(asyncio.Protocol):
    """One side of a splice; what arrives before the other side stands is kept."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Half | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def join(self, other: _Half) -> None:
        self.other = other
        for data in self._early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self._early.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


def _server_context(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def splice(certificate: str, port: int) -> None:
    loop, outward = asyncio.get_running_loop(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outward.check_hostname = False
    outward.verify_mode = ssl.CERT_NONE
    tasks = set()

    async def dial(near: _Half) -> None:
        _, far = await loop.create_connection(_Half, "127.0.0.1", port, ssl=outward)
        far.join(near)
        near.join(far)

    class Near(_Half):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            tasks.add(asyncio.ensure_future(dial(self)))

    server = await loop.create_server(Near, "127.0.0.1", 0, ssl=_server_context(certificate))
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def harness(certificate: str, token: str) -> None:
    context = _server_context(certificate)

    def check(
        connection: websockets.ServerConnection, request: websockets.Request
    ) -> websockets.Response | None:
        if request.headers.get("authorization") != f"Bearer {token}":
            return connection.respond(401, "no")
        return None

    served = await websockets.serve(
        _echo,
        "127.0.0.1",
        0,
        ssl=context,
        compression=None,
        process_request=check,
        ping_interval=None,
        backlog=2048,
    )
    api = await asyncio.start_server(_allow, "127.0.0.1", 0)
    print(served.sockets[0].getsockname()[1], api.sockets[0].getsockname()[1], flush=True)
    await asyncio.gather(served.serve_forever(), api.serve_forever())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["harness", "splice"])
    parser.add_argument("--certificate", required=True)
    parser.add_argument("--token")
    parser.add_argument("--to", type=int)
    given = parser.parse_args()
    if given.part == "splice":
        uvloop.run(splice(given.certificate, given.to))
    else:
        uvloop.run(harness(given.certificate, given.token))
