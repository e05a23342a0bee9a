"""The OpenShell Driver passes the SandboxDriver suite: over the scripted gateway for one machine and for a cluster, and over sandboxd.

Every rule of the contract page has a test.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import time
import uuid
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from oce.contracts.sandbox import WorkspaceMount
from oce.domain.resources import Harness
from oce.domain.secret import SecretText
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.drivers.openshell.observation import phase_name
from oce.testing.conformance_subject import RULES as PINNED
from oce.testing.conformance_subject import Case
from oce.testing.conformance_table import render
from oce.testing.memory_objects import MemoryObjects, MemoryPrivateObjects
from oce.testing.openshell_bench import (
    CANARY,
    DOCUMENT,
    NODE_SECRET,
    SETUP_TOKEN,
    TOKEN,
    Bench,
    a_namespace,
    a_revision,
    a_source,
    kubernetes_settings,
    native_requirements,
    owner_labels,
    setup_code,
)
from oce.testing.openshell_machine import harness_contexts, machine
from oce.testing.sandbox_conformance import SandboxConformance, Subject
from oce.testing.scripted_gateway import ScriptedGateway, status

RULES = Path(__file__).resolve().parents[2] / "docs" / "contracts" / "sandbox.md"
PRIVATE = {"CreateProvider", "UpdateProvider", "ExecSandbox"}
"""The requests that carry a secret on purpose."""


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


@contextlib.asynccontextmanager
async def _scripted(bench_type=Bench):
    """A bench on a scripted gateway, and the subject with every hook."""
    gateway = ScriptedGateway()
    gateway.on_service = _serving
    await gateway.start()
    bench = bench_type(gateway)
    await bench.prepare()
    bench.stage_node()
    bench.stage_files()
    try:
        yield _subject(bench, gateway)
    finally:
        for client in bench.clients:
            await client.close()
        await gateway.stop()


def _subject(bench, gateway):
    def restart():
        bench.restart()
        return bench.driver

    async def objects():
        held = [*gateway.state.sandboxes, *gateway.state.services, *gateway.state.providers]
        return [name for _, name in held if not name.startswith("oce-cs-")]

    def transcript():
        return [str(message) for method, message in gateway.requests if method not in PRIVATE]

    def tamper():
        gateway.state.sandboxes[bench.workspace, bench.sandbox].spec.command.append("x")

    def conceal():
        gateway.concealed = True

    def slow_deletions():
        gateway.accepts_deletions, gateway.deletion_reads = True, 1000

    def hostile_text(text):
        gateway.script("CreateSandbox", status(grpc.StatusCode.INTERNAL, details=text))

    return Subject(
        driver=bench.driver,
        restart=restart,
        namespace=bench.namespace(),
        harness=bench.harness(),
        status=bench.status(),
        secrets=(CANARY, TOKEN, DOCUMENT, SETUP_TOKEN),
        native=bench.native(),
        enrolled=bench.native(enrolled=True),
        files=bench.with_files(),
        objects=objects,
        transcript=transcript,
        tamper=tamper,
        conceal=conceal,
        slow_deletions=slow_deletions,
        hostile_text=hostile_text,
    )


class TestOverTheScriptedGateway(SandboxConformance):
    @pytest.fixture
    async def subject(self):
        async with _scripted() as subject:
            yield subject


class KubernetesBench(Bench):
    """The same revision on a cluster: its objects in memory, its workspace a claim's sub-path."""

    def restart(self, client=None):
        super().restart(client)
        self.driver = OpenShellSandbox("box", kubernetes_settings(), self.client, self.clock)

    def _on_the_cluster(self, context):
        if not hasattr(self, "cluster"):
            self.cluster = MemoryObjects()
            manifest = {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": self.workspace},
            }
            self.cluster.put(self.workspace, manifest)
        context = replace(context, objects=self.cluster)
        if not hasattr(context, "requirements"):
            return context
        claim = WorkspaceMount(
            claim="pvc-a1", sub_path="w", mount_path="/home/node/workspace", read_only=False
        )
        requirements = replace(context.requirements, workspace_mounts=(claim,))
        return replace(context, requirements=requirements)

    def namespace(self):
        return self._on_the_cluster(super().namespace())

    def harness(self, *given, **changes):
        return self._on_the_cluster(super().harness(*given, **changes))

    def native(self, **changes):
        return self._on_the_cluster(super().native(**changes))

    def with_files(self, **changes):
        return self._on_the_cluster(super().with_files(**changes))

    def status(self, *given):
        return self._on_the_cluster(super().status(*given))


class TestOnKubernetesOverTheScriptedGateway(SandboxConformance):
    @pytest.fixture
    async def subject(self):
        async with _scripted(KubernetesBench) as subject:
            yield subject


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
        native = _a_worker(harness)
        subject = Subject(
            driver=box,
            restart=lambda: _remember(clients, sandboxd.drivers()),
            namespace=harness,
            harness=harness,
            status=wanted,
            secrets=(CANARY, TOKEN, DOCUMENT, SETUP_TOKEN),
            native=native,
            enrolled=replace(native, workspace_node_enrolled=True),
            files=_with_files(harness),
            transcript=lambda: [sandboxd.log],
            inside=lambda line: _inside(gateway, box.harness_resource(harness), line),
            objects=lambda: _objects(gateway),
        )
        await box.ensure_namespace(harness)
        await sources.register_source(harness, a_source(), {"api_key": SecretText(CANARY)})
        yield subject
        for client in clients:
            await client.close()


def _with_files(harness):
    bench = Bench.__new__(Bench)
    bench.private = MemoryPrivateObjects()
    bench.stage_files()
    setup = bench.with_files().requirements.workspace_setup
    requirements = replace(harness.requirements, workspace_setup=setup)
    return replace(harness, requirements=requirements, private=bench.private)


def _remember(clients, made):
    clients.append(made[0])
    return made[1]


async def _inside(gateway, place, line):
    """Run a shell line in the Sandbox as soon as it is ready."""
    async with asyncio.timeout(20):
        while True:
            record = await gateway.get_sandbox(place.namespace_name, place.resource_name)
            if phase_name(record.phase) == "READY":
                break
            await asyncio.sleep(0.02)
    return await gateway.exec_sandbox(
        place.namespace_name,
        place.resource_name,
        ("/bin/sh", "-c", line),
        environment={},
        stdin=SecretText(""),
        timeout_seconds=20,
    )


def _a_worker(harness):
    """The same revision as a native worker that dials out."""
    private = MemoryPrivateObjects()
    expires = int(time.time() + 600) * 1000
    private.stage(NODE_SECRET, "setupCode", owner_labels(), setup_code(expires=expires))
    openclaw = Harness(id="openclaw", version="2026.1", mode="dedicated")
    command = ("/usr/bin/python3", "-c", "import time; time.sleep(600)")
    return replace(
        harness,
        revision=replace(harness.revision, harness=openclaw),
        requirements=native_requirements(command=command),
        private=private,
    )


async def _objects(gateway):
    workspace = a_namespace().name
    boxes = await gateway.list_sandboxes(workspace)
    held = [item.meta.name for item in [*boxes, *await gateway.list_providers(workspace)]]
    services = [await gateway.get_service(workspace, item.meta.name) for item in boxes]
    held += [f"exposure of {service.sandbox}" for service in services if service is not None]
    return [name for name in held if not name.startswith("oce-cs-")]


def test_every_rule_has_a_test_of_its_present_text_and_no_test_invents_one():
    rows = re.findall(r"^\| (SBX-\d+) \| (.*?) \| (.*?) \|$", RULES.read_text(), re.MULTILINE)
    written = {
        number: hashlib.sha256(f"{text}|{level}".encode()).hexdigest()[:12]
        for number, text, level in rows
    }
    assert written == PINNED, "a rule changed: change its test, then its pin"
    tests = [name for name in dir(SandboxConformance) if name.startswith("test_")]
    tested = {"SBX-" + re.match(r"test_sbx_(\d+)_", name)[1] for name in tests}
    assert tested == written.keys()
    assert all(isinstance(getattr(SandboxConformance, n).conformance, Case) for n in tests)


def test_the_table_shows_the_worst_of_each_cell():
    outcomes = {
        ("cleanup", "hidden"): ["passed", "failed"],
        ("cleanup", "kept"): ["passed", "passed"],
        ("facets", "kept"): ["skipped"],
    }
    assert render(outcomes) == [
        "member   hidden  kept",
        "cleanup  FAILED  ok x2",
        "facets   -       n/a",
    ]
