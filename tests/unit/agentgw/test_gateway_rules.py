"""The pure rules of the Agent Gateway: frames, turns, routes, memory of access, configuration, bodies."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.agentgw.access import AccessBook, Allowed, ApiUnreachableError, Denied
from oce.agentgw.config import ConfigurationError, parse
from oce.agentgw.errors import Refusal
from oce.agentgw.frames import FrameError, FrameScanner, close_frame, text_frame
from oce.agentgw.ledger import TurnLedger
from oce.agentgw.routes import RouteError, RouteReader
from oce.agentgw.routes import parse as parse_route
from oce.agentgw.service import parse_turn
from oce.agentgw.upstream import accept_value

AGENT = "agt_00000000-0000-4000-8000-000000000001"
ROUTE = {
    "version": 1,
    "namespaceId": "ns_1",
    "namespaceName": "default",
    "agentId": AGENT,
    "agentName": "helper",
    "generation": 7,
    "revisionId": "rev_1",
    "target": "wss://w--s.openshell.localhost:17670/",
    "connect": "127.0.0.1:17670",
    "caFile": None,
    "caBundle": "PEM",
    "transportToken": "secret-token",
    "drainSeconds": 30,
}


@given(st.lists(st.text(max_size=400), max_size=6), st.data())
def test_messages_are_found_however_the_bytes_are_cut(texts, data):
    stream = b"".join(text_frame(text, bytes((1, 2, 3, 4))) for text in texts)
    scanner, found, at = FrameScanner(masked=True), [], 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream) - at))
        found += scanner.feed(stream[at : at + step])
        at += step
    assert [each.decode() for each in found] == texts
    assert scanner.at_boundary


def test_fragments_join_around_control_frames_and_a_close_is_noticed():
    scanner = FrameScanner(masked=False)
    assert scanner.feed(b"\x01\x02ab" + b"\x89\x00" + b"\x80\x01c" + b"\x82\x01z") == [b"abc"]
    assert not scanner.close_bytes
    scanner.feed(b"\x81\x01a" + close_frame(1000, ""))
    assert scanner.close_bytes == 4


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x00", 1002),  # not masked
        (b"\xc1\x80", 1002),  # compressed, which nobody negotiated
        (b"\x81\xff" + (2**40).to_bytes(8, "big") + b"mask", 1009),
    ],
)
def test_frames_that_a_client_may_not_send(data, code):
    with pytest.raises(FrameError) as caught:
        FrameScanner(masked=True).feed(data)
    assert caught.value.code == code


def note(method, **params):
    return json.dumps({"method": method, "params": params}).encode()


def test_a_turn_counts_from_its_request_to_its_completion():
    ledger = TurnLedger()
    request = {"id": 3, "params": {"input": [{"text": '"turn/start"'}]}, "method": "turn/start"}
    ledger.from_client(json.dumps(request).encode())
    assert ledger.count == 1
    answer = {"id": 3, "result": {"turn": {"id": "u", "status": "inProgress"}}}
    ledger.from_server(json.dumps(answer).encode())
    ledger.from_server(note("turn/started", threadId="t", turn={"id": "u"}))
    assert (ledger.count, ledger.running()) == (1, [("t", "u")])
    ledger.from_server(note("turn/completed", threadId="t", turn={"id": "u"}))
    assert ledger.count == 0


def test_a_refused_turn_and_a_late_answer_leave_nothing_behind():
    ledger = TurnLedger()
    ledger.from_client(b'{"id":"a","method":"turn/start"}')
    ledger.from_server(b'{"id":"a","error":{"code":1}}')
    ledger.from_client(b'{"id":"b","method":"turn/start"}')
    ledger.from_server(note("turn/started", threadId="t", turn={"id": "u"}))
    ledger.from_server(note("turn/completed", threadId="t", turn={"id": "u"}))
    ledger.from_server(b'{"id":"b","result":{"turn":{"id":"u","status":"inProgress"}}}')
    ledger.from_client(b'{"id":"c","method":"thread/start"}')
    ledger.from_client(
        b'{"id":"d","method":"x","params":{"text":"turn/start\\""}} not json /start"'
    )
    assert ledger.count == 0


def test_a_route_hides_its_token_and_keeps_the_peer_apart_from_the_address():
    route = parse_route(json.dumps(ROUTE).encode())
    assert (route.target.host, route.target.connect) == (
        "w--s.openshell.localhost",
        ("127.0.0.1", 17670),
    )
    assert route.target.host_header == "w--s.openshell.localhost:17670"
    assert "secret-token" not in repr(route)
    closed = {**ROUTE, "revisionId": None, "target": None, "connect": None}
    assert parse_route(json.dumps(closed).encode()).target is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 2),
        ("agentId", ""),
        ("generation", "7"),
        ("revisionId", 7),
        ("target", "https://x/"),
        ("target", "wss://user@x/"),
        ("connect", "nowhere"),
        ("transportToken", "two words"),
        ("drainSeconds", -1),
    ],
)
def test_a_document_that_is_no_route_is_refused_by_member(key, value):
    with pytest.raises(RouteError, match=key):
        parse_route(json.dumps({**ROUTE, key: value}).encode())


def test_a_token_never_goes_in_clear_text_over_a_network():
    target = {"target": "ws://harness.test:80/", "connect": "10.0.0.1:80"}
    with pytest.raises(RouteError, match="target"):
        parse_route(json.dumps({**ROUTE, **target}).encode())


def test_the_reader_notices_a_replaced_document_and_never_leaves_its_folder(tmp_path):
    reader = RouteReader(tmp_path)
    path = tmp_path / f"{AGENT}.json"
    assert reader.read(AGENT) is None
    path.write_text(json.dumps(ROUTE))
    assert reader.read(AGENT).generation == 7
    (tmp_path / "new").write_text(json.dumps({**ROUTE, "generation": 8}))
    (tmp_path / "new").replace(path)
    assert reader.read(AGENT).generation == 8
    path.write_text(json.dumps({**ROUTE, "agentId": "agt_other"}))
    with pytest.raises(RouteError):
        reader.read(AGENT)
    assert reader.read("../secrets") is None


class Api:
    """Answers as told and counts."""

    def __init__(self):
        self.answer = Allowed(principal_id="p", namespace_id="n", agent_id="a")
        self.calls = 0

    async def __call__(self, api_key, namespace, agent):
        self.calls += 1
        if self.answer is None:
            raise ApiUnreachableError
        return self.answer


@pytest.fixture
def book():
    api, now = Api(), [0.0]
    found = AccessBook(api, clock=lambda: now[0], yes_seconds=30, outage_seconds=900, no_seconds=1)
    return found, api, now


async def status_of(book, key="key-7f3a"):
    try:
        await book.check(key, "ns", "agt")
    except Refusal as refusal:
        return refusal.status
    return 200


async def test_a_yes_is_remembered_half_a_minute_and_then_asked_again(book):
    found, api, now = book
    seen = []
    for at in (0, 29.9, 30, 59.9, 60):
        now[0] = at
        seen.append((await status_of(found), api.calls))
    assert seen == [(200, 1), (200, 1), (200, 2), (200, 2), (200, 3)]
    assert "key-7f3a" not in repr(found.__dict__)


async def test_a_revoked_key_is_noticed_and_a_no_lasts_one_second(book):
    found, api, now = book
    assert await status_of(found) == 200
    api.answer, now[0] = Denied(403), 31
    assert await status_of(found) == 403
    api.answer, now[0] = Allowed(principal_id="p", namespace_id="n", agent_id="a"), 31.9
    assert await status_of(found) == 403
    now[0] = 32.1
    assert await status_of(found) == 200


async def test_an_outage_honours_an_earlier_yes_for_a_quarter_of_an_hour_only(book):
    found, api, now = book
    assert await status_of(found) == 200
    api.answer = None
    seen = []
    for at in (31, 899.9, 900.1):
        now[0] = at
        seen.append(await status_of(found))
    assert seen == [200, 200, 503]
    assert await status_of(found, "another key") == 503


async def test_an_outage_never_turns_a_no_into_a_yes(book):
    found, api, now = book
    api.answer = Denied(403)
    assert await status_of(found) == 403
    api.answer, now[0] = None, 2
    assert await status_of(found) == 503


CONFIG = {
    "listen": "127.0.0.1:0",
    "api_url": "http://127.0.0.1:1",
    **dict.fromkeys(
        ("tls_cert", "tls_key", "routes_dir", "control_socket", "api_token_file"), "/x"
    ),
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("unknown", 1),
        ("listen", "7000"),
        ("tls_cert", "relative"),
        ("drain_seconds", -1),
        ("max_connections", 0),
        ("api_url", "http://api.example.test"),
        ("api_url", "https://user:secret-pw@api.example.test"),
    ],
)
def test_a_wrong_setting_is_named_without_its_value(key, value):
    with pytest.raises(ConfigurationError) as caught:
        parse({**CONFIG, key: value})
    assert str(caught.value).startswith(f"{key}:")
    assert "secret-pw" not in str(caught.value)


def test_missing_settings_are_all_named():
    with pytest.raises(ConfigurationError, match="api_url, control_socket"):
        parse({"listen": "127.0.0.1:0"})
    assert parse(CONFIG).remember_yes_outage_seconds == 900


@pytest.mark.parametrize("body", [b"", b"[]", b'{"input": 1}', b'{"threadId": "x"}', b"\xff"])
def test_a_turn_body_is_a_closed_object(body):
    with pytest.raises(Refusal) as caught:
        parse_turn(body)
    assert caught.value.status == 400


def test_the_accept_value_is_that_of_the_rfc():
    assert accept_value("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
