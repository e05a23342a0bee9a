"""The OpenShell Driver passes the SandboxDriver suite over the scripted gateway and over sandboxd; every rule has a test."""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from pathlib import Path

import grpc
import pytest

from oce.domain.secret import SecretText
from oce.testing.openshell_bench import CANARY, TOKEN, Bench, a_namespace, a_revision, a_source
from oce.testing.openshell_machine import harness_contexts, machine
from oce.testing.sandbox_conformance import SandboxConformance, Subject
from oce.testing.scripted_gateway import ScriptedGateway, status

RULES = Path(__file__).resolve().parents[2] / "docs" / "contracts" / "sandbox.md"
CARRIES_SECRETS = {"CreateProvider", "UpdateProvider"}


async def _serving(head, writer):
    """A Harness that knows its token."""
    text = head.decode()
    key = re.search(r"(?i)sec-websocket-key: (\S+)", text)
    if TOKEN not in text or key is None:
        writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        return
    proof = hashlib.sha1(f"{key[1]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()  # noqa: S324 - RFC 6455
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: " + base64.b64encode(proof) + b"\r\n\r\n"
    )


class TestOverTheScriptedGateway(SandboxConformance):
    @pytest.fixture
    async def subject(self):
        gateway = ScriptedGateway()
        gateway.on_service = _serving
        await gateway.start()
        bench = Bench(gateway)
        await bench.prepare()

        def restart():
            bench.restart()
            return bench.driver

        async def objects():
            held = [*gateway.state.sandboxes, *gateway.state.services, *gateway.state.providers]
            return [name for _, name in held if not name.startswith("oce-cs-")]

        def transcript():
            return [
                str(message)
                for method, message in gateway.requests
                if method not in CARRIES_SECRETS or not message.provider.credentials
            ]

        def tamper():
            gateway.state.sandboxes[bench.workspace, bench.sandbox].spec.command.append("x")

        def conceal():
            gateway.concealed = True

        def slow_deletions():
            gateway.accepts_deletions, gateway.deletion_reads = True, 1000

        def hostile_text(text):
            gateway.script("CreateSandbox", status(grpc.StatusCode.INTERNAL, details=text))

        yield Subject(
            driver=bench.driver,
            restart=restart,
            namespace=bench.namespace(),
            harness=bench.harness(),
            status=bench.status(),
            secrets=(CANARY, TOKEN),
            objects=objects,
            transcript=transcript,
            tamper=tamper,
            conceal=conceal,
            slow_deletions=slow_deletions,
            hostile_text=hostile_text,
        )
        for client in bench.clients:
            await client.close()
        await gateway.stop()


@pytest.fixture(scope="module")
def sandboxd():
    with machine() as made:
        yield made


@pytest.mark.sandbox
class TestOverSandboxd(SandboxConformance):
    @pytest.fixture
    async def subject(self, sandboxd):
        gateway, box, sources = sandboxd.drivers()
        clients = [gateway]
        harness, wanted = harness_contexts(a_revision(id=f"rev_{uuid.uuid4()}"))
        subject = Subject(
            driver=box,
            restart=lambda: _remember(clients, sandboxd.drivers()),
            namespace=harness,
            harness=harness,
            status=wanted,
            objects=lambda: _objects(gateway),
        )
        await box.ensure_namespace(harness)
        await sources.register_source(harness, a_source(), {"api_key": SecretText(CANARY)})
        yield subject
        for client in clients:
            await client.close()


def _remember(clients, made):
    clients.append(made[0])
    return made[1]


async def _objects(gateway):
    workspace = a_namespace().name
    held = [*await gateway.list_sandboxes(workspace), *await gateway.list_providers(workspace)]
    return [item.meta.name for item in held if not item.meta.name.startswith("oce-cs-")]


def test_every_rule_of_the_contract_page_has_a_test_and_no_test_invents_one():
    written = {
        int(number) for number in re.findall(r"^\| SBX-(\d+) \|", RULES.read_text(), re.MULTILINE)
    }
    tested = {
        int(found[1])
        for name in dir(SandboxConformance)
        if (found := re.match(r"test_sbx_(\d+)_", name))
    }
    assert written == tested
