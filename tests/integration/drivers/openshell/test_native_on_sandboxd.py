"""A native worker against sandboxd: its files appear inside, its setup is renewed under the fence, its exposure goes and stays gone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from oce.contracts.refusals import StillPending
from oce.contracts.sandbox import CleanupContext, HarnessContext, RevisionContext
from oce.domain import names
from oce.domain.resources import Harness
from oce.domain.secret import SecretText
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.drivers.openshell.settings import parse_settings
from oce.testing.memory_objects import MemoryPrivateObjects
from oce.testing.openshell_bench import (
    CANARY,
    NODE_CA,
    NODE_SECRET,
    REVISION_ID,
    SETUP_TOKEN,
    StepClock,
    a_namespace,
    a_revision,
    a_source,
    native_requirements,
    owner_labels,
    setup_code,
)
from oce.testing.openshell_machine import machine

pytestmark = pytest.mark.sandbox
WORKER = """
import json, os, time
seen = {
    "setup": open(os.environ["OPENCLAW_NODE_SETUP_ENVELOPE"]).read(),
    "ca": open(os.environ["OPENCLAW_NODE_CA_PATH"]).read(),
    "environment": dict(os.environ),
}
path = os.environ["OPENCLAW_WORKSPACE_DIR"] + "/seen.json"
with open(path + ".new", "w") as out:
    json.dump(seen, out)
os.rename(path + ".new", path)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def sandboxd():
    with machine() as made:
        yield made


async def _removed(box, context):
    async with asyncio.timeout(20):
        while True:
            try:
                await box.cleanup(context)
            except StillPending:
                await asyncio.sleep(0.02)
            else:
                return


async def test_a_native_worker_lives_on_sandboxd(sandboxd):
    gateway, _, sources = sandboxd.drivers()
    clock, private = StepClock(), MemoryPrivateObjects()
    box = OpenShellSandbox("box", parse_settings({"local": {}}), gateway, clock)
    private.stage(NODE_SECRET, "setupCode", owner_labels(), setup_code())
    context = HarnessContext(
        namespace=a_namespace(),
        revision=a_revision(harness=Harness(id="openclaw", version="2026.1", mode="dedicated")),
        requirements=native_requirements(command=("/usr/bin/python3", "-c", WORKER)),
        private=private,
    )
    revision = RevisionContext(namespace=context.namespace, revision=context.revision)
    workspace = a_namespace().name
    await box.ensure_namespace(context)
    await sources.register_source(context, a_source(), {"api_key": SecretText(CANARY)})
    await box.provision_harness(context)
    seen = sandboxd.agents / "a1" / "workspace" / "seen.json"
    async with asyncio.timeout(20):
        while not seen.exists():  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.02)
    found = json.loads(seen.read_text())
    assert json.loads(found["setup"])["bootstrapToken"] == SETUP_TOKEN
    assert found["ca"] == NODE_CA
    assert SETUP_TOKEN not in json.dumps(found["environment"])

    private.stage(
        NODE_SECRET, "setupCode", owner_labels(), setup_code(expires=1_800_001_200_000, token="new")
    )
    clock.time += 700
    await box.provision_harness(context)
    held = await gateway.get_provider(workspace, names.runtime_provider(REVISION_ID))
    assert json.loads(held.config["node_setup_json"])["bootstrapToken"] == "new"

    await box.withdraw_harness_exposure(revision)
    await box.withdraw_harness_exposure(revision)
    await box.provision_harness(replace(context, workspace_node_enrolled=True))
    assert await gateway.get_service(workspace, names.sandbox_name(REVISION_ID)) is None
    await _removed(box, CleanupContext(namespace=context.namespace, revision=context.revision))
    left = [p.meta.name for p in await gateway.list_providers(workspace)]
    assert left == [names.credential_provider(a_source().id)]
    await gateway.close()
