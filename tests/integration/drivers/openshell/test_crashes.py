"""The crash table: generated from the calls actually made, so that a new call cannot escape it.

For every call of every member the process dies before it, dies after it, or its answer is lost; then a new process does everything
again. At rest there is the same state as in the undisturbed run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
from pathlib import Path

import pytest

from oce.contracts.refusals import DriverRefusal, NotVisible, OwnershipConflict
from oce.contracts.sandbox import PolicyApplication, RevisionContext
from oce.drivers.openshell.workspace_program import initialise
from oce.testing.openshell_bench import (
    CANARY,
    DOCUMENT,
    SETUP_TOKEN,
    TOKEN,
    Bench,
    a_namespace,
    a_source,
)
from oce.testing.openshell_faults import Died, DyingGateway, HidingGateway
from oce.testing.scripted_gateway import Answer, ScriptedGateway, altered, lost
from oce.testing.scripted_state import STREAMS
from oce.testing.spoilt_messages import spoilt

RULE = {
    "name": "docs",
    "binaries": [{"path": "/usr/bin/curl"}],
    "endpoints": [{"host": "docs.example.com", "ports": [443]}],
}


class UnfinishedError(AssertionError):
    """A member answered that it is not done."""


async def _apply_policy(bench):
    snapshot = bench.driver.admit_network_policy([RULE], 1)
    observed = await bench.driver.observe_network_policy(bench.revision(), snapshot)
    found = await bench.driver.apply_network_policy(
        bench.revision(),
        PolicyApplication(
            snapshot=snapshot,
            expected_provider_version=observed.provider_version,
            operation_id="one",
        ),
    )
    if (found.matches, found.load_state) != (True, "loaded"):
        raise UnfinishedError


async def _withdraw(bench):
    attachment = bench.harness().requirements.credential_attachments[0]
    if await bench.keys.withdraw(bench.revision(), attachment) != "revoked":
        raise UnfinishedError


async def _renew(bench):
    bench.clock.time = max(bench.clock.time, 700)
    bench.stage_node(expires=1_800_001_200_000, token="renewed")
    await bench.driver.provision_harness(bench.native())


async def _provision_native(bench):
    bench.stage_node()
    await bench.driver.provision_harness(bench.native())


async def _provision_with_files(bench):
    bench.stage_files()
    await bench.driver.provision_harness(bench.with_files())


def _native(bench):
    return RevisionContext(namespace=a_namespace(), revision=bench.native_revision)


COMMON = {
    "ensure_namespace": lambda b: b.driver.ensure_namespace(b.namespace()),
    "register_source": lambda b: b.register(),
}
CODEX = {
    **COMMON,
    "provision_harness": lambda b: b.driver.provision_harness(b.harness()),
    "apply policy": _apply_policy,
    "withdraw": _withdraw,
    "cleanup revision": lambda b: b.driver.cleanup(b.removal()),
    "remove_source": lambda b: b.keys.remove_source(b.namespace(), a_source()),
    "cleanup namespace": lambda b: b.driver.cleanup(b.removal(whole=True)),
}
NATIVE = {
    **COMMON,
    "provision native": _provision_native,
    "renewal": _renew,
    "withdraw exposure": lambda b: b.driver.withdraw_harness_exposure(_native(b)),
    "adopt enrolled": lambda b: b.driver.provision_harness(b.native(enrolled=True)),
    "cleanup native": lambda b: b.driver.cleanup(b.removal()),
}
FILES = {
    **COMMON,
    "provision with files": _provision_with_files,
    "cleanup with files": lambda b: b.driver.cleanup(b.removal()),
}
FLOWS = CODEX | NATIVE | FILES
CHAINS = [list(CODEX), list(NATIVE), list(FILES)]
NAMES = list(FLOWS)
MOST_CALLS = 12
SPOILT = int(os.environ.get("OCE_TEST_SPOILT", "6"))
"""How many spoilt answers are tried for each call; a large number tries all."""
SECRETS = {CANARY, TOKEN, SETUP_TOKEN, DOCUMENT}


async def _until(bench, flow):
    chain = next(chain for chain in CHAINS if flow in chain)
    for name in chain[: chain.index(flow)]:
        await FLOWS[name](bench)


def _bench(gateway):
    """A bench whose Sandboxes share one directory, in which the program of the initial files really runs."""
    bench = Bench(gateway)
    bench.folder = tempfile.TemporaryDirectory(prefix="oce-files-")

    def execute(request):
        initialise(json.loads(request.stdin), bench.folder.name)
        return 0

    gateway.on_exec = execute
    return bench


def _rest(bench):
    """The state at rest without what differs between any two runs (ids, epochs)."""
    state = bench.gateway.state
    providers = {
        key: (p.type, dict(p.metadata.labels), dict(p.config), sorted(p.credentials))
        for key, p in state.providers.items()
    }
    specs = {}
    for key, sandbox in state.sandboxes.items():
        sandbox.spec.provider_attachment_epoch = ""
        specs[key] = sandbox.spec.SerializeToString(deterministic=True)
    profiles = {key: p.SerializeToString(deterministic=True) for key, p in state.profiles.items()}
    policies = {
        key: [(p.version, p.status, sorted(p.policy.network_policies)) for p in found]
        for key, found in state.policies.items()
    }
    files = {p.name: p.read_text() for p in Path(bench.folder.name).iterdir()}
    return (
        sorted(state.workspaces),
        specs,
        sorted(state.services),
        providers,
        profiles,
        policies,
        files,
    )


@contextlib.asynccontextmanager
async def _world(flow):
    """A new gateway and a bench on it that stands just before `flow`."""
    gateway = ScriptedGateway()
    await gateway.start()
    bench = _bench(gateway)
    try:
        await _until(bench, flow)
        yield gateway, bench
    finally:
        bench.folder.cleanup()
        for made in bench.clients:
            await made.close()
        await gateway.stop()


async def _undisturbed(flow):
    async with _world(flow) as (gateway, bench):
        before = len(gateway.requests)
        await FLOWS[flow](bench)
        return _rest(bench), gateway.methods()[before:]


def _leaks(gateway):
    """Return the requests that hold a secret which is not theirs to carry."""
    carries = {
        "CreateProvider": {CANARY, SETUP_TOKEN},
        "UpdateProvider": {CANARY, SETUP_TOKEN},
        "ExecSandbox": {DOCUMENT},
    }
    return [
        (method, secret)
        for method, message in gateway.requests
        for secret in SECRETS - carries.get(method, set())
        if secret in str(message)
    ]


async def _disturbed(flow, gateway, bench, calls, number, fault):
    """Run a flow whose call `number` meets a fault."""
    if fault.startswith("dies"):
        bench.restart(DyingGateway(gateway, number, after=fault == "dies after"))
        with pytest.raises(Died):
            await FLOWS[flow](bench)
        return
    method = calls[number - 1]
    gateway.script(method, *[Answer()] * calls[: number - 1].count(method))
    gateway.script(method, lost(after=fault == "answer lost"))
    await _refusal(FLOWS[flow](bench))


@pytest.mark.parametrize("flow", NAMES)
async def test_br03_every_call_survives_a_death_and_a_lost_answer(flow, caplog):
    caplog.set_level("DEBUG")
    wanted, calls = await _undisturbed(flow)
    assert 0 < len(calls) <= MOST_CALLS * 2
    for number, method in enumerate(calls, 1):
        for fault in ("dies before", "dies after", "answer lost", "never arrived"):
            async with _world(flow) as (gateway, bench):
                await _disturbed(flow, gateway, bench, calls, number, fault)
                bench.restart()
                await FLOWS[flow](bench)
                await FLOWS[flow](bench)
                assert _rest(bench) == wanted, (number, method, fault)
                assert len(gateway.state.sandboxes) <= 1
                assert _leaks(gateway) == [], (number, method, fault)
    assert not any(secret in caplog.text for secret in SECRETS)


async def _refusal(member):
    """Return how a member says that it is not done, or None when it claims to be."""
    try:
        await member
    except (DriverRefusal, NotVisible, UnfinishedError) as error:
        return error
    return None


@pytest.mark.parametrize("flow", NAMES)
async def test_g15_a_role_lost_at_any_call_is_never_taken_for_an_absence(flow):
    wanted, calls = await _undisturbed(flow)
    for number, method in enumerate(calls, 1):
        async with _world(flow) as (gateway, bench):
            bench.restart(HidingGateway(gateway, number))
            refused = await _refusal(FLOWS[flow](bench))
            if refused is None:
                assert _rest(bench) == wanted, f"believed what was hidden: {number}, {method}"
            assert not isinstance(refused, OwnershipConflict), (number, method, refused)
            gateway.concealed = False
            bench.restart()
            await FLOWS[flow](bench)
            assert _rest(bench) == wanted, (number, method)


async def _spoilt_answers(flow, number, method, calls):
    """Return every way in which the answer of one call can be spoilt."""
    kept = []

    def keep(response):
        kept.append(response)
        return response

    async with _world(flow) as (gateway, bench):
        gateway.script(method, *[Answer()] * calls[: number - 1].count(method), altered(keep))
        await FLOWS[flow](bench)
    if (
        not kept or method in STREAMS
    ):  # a refusal has no message; a broken stream has tests of its own
        return []
    return [name for name, _ in spoilt(kept[0])]


@pytest.mark.parametrize("flow", NAMES)
async def test_g21_a_spoilt_answer_is_refused_or_harmless_and_never_shown(flow):
    wanted, calls = await _undisturbed(flow)
    chosen = random.Random(flow)  # noqa: S311 - the same choice in every run
    for number, method in enumerate(calls, 1):
        ways = await _spoilt_answers(flow, number, method, calls)
        for way in chosen.sample(ways, min(len(ways), SPOILT)):

            def spoil(response, way=way):
                return next((copy for name, copy in spoilt(response) if name == way), response)

            async with _world(flow) as (gateway, bench):
                gateway.script(method, *[Answer()] * calls[: number - 1].count(method))
                gateway.script(method, altered(spoil))
                refused = await _refusal(FLOWS[flow](bench))
                where = (number, method, way, refused)
                assert "script" not in str(refused), where
                gateway.unscript()
                bench.restart()
                await FLOWS[flow](bench)
                assert _rest(bench) == wanted, where
                assert _leaks(gateway) == [], where


async def test_g21_br38_no_secret_in_any_request_but_the_two_that_carry_it(bench, caplog):
    caplog.set_level("DEBUG")
    await bench.deploy()
    await bench.driver.harness_status(bench.status())
    await bench.driver.cleanup(bench.removal())
    for method, message in bench.gateway.requests:
        text = str(message)
        assert TOKEN not in text
        assert (CANARY in text) == (
            method in {"CreateProvider", "UpdateProvider"} and bool(message.provider.credentials)
        )
    assert CANARY not in caplog.text
    assert TOKEN not in caplog.text
