"""Any order of members under any faults: at most one Sandbox a revision, and in the end nothing is left."""

from __future__ import annotations

import asyncio
import contextlib

from grpc import StatusCode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oce.contracts.refusals import DriverRefusal, StillPending
from oce.testing.openshell_bench import Bench, a_source
from oce.testing.scripted_gateway import ScriptedGateway, lost, status

MEMBERS = {
    "ensure": lambda b: b.driver.ensure_namespace(b.namespace()),
    "register": lambda b: b.register(),
    "provision": lambda b: b.driver.provision_harness(b.harness()),
    "remove revision": lambda b: b.driver.cleanup(b.removal()),
    "remove source": lambda b: b.keys.remove_source(b.namespace(), a_source()),
    "remove namespace": lambda b: b.driver.cleanup(b.removal(whole=True)),
}
METHODS = [
    "Health",
    "GetWorkspace",
    "CreateWorkspace",
    "ImportProviderProfiles",
    "CreateProvider",
    "CreateSandbox",
    "GetSandbox",
    "GetService",
    "DeleteSandbox",
    "DeleteProvider",
    "DeleteWorkspace",
]
FAULTS = {
    "lost before": lost(after=False),
    "lost after": lost(after=True),
    "deadline after": status(StatusCode.DEADLINE_EXCEEDED, after=True),
    "internal": status(StatusCode.INTERNAL),
    "race": status(StatusCode.ABORTED, "RESOURCE_VERSION_CONFLICT"),
    "uncertain": status(StatusCode.FAILED_PRECONDITION, "REQUEST_OUTCOME_UNCERTAIN"),
    "hidden": status(StatusCode.NOT_FOUND),
    "refused": status(StatusCode.UNAUTHENTICATED),
}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(sorted(MEMBERS)),
        st.lists(st.tuples(st.sampled_from(METHODS), st.sampled_from(sorted(FAULTS))), max_size=3),
        st.booleans(),
    ),
    max_size=10,
)


async def walk(steps):
    gateway = ScriptedGateway()
    await gateway.start()
    bench = Bench(gateway)
    made = set()
    try:
        for member, faults, slow in steps:
            gateway.accepts_deletions, gateway.deletion_reads = slow, 3
            for method, fault in faults:
                gateway.script(method, FAULTS[fault])
            bench.restart()
            with contextlib.suppress(DriverRefusal):
                await MEMBERS[member](bench)
            gateway.unscript()
            assert len(gateway.state.sandboxes) <= 1
            made.update(s.metadata.name for s in gateway.state.sandboxes.values())
            for sandbox in gateway.state.sandboxes.values():
                attached = set(sandbox.spec.providers)
                assert attached <= {name for _, name in gateway.state.providers}
        assert made <= {bench.sandbox}
        gateway.deletion_reads = 0
        bench.restart()
        await bench.driver.ensure_namespace(bench.namespace())
        for member in ("remove revision", "remove source", "remove namespace"):
            for _ in range(5):
                try:
                    await MEMBERS[member](bench)
                except StillPending:
                    gateway.deletion_reads = 0
                else:
                    break
        state = gateway.state
        assert not (state.sandboxes)
        assert not (state.services)
        assert not (state.providers)
        assert not (state.profiles)
        assert not state.workspaces
    finally:
        for client in bench.clients:
            await client.close()
        await gateway.stop()


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(STEPS)
def test_any_order_under_any_faults_ends_with_nothing_left(steps):
    asyncio.run(walk(steps))
