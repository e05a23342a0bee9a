"""What stands on both sides of the Agent Gateway in the relay benchmark, in a process of its own: a Harness that echoes, and an API that allows.

`python -m benchmarks.relay_peers --certificate FILE --token TOKEN`; prints the Harness's TLS port and the API's port. The Harness is a WebSocket
server of the `websockets` package on uvloop that sends every text back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl

import uvloop
import websockets

NAMESPACE = "ns_00000000-0000-4000-8000-000000000001"
AGENT = "agt_00000000-0000-4000-8000-000000000001"


async def _allow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
            answer = {"allowed": True, "principalId": "spn_1", "namespaceId": NAMESPACE, "agentId": AGENT}
            content = json.dumps({"data": answer}).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content)
                + content
            )
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _echo(connection: websockets.ServerConnection) -> None:
    async for text in connection:
        await connection.send(text)


async def serve(certificate: str, token: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def check(connection: websockets.ServerConnection, request: websockets.Request) -> websockets.Response | None:
        if request.headers.get("authorization") != f"Bearer {token}":
            return connection.respond(401, "no")
        return None

    harness = await websockets.serve(
        _echo, "127.0.0.1", 0, ssl=context, compression=None, process_request=check,
        ping_interval=None, backlog=2048,
    )
    api = await asyncio.start_server(_allow, "127.0.0.1", 0)
    print(harness.sockets[0].getsockname()[1], api.sockets[0].getsockname()[1], flush=True)
    await asyncio.gather(harness.serve_forever(), api.serve_forever())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--certificate", required=True)
    parser.add_argument("--token", required=True)
    given = parser.parse_args()
    uvloop.run(serve(given.certificate, given.token))
