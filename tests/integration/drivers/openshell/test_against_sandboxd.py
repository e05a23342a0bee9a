"""The Driver pair against the real single-machine gateway, with a real confined process as Harness."""

from __future__ import annotations

import asyncio
import time

import pytest

from oce.contracts.credential_gateway import AttachmentStatus
from oce.contracts.sandbox import LogRequest, PolicyApplication
from oce.domain.secret import SecretText
from oce.testing.openshell_bench import CANARY, TOKEN, Bench, a_source
from oce.testing.openshell_machine import harness_contexts, machine

pytestmark = pytest.mark.sandbox


@pytest.fixture(name="machine")
def running_machine():
    with machine() as made:
        yield made
        print(made.log)  # noqa: T201 - shown when the test fails


async def _until(read, wanted, seconds=20.0):
    deadline = time.monotonic() + seconds
    while True:
        found = await read()
        if found == wanted:
            return
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)


async def test_a_harness_is_provisioned_serves_survives_a_kill_and_is_removed(machine):
    gateway, box, sources = machine.drivers()
    bench = Bench.__new__(Bench)  # only its contexts are used
    harness, status = harness_contexts()
    await box.ensure_namespace(bench.namespace())
    await sources.register_source(bench.namespace(), a_source(), {"api_key": SecretText(CANARY)})
    await sources.update_source(bench.namespace(), a_source(), {"api_key": SecretText(CANARY)})
    (attachment,) = await sources.attach_for_revision(bench.revision(), [a_source()])
    reference = await box.provision_harness(harness)

    async def state():
        return (await box.harness_status(status)).state

    await _until(state, "serving")
    assert await box.provision_harness(harness) == reference
    await _until(
        lambda: sources.attachment_status(bench.revision(), attachment), AttachmentStatus.READY
    )
    endpoint = await box.harness_endpoint(harness)
    assert endpoint.url.startswith(f"wss://{reference.namespace_name}--{reference.resource_name}.")
    assert "PRIVATE KEY" not in endpoint.ca_bundle
    seen = (machine.agents / "a1" / "workspace" / "seen.json").read_text()
    assert '"HOME": "/sandbox/.openclaw-runtime/home"' in seen
    assert '"OPENAI_API_KEY"' in seen
    assert CANARY not in seen
    assert TOKEN not in seen

    rule = {
        "name": "docs",
        "binaries": [{"path": "/usr/bin/curl"}],
        "endpoints": [
            {"host": "docs.example.com", "ports": [443], "protocol": "rest", "access": "read_only"}
        ],
    }
    snapshot = box.admit_network_policy([rule], 1)
    before = await box.observe_network_policy(bench.revision(), snapshot)
    assert not before.matches
    await box.apply_network_policy(
        bench.revision(),
        PolicyApplication(
            snapshot=snapshot, expected_provider_version=before.provider_version, operation_id="op"
        ),
    )

    async def in_force():
        found = await box.observe_network_policy(bench.revision(), snapshot)
        return found.matches and found.load_state

    await _until(in_force, "loaded")

    machine.kill()
    machine.start()
    await _until(state, "serving")
    assert await box.provision_harness(harness) == reference
    assert (await box.observe_harness(bench.revision())).state == "running"
    await box.read_sandbox_logs(bench.revision(), LogRequest(lines=50))

    await box.cleanup(bench.removal())
    assert (await box.observe_harness(bench.revision())).code == "SANDBOX_MISSING"
    await sources.remove_source(bench.namespace(), a_source())
    await box.cleanup(bench.removal(whole=True))
    await gateway.close()
