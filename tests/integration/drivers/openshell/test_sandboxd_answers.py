"""What the Driver makes of sandboxd's own words: a machine that cannot confine, and denials that suggest a rule."""

from __future__ import annotations

import asyncio
import time

import pytest
from openshell import SandboxClient, TlsConfig

from oce.contracts.refusals import RevisionUnsupported
from oce.domain.secret import SecretText
from oce.sandboxd.state.keys import Keys
from oce.testing.openshell_bench import CANARY, Bench, a_source
from oce.testing.openshell_machine import harness_contexts, machine

pytestmark = pytest.mark.sandbox

BENCH = Bench.__new__(Bench)  # only its contexts are used
ASK = "import urllib.request as u\nu.urlopen('https://docs.example.com/', timeout=5)"


async def until(read, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (found := await read()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return found


async def prepare(box, sources):
    await box.ensure_namespace(BENCH.namespace())
    await sources.register_source(BENCH.namespace(), a_source(), {"api_key": SecretText(CANARY)})
    await sources.attach_for_revision(BENCH.revision(), [a_source()])


async def test_a_machine_that_cannot_confine_is_a_permanent_refusal_that_says_so(tmp_path):
    shim = tmp_path / "bwrap"
    shim.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "bubblewrap 0.11.0" && exit\n'
        'echo "bwrap: setting up uid map: Permission denied" >&2\nexit 1\n'
    )
    shim.chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # a Sandbox's uid must reach it
    with machine(f'[confinement]\nbwrap = "{shim}"\n') as made:
        gateway, box, sources = made.drivers()
        harness, status = harness_contexts()
        await prepare(box, sources)
        await box.provision_harness(harness)

        async def refused():
            try:
                await box.harness_status(status)
            except RevisionUnsupported as refusal:
                return refusal
            return None

        assert (await until(refused)).code == "SANDBOX_CONFINEMENT_UNAVAILABLE"
        with pytest.raises(RevisionUnsupported) as again:
            await box.provision_harness(harness)
        assert again.value.code == "SANDBOX_CONFINEMENT_UNAVAILABLE"
        await gateway.close()


async def test_a_denied_connection_is_recommended_with_its_program():
    with machine() as made:
        gateway, box, sources = made.drivers()
        harness, status = harness_contexts()
        await prepare(box, sources)
        reference = await box.provision_harness(harness)

        async def serving():
            return (await box.harness_status(status)).state == "serving"

        await until(serving)
        keys = Keys(made.folder / "s" / "auth")
        tls = TlsConfig(keys.ca, keys.client_certificate, keys.client_key)

        def ask():
            with SandboxClient(f"127.0.0.1:{made.port}", tls=tls, timeout=20) as client:
                return client.exec(
                    reference.resource_name,
                    ["/usr/bin/python3", "-c", ASK],
                    workspace=reference.namespace_name,
                )

        assert (await asyncio.to_thread(ask)).exit_code == 1
        found = await until(lambda: box.read_policy_recommendations(BENCH.revision(), 10))
        assert [(item.host, item.port, item.state) for item in found] == [
            ("docs.example.com", 443, "pending")
        ]
        assert found[0].binary.startswith("/usr/bin/python3")
        assert found[0].observations == 1
        await gateway.close()
