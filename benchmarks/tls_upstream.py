"""A small, fast TLS server in a process of its own: what the egress benchmark and its peers all talk to.

`POST /v1/responses` reads a body and answers 1 KiB of JSON, but only to the real key: a proxy that does not swap the credential fails.
`POST /v1/stream` answers one event at once and a second one 20 ms later, so that a proxy that buffers is seen. Prints its port.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
from typing import cast

import uvloop

KEY = b"Bearer sk-bench-real-0123456789abcdef"
ANSWER = b'{"text":"' + b"x" * 1012 + b'"}\n'
PAUSE_SECONDS = 0.02
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
    ANSWER
)
_NO = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"d\r\ndata: first\n\n\r\n"
)
_REST = b"d\r\ndata: last.\n\n\r\n0\r\n\r\n"


class Server(asyncio.Protocol):
    def __init__(self) -> None:
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            if len(self._buffer) < end + 4 + length:
                return
            del self._buffer[: end + 4 + length]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        if KEY.lower() not in head:
            self._transport.write(_NO)
        elif b"/v1/stream" in head:
            self._transport.write(_STREAM)
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._transport.write, _REST)
        else:
            self._transport.write(_OK + ANSWER)


async def serve(certificate: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    # uvloop sets TCP_NODELAY on every connection it makes or accepts.
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--certificate", required=True)
    uvloop.run(serve(parser.parse_args().certificate))
