"""The offline model server: speaks the Responses API over TLS, for the demo and the tests.

It takes the place of ``api.openai.com`` behind sandboxd's operator-only upstream override, so that Sandbox, policy and credential
swap are those of production and only the far end is ours. It checks the key it is given, so that a missing swap is an
error and not a silent success, and it counts what a test must prove: how many requests came, and whether a placeholder ever did.

It is not a model and not a load target. Answers come from :mod:`oce.dev.model_replies`.

Routes: ``POST /v1/responses`` (SSE when ``stream`` is true, JSON otherwise), ``GET /v1/responses`` (426, which makes Codex fall
back from WebSocket to HTTP at once), ``GET /v1/models``, ``GET /stats`` (counters; no key needed, no secret in it), ``GET /healthz``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import os
import signal
import ssl
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oce.dev.model_replies import respond

MAX_HEADER_BYTES = 32 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
# Both spellings of an OpenShell placeholder (reference: OpenShell gateway, credentials).
_PLACEHOLDERS = (b"openshell:resolve:env:", b"OPENSHELL-RESOLVE-ENV-")
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    426: "Upgrade Required",
}


@dataclass(slots=True)
class Stats:
    """Counters that ``GET /stats`` shows."""

    responses: int = 0
    unauthorized: int = 0
    placeholders_seen: int = 0
    key_in_body: int = 0
    encodings: set[str] = field(default_factory=set)

    def as_json(self) -> dict[str, Any]:
        """Render the counters as a JSON object."""
        return {
            "responses": self.responses,
            "unauthorized": self.unauthorized,
            "placeholdersSeen": self.placeholders_seen,
            "keyInBody": self.key_in_body,
            "encodings": sorted(self.encodings),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP/1.1 request; header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class BadRequestError(Exception):
    """The bytes are not a request this server takes; ``status`` is answered and the connection closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read one request; None at the end of the connection. Raises BadRequestError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequestError(413, "headers too large") from error
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3:  # noqa: PLR2004 - method, target, version
        raise BadRequestError(400, "malformed request line")
    headers = {
        name.strip().lower(): value.strip()
        for name, colon, value in (line.partition(":") for line in lines[1:])
        if colon
    }
    body = await _read_body(reader, headers)
    return Request(method=parts[0], path=parts[1].partition("?")[0], headers=headers, body=body)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = bytearray()
        while size := int((await reader.readline()).split(b";")[0], 16):
            if len(body) + size > MAX_BODY_BYTES:
                raise BadRequestError(413, "body too large")
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
        return bytes(body)
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        raise BadRequestError(400, "malformed content-length")
    if int(length) > MAX_BODY_BYTES:
        raise BadRequestError(413, "body too large")
    return await reader.readexactly(int(length))


class ModelServer:
    """Answers one connection after the other; state is the counters only."""

    def __init__(self, *, api_key: str, delta_delay_seconds: float = 0.0) -> None:
        self._key = api_key.encode()
        self._delay = delta_delay_seconds
        self.stats = Stats()

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve requests until the peer goes away."""
        try:
            while (request := await read_request(reader)) is not None:
                await self._answer(request, writer)
        except BadRequestError as error:
            _write_json(writer, error.status, _error(str(error), "invalid_request"), close=True)
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass  # the peer left in the middle of a request, or sent a chunk size that is no number
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
                await writer.wait_closed()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        route = (request.method, request.path)
        if route == ("GET", "/stats"):
            _write_json(writer, 200, self.stats.as_json())
        elif route == ("GET", "/healthz"):
            _write_json(writer, 200, {"ok": True})
        elif not self._authorized(request):
            self.stats.unauthorized += 1
            _write_json(writer, 401, _error("Incorrect API key provided.", "invalid_api_key"))
        elif route == ("GET", "/v1/responses"):
            _write_json(writer, 426, _error("Use HTTP.", "upgrade_required"))
        elif route == ("GET", "/v1/models"):
            _write_json(writer, 200, {"object": "list", "data": [], "models": []})
        elif route == ("POST", "/v1/responses"):
            await self._respond(request, writer)
        else:
            _write_json(writer, 404, _error("Unknown route.", "not_found"))
        await writer.drain()

    def _authorized(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").encode()
        seen = (given, request.body)
        self.stats.placeholders_seen += any(mark in text for mark in _PLACEHOLDERS for text in seen)
        self.stats.key_in_body += self._key in request.body
        return hmac.compare_digest(given, b"Bearer " + self._key)

    async def _respond(self, request: Request, writer: asyncio.StreamWriter) -> None:
        encoding = request.headers.get("content-encoding", "identity")
        self.stats.encodings.add(encoding)
        if encoding != "identity":
            # Codex compresses bodies only for ChatGPT logins, which this server does not stand in for.
            _write_json(writer, 415, _error("Send the body uncompressed.", "unsupported_encoding"))
            return
        try:
            body = json.loads(request.body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            _write_json(writer, 400, _error("The body is not a JSON object.", "invalid_json"))
            return
        self.stats.responses += 1
        finished, events = respond(body, self.stats.responses)
        if not body.get("stream"):
            _write_json(writer, 200, finished)
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"cache-control: no-store\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for event in events:
            data = event.encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
            if self._delay:
                await asyncio.sleep(self._delay)
        writer.write(b"0\r\n\r\n")


def _error(message: str, code: str) -> dict[str, Any]:
    """OpenAI's error shape."""
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}


def _write_json(
    writer: asyncio.StreamWriter, status: int, body: object, *, close: bool = False
) -> None:
    data = json.dumps(body).encode()
    writer.write(
        f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n{'connection: close' + chr(13) + chr(10) if close else ''}"
        "\r\n".encode()
        + data
    )


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Build the TLS side of the server: HTTP/1.1 only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


async def start(
    server: ModelServer, *, host: str, port: int, context: ssl.SSLContext
) -> asyncio.Server:
    """Listen; the port is in ``sockets[0].getsockname()`` when 0 was asked for."""
    return await asyncio.start_server(
        server.serve_connection, host, port, ssl=context, limit=MAX_HEADER_BYTES
    )


async def run(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT; write the address to the ready file once the port is bound."""
    host, _, port = arguments.listen.rpartition(":")
    api_key = arguments.api_key_file.read_text().strip()
    server = ModelServer(api_key=api_key, delta_delay_seconds=arguments.delta_delay_ms / 1000)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    context = server_context(arguments.cert, arguments.key)
    listener = await start(server, host=host, port=int(port), context=context)
    address = listener.sockets[0].getsockname()
    _write_ready(arguments.ready_file, f"{address[0]}:{address[1]}\n")
    await stop.wait()
    listener.close()


def _write_ready(path: Path | None, text: str) -> None:
    if path is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    temporary.replace(path)


def main() -> None:
    """Command line of ``python -m oce.dev.model_server``."""
    parser = argparse.ArgumentParser(prog="oce.dev.model_server", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--api-key-file", type=Path, required=True)
    parser.add_argument("--ready-file", type=Path, help="gets HOST:PORT once listening")
    parser.add_argument("--delta-delay-ms", type=float, default=0.0)
    os.umask(0o077)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
