"""Parsers of the egress process against arbitrary bytes: a value with one meaning, a typed refusal, or "more"."""

import asyncio
import contextlib
import socket
import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.sandboxd.egress.config import ConfigError, parse_config
from oce.sandboxd.egress.dns import answer
from oce.sandboxd.egress.hello import Hello, HelloState, read_hello
from oce.sandboxd.egress.http1 import (
    CHUNKED,
    BodyReader,
    HttpError,
    frame,
    frame_end,
    parse_request,
    parse_response,
)
from oce.sandboxd.egress.names import (
    RecentNames,
    address_v4,
    address_v6,
    belongs,
    is_synthetic,
    valid_name,
)
from oce.sandboxd.egress.pipe import BrokenPipeEnd, Pipe
from oce.sandboxd.egress.swap import RESERVED, BodyScanner, MarkFoundError
from oce.sandboxd.egress.vault import Vault, VaultError

MARKS = tuple(mark.encode() for mark in RESERVED)


def client_hello(name):
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_a_real_hello_is_read_however_it_is_cut_and_split_into_records():
    data = client_hello("api.models.example")
    for size in range(len(data)):
        assert read_hello(data[:size]).state is HelloState.MORE
    assert read_hello(data + b"more") == Hello(HelloState.DONE, "api.models.example")
    body = data[5:]
    records = [body[n : n + 37] for n in range(0, len(body), 37)]
    split = b"".join(b"\x16\x03\x01" + struct.pack("!H", len(r)) + r for r in records)
    assert read_hello(split) == Hello(HelloState.DONE, "api.models.example")


@given(st.binary(max_size=300))
def test_no_bytes_confuse_the_hello_reader(data):
    for candidate in (data, b"\x16\x03\x01" + struct.pack("!H", len(data)) + data):
        hello = read_hello(candidate)
        assert hello.name is None or hello.state is HelloState.DONE


@given(st.binary(max_size=200))
def test_no_bytes_confuse_the_name_server(data):
    for query in (data, struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + data):
        reply = answer(query)
        if reply is not None:
            assert reply.message[:2] == query[:2]
            assert reply.message[2] & 0x80
            assert reply.name is None or valid_name(reply.name)


@given(st.binary(max_size=200))
def test_no_bytes_confuse_the_head_parsers(data):
    for head in (data, b"GET / HTTP/1.1\r\nHost: x\r\n" + data):
        try:
            parsed = parse_request(head)
        except HttpError as error:
            assert 400 <= error.status < 500  # noqa: PT017 - either outcome is fine
        else:
            assert parsed.body >= CHUNKED
            assert not any(b"\r" in v or b"\n" in v or b"\0" in v for _, v in parsed.fields)
    with contextlib.suppress(HttpError):
        parse_response(b"HTTP/1.1 200 OK\r\n" + data, "GET")


PIECES = st.lists(st.binary(min_size=1, max_size=50), max_size=6)


@given(PIECES, st.integers(1, 40), st.booleans())
async def test_a_chunked_body_survives_any_segmentation_and_truncation_is_noticed(
    pieces, step, cut
):
    raw = b"".join(frame(p, CHUNKED) for p in pieces) + frame_end(CHUNKED, [(b"x-sum", b"1")])
    if cut:
        raw = raw[:-1]
    pipe = Pipe()
    reader = BodyReader(pipe, CHUNKED, 5)

    async def feed():
        for at in range(0, len(raw), step):
            pipe.data_received(raw[at : at + step])
            await asyncio.sleep(0)
        pipe.data_received(b"" if cut else b"NEXT")
        pipe.eof_received()

    feeding = asyncio.create_task(feed())
    got = b""
    try:
        while piece := await reader.read():
            got += piece
    except BrokenPipeEnd:
        assert cut
    else:
        assert not cut
        await feeding
        assert bytes(pipe.buffer) == b"NEXT"
        assert reader.trailers == [(b"x-sum", b"1")]
        assert got == b"".join(pieces)
    await feeding


@given(
    st.lists(
        st.sampled_from(
            [b"open", b"shell", b":", b"resolve", b":env", b"OPENSHELL-", b"RESOLVE-ENV-", b"x"]
        )
    )
)
def test_a_mark_is_found_across_pieces_and_never_leaves_whole(pieces):
    scanner = BodyScanner(MARKS)
    sent = b""
    whole = b"".join(pieces)
    try:
        for piece in pieces:
            sent += scanner.feed(piece)
        sent += scanner.end()
    except MarkFoundError:
        assert any(mark in whole for mark in MARKS)
        assert not any(mark in sent for mark in MARKS)
    else:
        assert sent == whole
        assert not any(mark in whole for mark in MARKS)


@given(st.from_regex(r"[a-z0-9]{1,12}(\.[a-z]{2,8}){1,3}", fullmatch=True))
def test_a_name_keeps_its_addresses_and_owns_them(name):
    v4, v6 = socket.inet_ntoa(address_v4(name)), socket.inet_ntop(socket.AF_INET6, address_v6(name))
    assert is_synthetic(v4)
    assert is_synthetic(v6)
    assert belongs(name, v4)
    assert belongs(name, v6)
    assert not belongs(name, "198.18.0.1")
    names = RecentNames()
    assert names.remember(name)
    assert not names.remember(name)
    assert names.only(v6) == name


def test_the_vault_keeps_values_sealed_and_versions_in_order(tmp_path):
    vault = Vault(tmp_path)
    vault.put("p", 2, {"K": "sk-secret"})
    vault.put("p", 1, {"K": "older"})
    vault.put("q", 1, {"K": "x"})
    vault.delete("q")
    vault.delete("q")
    again = Vault(tmp_path)
    assert (again.value("p", "K"), again.value("p", "X"), again.versions()) == (
        "sk-secret",
        None,
        {"p": 2},
    )
    assert "sk-secret" not in repr(vars(again))
    sealed = (tmp_path / "vault.sealed").read_bytes()
    assert b"sk-secret" not in sealed
    (tmp_path / "vault.sealed").write_bytes(sealed[:-1] + bytes([sealed[-1] ^ 1]))
    with pytest.raises(VaultError):
        Vault(tmp_path)
    (tmp_path / "vault.key").unlink()
    with pytest.raises(VaultError):
        Vault(tmp_path)


@pytest.mark.parametrize(
    "table",
    [
        {"x": 1},
        {"upstream": [{"host": "*.x", "port": 443, "connect": "127.0.0.1:1"}]},
        {"upstream": [{"host": "a.x", "port": 443, "connect": "localhost:1"}]},
        {"upstream": [{"host": "a.x", "port": 0, "connect": "127.0.0.1:1"}]},
        {"upstream": [{"host": "a.x", "port": 443, "connect": "127.0.0.1:1"}] * 2},
        {"private_networks": ["10.0.0.1/8"]},
        {"max_connections": True},
    ],
)
def test_an_unusable_operator_table_is_refused_by_its_key(table):
    with pytest.raises(ConfigError, match="egress"):
        parse_config(table)
