"""A personal access token is proved on the serving app-server itself (§22.14; reference/sandbox-openshell.md §10.3)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import struct
from dataclasses import replace

import pytest

from oce.drivers.openshell.app_server import Conversation, is_pat, signed_in_with_pat
from oce.testing.openshell_bench import TOKEN, requirements

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
GOOD = {"authMethod": "personalAccessToken", "authToken": None, "requiresOpenaiAuth": True}


def frame(payload, opcode=1, *, final=True):
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    first = (0x80 if final else 0) | opcode
    if len(raw) < 126:
        return struct.pack("!BB", first, len(raw)) + raw
    return struct.pack("!BBH", first, 126, len(raw)) + raw


def unmasked(data):
    """Return the text messages of a client's frames."""
    found = []
    while data:
        length, at = data[1] & 0x7F, 2
        if length == 126:
            (length,) = struct.unpack("!H", data[2:4])
            at = 4
        assert data[1] & 0x80
        mask, body = data[at : at + 4], data[at + 4 : at + 4 + length]
        plain = bytes(byte ^ mask[i % 4] for i, byte in enumerate(body))
        if data[0] & 0x0F == 1:
            found.append(json.loads(plain))
        data = data[at + 4 + length :]
    return found


async def asked(bench, after, *, hangs_up=True):
    """Ask for the status of a PAT revision; `after` follows the accepted handshake in one segment."""
    await bench.deploy()
    heads, answered = [], asyncio.Event()

    async def serve(head, writer):
        heads.append(head.decode())
        key = re.search(r"(?i)sec-websocket-key: (\S+)", head.decode())[1]
        proof = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()  # noqa: S324 - RFC 6455
        writer.write(
            f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {proof}\r\n\r\n".encode()
            + after
        )
        if not hangs_up:
            await answered.wait()

    bench.gateway.on_service = serve
    context = replace(bench.status(), requirements=requirements(login_mode="codex_pat"))
    found = await bench.driver.harness_status(context)
    answered.set()
    assert [head.split()[1] for head in heads] == ["/"]
    assert f"Bearer {TOKEN}" in heads[0]
    return found.state


INITIALIZED = frame({"id": 1, "result": {"userAgent": "codex"}})


async def test_g14_the_exact_triple_is_serving(bench):
    talk = (
        frame({"method": "configWarning", "params": {"summary": "x" * 300}})
        + frame(b"are you there", 0x9)
        + INITIALIZED
        + frame(json.dumps({"id": 2, "result": GOOD}).encode()[:20], final=False)
        + frame(json.dumps({"id": 2, "result": GOOD}).encode()[20:], 0)
    )
    assert await asked(bench, talk, hangs_up=False) == "serving"


@pytest.mark.parametrize(
    "result",
    [
        {**GOOD, "authMethod": None},
        {**GOOD, "authMethod": "apikey"},
        {**GOOD, "authToken": "leaked"},
        {**GOOD, "requiresOpenaiAuth": False},
        {**GOOD, "requiresOpenaiAuth": 1},
        {k: v for k, v in GOOD.items() if k != "authToken"},
        [],
        None,
        "personalAccessToken",
    ],
)
async def test_g14_anything_but_the_exact_triple_is_starting(bench, result):
    assert not is_pat(result)
    assert await asked(bench, INITIALIZED + frame({"id": 2, "result": result})) == "starting"


@pytest.mark.parametrize(
    "talk",
    [
        b"",
        frame({"id": 1, "error": {"code": -1}}),
        INITIALIZED,
        INITIALIZED + frame(b"{not json"),
        INITIALIZED + frame(b"", 0x8),
        b"\x81\xff" + b"\0" * 12,
        b"\xf1\x00",
        b"\x81\x7f" + struct.pack("!Q", 1 << 40),
        INITIALIZED + frame(b"[" * 60_000),
        frame({"method": "noise"}) * 80,
    ],
    ids=[
        "silent",
        "error",
        "half",
        "garbage",
        "close",
        "masked",
        "extended",
        "huge",
        "deep",
        "noise",
    ],
)
async def test_g14_a_malformed_conversation_is_starting(bench, talk):
    assert await asked(bench, talk) == "starting"


async def test_the_question_neither_logs_in_nor_refreshes():
    sent = bytearray()

    class Writer:
        def write(self, data):
            sent.extend(data)

        async def drain(self):
            pass

    reader = asyncio.StreamReader()
    talk = Conversation(reader, Writer(), INITIALIZED + frame({"id": 2, "result": GOOD}))
    assert await signed_in_with_pat(talk)
    first, second, third = unmasked(bytes(sent))
    assert first["method"] == "initialize"
    assert second == {"method": "initialized"}
    assert third["method"] == "getAuthStatus"
    assert third["params"] == {"includeToken": False, "refreshToken": False}
