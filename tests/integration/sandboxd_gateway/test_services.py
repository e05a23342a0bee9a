"""HTTP and WebSocket to a Sandbox's service through the gateway's one port."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import grpc
import pytest
from openshell._proto import openshell_pb2 as pb

HEAD = "GET /x?y=1 HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n"


class App:
    """A service inside: remembers heads, answers with them, becomes an echo after an upgrade."""

    def __init__(self):
        self.heads = []
        self.port = 0
        self._server = None

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head.decode().lower())
                if b"upgrade: websocket" in head.lower():
                    writer.write(
                        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
                        b"Upgrade: websocket\r\n\r\nearly"
                    )
                    while data := await reader.read(1000):
                        writer.write(data.upper())
                        await writer.drain()
                    break
                if b"/stream" in head:
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    writer.write(b"3\r\none\r\n")
                    await writer.drain()
                    await reader.read(1)
                    break
                body = b"pong"
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    async def stop(self):
        self._server.close()


@pytest.fixture
async def app():
    made = App()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def exposed(world, control, tools, app):
    exposures = [
        pb.SandboxServiceExposure(target_port=4000, authorization_mode=2),
        pb.SandboxServiceExposure(service="web", target_port=4000),
        pb.SandboxServiceExposure(service="dead", target_port=4001),
    ]
    made = await tools.create(control, service_exposures=exposures)
    assert dict(made.service_urls) == {
        name: f"https://default--one{suffix}.openshell.localhost:{world.port}/"
        for name, suffix in (("", ""), ("web", "--web"), ("dead", "--dead"))
    }
    await tools.ready(control, "one")
    world.main().ports = {4000: app.port, 4001: 1}
    return made


@contextlib.asynccontextmanager
async def connection(world):
    context = ssl.create_default_context(cafile=world.keys.ca)
    context.set_alpn_protocols(["http/1.1"])
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", world.port, ssl=context, server_hostname="x.openshell.localhost"
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def ask(world, name="default--one", extra="", raw=None):
    async with connection(world) as (reader, writer):
        host = f"{name}.openshell.localhost:{world.port}"
        writer.write((raw or HEAD).format(host=host, extra=extra).encode())
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode()
        length = [
            int(line.split(":")[1])
            for line in head.lower().splitlines()
            if "content-length" in line
        ]
        body = await asyncio.wait_for(reader.readexactly(length[0]), 10) if length else b""
        return int(head.split()[1]), body.decode(), head


async def test_bearer_and_origin_pass_to_an_app_that_authenticates(world, exposed, app):
    status, body, _ = await ask(
        world,
        extra="Authorization: Bearer abc.def\r\nOrigin: https://evil.example\r\n"
        "X-Client-Cert: forged\r\nConnection: keep-alive, X-Drop\r\nX-Drop: 1\r\nX-Keep: 1\r\n",
    )
    assert (status, body) == (200, "pong")
    (head,) = app.heads
    assert head.startswith("get /x?y=1 http/1.1\r\nhost: 127.0.0.1:4000\r\n")
    assert "authorization: bearer abc.def" in head
    assert "origin: https://evil.example" in head
    assert "x-keep: 1" in head
    assert "x-client-cert" not in head
    assert "x-drop" not in head


@pytest.mark.parametrize(
    ("name", "extra", "status", "word"),
    [
        ("default--one--web", "Authorization: Bearer abc\r\n", 200, "pong"),
        ("default--one--web", "Origin: https://evil.example\r\n", 403, "Cross-origin"),
        ("default--one--web", "Sec-Fetch-Site: cross-site\r\n", 403, "Cross-origin"),
        ("default--one", "Authorization: Basic abc\r\n", 400, "Authorization"),
        ("default--one", "Authorization: Bearer a\r\nAuthorization: Bearer a\r\n", 400, "Auth"),
        ("default--one--none", "", 404, "Service endpoint not found"),
        ("default--two", "", 404, "Service endpoint not found"),
        ("nonsense", "", 404, "Unknown host"),
        ("default--one--dead", "", 502, "not reachable"),
    ],
)
async def test_answers_of_the_gateway_itself(world, exposed, app, name, extra, status, word):
    answer, body, head = await ask(world, name, extra)
    assert answer == status
    assert word in body
    assert status == 200 or "text/plain" in head
    assert not any("authorization" in seen for seen in app.heads)


async def test_a_stopped_sandbox_and_a_withdrawn_exposure(world, control, exposed, tools):
    await control.DeleteService(
        pb.DeleteServiceRequest(**tools.in_default(sandbox="one", name="web"))
    )
    assert (await ask(world, "default--one--web"))[0] == 404
    async with tools.refused(grpc.StatusCode.NOT_FOUND, "service endpoint not found"):
        await control.GetService(
            pb.GetServiceRequest(**tools.in_default(sandbox="one", name="web"))
        )
    await control.StopSandbox(pb.StopSandboxRequest(**tools.in_default(name="one")))
    await tools.phase(control, "one", pb.SANDBOX_PHASE_STOPPED)
    assert (await ask(world))[:2] == (412, "Sandbox is not ready\n")


async def test_a_websocket_is_spliced_both_ways(world, exposed, app):
    async with connection(world) as (reader, writer):
        head = HEAD.format(
            host="default--one.openshell.localhost",
            extra="Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: aaaa\r\n"
            "Sec-WebSocket-Version: 13\r\nAuthorization: Bearer abc\r\n",
        )
        writer.write(head.encode())
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert answer.startswith(b"HTTP/1.1 101")
        assert await asyncio.wait_for(reader.readexactly(5), 10) == b"early"
        blob = b"hello" * 100_000
        writer.write(blob)
        assert await asyncio.wait_for(reader.readexactly(len(blob)), 10) == blob.upper()


async def test_a_stream_is_not_buffered(world, exposed):
    async with connection(world) as (reader, writer):
        writer.write(b"GET /stream HTTP/1.1\r\nHost: default--one.openshell.localhost\r\n\r\n")
        assert b"one" in await asyncio.wait_for(reader.readuntil(b"one"), 10)


async def test_a_second_request_on_a_connection_meets_the_same_rules(world, exposed, app):
    async with connection(world) as (reader, writer):
        host = "default--one--web.openshell.localhost"
        first = f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\nabc"
        second = HEAD.format(host=host, extra="Authorization: Bearer stolen\r\n")
        writer.write((first + second).encode())
        for _ in range(2):
            await asyncio.wait_for(reader.readuntil(b"pong"), 10)
    assert len(app.heads) == 2
    assert "authorization" not in app.heads[1]


@pytest.mark.parametrize(
    "raw",
    [
        "GET / HTTP/1.1\r\nHost: {host}\r\nHost: other\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\n X: folded\r\nbad header\r\n\r\n",
    ],
)
async def test_malformed_requests_get_400(world, exposed, app, raw):
    assert (await ask(world, raw=raw))[0] == 400
    assert app.heads == []
