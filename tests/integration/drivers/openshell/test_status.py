"""The service transport: handshake first, the held failure only after a refused upgrade (reference/sandbox-openshell.md §10)."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from oce.contracts.refusals import DriverRefusal, OwnershipConflict, TransientDependency
from oce.testing.openshell_bench import TOKEN

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
FAILURE = {"component": "agent", "check": "login", "code": "AUTHENTICATION_FAILED"}


class Harness:
    """A Harness behind the service route; `document` None means a serving app-server."""

    def __init__(self, bench, *, accept=True, document=None):
        self.bench, self.accept, self.document = bench, accept, document
        self.heads = []
        bench.gateway.on_service = self.answer

    async def answer(self, head, writer):
        text = head.decode()
        self.heads.append(text)
        if "Upgrade: websocket" in text or "upgrade: websocket" in text.lower():
            if not self.accept:
                writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
                return
            key = re.search(r"(?i)sec-websocket-key: (\S+)", text)[1]
            proof = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()  # noqa: S324 - RFC 6455
            if self.accept == "wrong":
                proof = "bm90IHRoaXM="
            writer.write(
                f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Accept: {proof}\r\n\r\n".encode()
            )
            return
        status, kind, body = self.document
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
            f"location: http://elsewhere.example/\r\nconnection: close\r\n\r\n".encode()
            + body
        )


async def test_g13_a_serving_app_server_never_sees_a_plain_request(bench):
    await bench.deploy()
    harness = Harness(bench)
    assert (await bench.driver.harness_status(bench.status())).state == "serving"
    (head,) = harness.heads
    assert head.startswith("GET / HTTP/1.1\r\n")
    assert (
        f"Host: {bench.workspace}--{bench.sandbox}.openshell.localhost:{bench.gateway.port}" in head
    )
    assert f"Authorization: Bearer {TOKEN}" in head
    assert "Origin" not in head


JSON = "application/json"
GOOD = json.dumps({"runtimeFailure": FAILURE}).encode()


@pytest.mark.parametrize(
    ("document", "state"),
    [
        ((200, JSON, GOOD), "failed"),
        ((200, "application/json; charset=utf-8", GOOD), "failed"),
        ((200, "text/plain", GOOD), "starting"),
        ((302, JSON, GOOD), "starting"),
        ((404, JSON, GOOD), "starting"),
        ((502, "text/plain", b"not reachable"), "starting"),
        ((200, JSON, b"[" * 5000), "starting"),
        ((200, JSON, b"{}"), "starting"),
        ((200, JSON, b'{"runtimeFailure": "x"}'), "starting"),
        ((200, JSON, b'{"runtimeFailure": {"a": "' + b"x" * 20_000 + b'"}}'), "starting"),
    ],
)
async def test_g13_the_held_document_is_read_after_a_refused_upgrade(bench, document, state):
    await bench.deploy()
    harness = Harness(bench, accept=False, document=document)
    found = await bench.driver.harness_status(bench.status())
    assert found.state == state
    assert found.failure_document == (FAILURE if state == "failed" else None)
    assert [head.split()[1] for head in harness.heads] == ["/", "/openclaw/runtime/status"]


async def test_a_wrong_accept_value_is_not_serving(bench):
    await bench.deploy()
    Harness(bench, accept="wrong", document=(404, JSON, b""))
    assert (await bench.driver.harness_status(bench.status())).state == "starting"


async def test_a_dead_sandbox_is_named_instead_of_starting(bench):
    await bench.deploy()
    Harness(bench, accept=False, document=(502, "text/plain", b""))
    bench.gateway.state.sandboxes[bench.workspace, bench.sandbox].status.phase = 3
    with pytest.raises(DriverRefusal) as refused:
        await bench.driver.harness_status(bench.status())
    assert refused.value.code == "SANDBOX_FAILED"


async def test_g13_garbage_and_silence_are_transient_and_a_bad_token_never_leaves(bench):
    await bench.deploy()
    heads = []

    async def garbage(head, writer):
        heads.append(head)
        writer.write(b"\x00\x01 nonsense\r\n\r\n")

    bench.gateway.on_service = garbage
    with pytest.raises(TransientDependency):
        await bench.driver.harness_status(bench.status())
    heads.clear()
    with pytest.raises(DriverRefusal) as refused:
        await bench.driver.harness_status(bench.status("evil\r\nX: y"))
    assert "evil" not in str(refused.value)
    assert heads == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/",
        "http://u:p@h/",
        "http://h/path",
        "http://h/?q",
        "https://h/",
        "http://H_x/",
        "",
        "http://h:x/",
    ],
)
async def test_another_url_than_a_plain_origin_is_refused(bench, url):
    await bench.deploy()
    bench.gateway.state.services[bench.workspace, bench.sandbox].url = url
    with pytest.raises(DriverRefusal):
        await bench.driver.harness_endpoint(bench.harness())


async def test_g13_a_missing_or_other_exposure_is_an_error_not_starting(bench):
    await bench.deploy()
    bench.gateway.state.services[bench.workspace, bench.sandbox].endpoint.target_port = 1
    with pytest.raises(OwnershipConflict):
        await bench.driver.harness_status(bench.status())
    bench.gateway.state.services.clear()
    with pytest.raises(DriverRefusal, match="exposure"):
        await bench.driver.harness_status(bench.status())
