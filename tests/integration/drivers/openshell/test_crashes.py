"""The crash table: generated from the calls actually made, so that a new call cannot escape it.

For every call of every member the process dies before it, dies after it, or its answer is lost; then a new process does everything
again. At rest there is the same state as in the undisturbed run.
"""

from __future__ import annotations

import contextlib

import pytest

from oce.contracts.refusals import DriverRefusal
from oce.contracts.sandbox import PolicyApplication
from oce.drivers.openshell.wire import Gateway
from oce.testing.openshell_bench import CANARY, TOKEN, Bench, a_backend, a_source
from oce.testing.scripted_gateway import Answer, ScriptedGateway, lost

RULE = {
    "name": "docs",
    "binaries": [{"path": "/usr/bin/curl"}],
    "endpoints": [{"host": "docs.example.com", "ports": [443]}],
}


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
    assert (found.matches, found.load_state) == (True, "loaded")


async def _withdraw(bench):
    attachment = bench.harness().requirements.credential_attachments[0]
    assert await bench.keys.withdraw(bench.revision(), attachment) == "revoked"


FLOWS = {
    "ensure_namespace": lambda b: b.driver.ensure_namespace(b.namespace()),
    "register_source": lambda b: b.register(),
    "provision_harness": lambda b: b.driver.provision_harness(b.harness()),
    "apply policy": _apply_policy,
    "withdraw": _withdraw,
    "cleanup revision": lambda b: b.driver.cleanup(b.removal()),
    "remove_source": lambda b: b.keys.remove_source(b.namespace(), a_source()),
    "cleanup namespace": lambda b: b.driver.cleanup(b.removal(whole=True)),
}
NAMES = list(FLOWS)
MOST_CALLS = 12


class Died(BaseException):
    """The process is gone: nothing in the Driver may catch this."""


class DyingGateway(Gateway):
    """A client whose process dies around call number `at`."""

    def __init__(self, backend, at, *, after):
        super().__init__(backend)
        self.at, self.after, self.count = at, after, 0

    async def call(self, method, message):
        self.count += 1
        if self.count == self.at and not self.after:
            raise Died
        try:
            return await super().call(method, message)
        finally:
            if self.count == self.at:
                raise Died


async def _until(bench, flow):
    for name in NAMES[: NAMES.index(flow)]:
        await FLOWS[name](bench)


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
    return (sorted(state.workspaces), specs, sorted(state.services), providers, profiles, policies)


async def _undisturbed(flow):
    gateway = ScriptedGateway()
    await gateway.start()
    bench = Bench(gateway)
    try:
        await _until(bench, flow)
        before = len(gateway.requests)
        await FLOWS[flow](bench)
        return _rest(bench), gateway.methods()[before:]
    finally:
        await bench.client.close()
        await gateway.stop()


@pytest.mark.parametrize("flow", NAMES)
async def test_every_call_survives_a_death_and_a_lost_answer(flow, bench):
    wanted, calls = await _undisturbed(flow)
    assert 0 < len(calls) <= MOST_CALLS * 2
    for number, method in enumerate(calls, 1):
        for fault in ("dies before", "dies after", "answer lost", "never arrived"):
            gateway = ScriptedGateway()
            await gateway.start()
            other = Bench(gateway)
            try:
                await _until(other, flow)
                if fault.startswith("dies"):
                    client = DyingGateway(
                        a_backend(gateway.port), number, after=fault == "dies after"
                    )
                    other.restart(client)
                    with pytest.raises(Died):
                        await FLOWS[flow](other)
                else:
                    repeated = calls[: number - 1].count(method)
                    gateway.script(method, *[Answer() for _ in range(repeated)])
                    gateway.script(method, lost(after=fault == "answer lost"))
                    with contextlib.suppress(DriverRefusal):
                        await FLOWS[flow](other)
                other.restart()
                await FLOWS[flow](other)
                await FLOWS[flow](other)
                assert _rest(other) == wanted, (number, method, fault)
                assert len(gateway.state.sandboxes) <= 1
            finally:
                for made in other.clients:
                    await made.close()
                await gateway.stop()


async def test_no_secret_in_any_request_but_the_two_that_carry_it(bench, caplog):
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
