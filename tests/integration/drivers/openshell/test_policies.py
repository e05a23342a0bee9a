"""Live policies: compare-and-swap, and confirmed only when loaded, active and equal (mission document 003)."""

from __future__ import annotations

import grpc
import pytest
from openshell._proto import openshell_pb2

from oce.contracts.refusals import (
    ConfigurationRefused,
    DriverRefusal,
    GatewayUnauthorized,
    NotVisible,
    OwnershipConflict,
)
from oce.contracts.sandbox import PolicyApplication
from oce.testing.scripted_gateway import lost, status

RULE = {
    "name": "docs",
    "binaries": [{"path": "/usr/bin/curl"}],
    "endpoints": [
        {"host": "docs.example.com", "ports": [443], "protocol": "rest", "access": "read_only"}
    ],
}


def application(bench, observed, operation="op-1"):
    snapshot = bench.driver.admit_network_policy([RULE], 2)
    return PolicyApplication(
        snapshot=snapshot,
        expected_provider_version=observed.provider_version,
        operation_id=operation,
    )


async def start(bench):
    await bench.deploy()
    empty = bench.driver.admit_network_policy(None, 1)
    observed = await bench.driver.observe_network_policy(bench.revision(), empty)
    assert (observed.policy_version, observed.load_state, observed.matches) == (1, "loaded", True)
    return observed


async def test_an_addition_is_applied_once_and_the_static_part_stays(bench):
    observed = await start(bench)
    box = bench.gateway.state.sandboxes[bench.workspace, bench.sandbox]
    wanted = application(bench, observed)
    found = await bench.driver.apply_network_policy(bench.revision(), wanted)
    assert (found.policy_version, found.load_state, found.matches) == (2, "loaded", True)
    (sent,) = bench.gateway.made("UpdateConfig")
    assert list(sent.policy.network_policies) == ["docs"]
    assert sent.policy.filesystem == box.spec.policy.filesystem
    assert sent.policy.process == box.spec.policy.process
    assert await bench.driver.apply_network_policy(bench.revision(), wanted) == found
    assert len(bench.gateway.made("UpdateConfig")) == 1
    box.spec.policy.CopyFrom(sent.policy)
    await bench.driver.provision_harness(bench.harness())
    await bench.driver.cleanup(bench.removal())


async def test_accepted_is_not_applied(bench):
    observed = await start(bench)
    bench.gateway.loads_policies = False
    found = await bench.driver.apply_network_policy(bench.revision(), application(bench, observed))
    assert (found.load_state, found.matches) == ("pending", True)
    revisions = bench.gateway.state.policies[bench.workspace, bench.sandbox]
    snapshot = bench.driver.admit_network_policy([RULE], 2)
    for number, state in ((2, "pending"), (3, "failed"), (4, "superseded")):
        revisions[-1].status = number  # 2 is LOADED, and still the older version is the active one
        found = await bench.driver.observe_network_policy(bench.revision(), snapshot)
        assert found.load_state == state


async def test_a_lost_answer_is_repeated_under_the_same_request_id(bench):
    observed = await start(bench)
    bench.gateway.script("UpdateConfig", lost(after=False))
    wanted = application(bench, observed)
    with pytest.raises(DriverRefusal):
        await bench.driver.apply_network_policy(bench.revision(), wanted)
    assert (await bench.driver.apply_network_policy(bench.revision(), wanted)).matches
    one, two = bench.gateway.made("UpdateConfig")
    assert one == two


async def test_a_moved_version_sends_nothing(bench):
    observed = await start(bench)
    await bench.driver.apply_network_policy(bench.revision(), application(bench, observed))
    with pytest.raises(DriverRefusal) as refused:
        await bench.driver.apply_network_policy(
            bench.revision(), application(bench, observed, "op-2")
        )
    assert refused.value.code == "RECONCILIATION_PENDING"
    assert len(bench.gateway.made("UpdateConfig")) == 1


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        (grpc.StatusCode.ABORTED, DriverRefusal),
        (grpc.StatusCode.INVALID_ARGUMENT, ConfigurationRefused),
        (grpc.StatusCode.FAILED_PRECONDITION, ConfigurationRefused),
        (grpc.StatusCode.PERMISSION_DENIED, GatewayUnauthorized),
    ],
)
async def test_rejections_are_typed(bench, code, refusal):
    observed = await start(bench)
    bench.gateway.script("UpdateConfig", status(code))
    with pytest.raises(refusal):
        await bench.driver.apply_network_policy(bench.revision(), application(bench, observed))


async def test_a_strangers_or_a_hidden_sandbox_is_not_judged(bench):
    await start(bench)
    snapshot = bench.driver.admit_network_policy(None, 1)
    box = bench.gateway.state.sandboxes[bench.workspace, bench.sandbox]
    box.metadata.annotations["openclaw.dev/revision-id"] = "rev_other"
    with pytest.raises(OwnershipConflict):
        await bench.driver.observe_network_policy(bench.revision(), snapshot)
    bench.gateway.state.sandboxes.clear()
    with pytest.raises(NotVisible):
        await bench.driver.observe_network_policy(bench.revision(), snapshot)
    bench.gateway.concealed = True
    with pytest.raises(GatewayUnauthorized):
        await bench.driver.observe_network_policy(bench.revision(), snapshot)


def chunk(number, **changes):
    made = openshell_pb2.PolicyChunk(
        id=f"c{number}", status="pending", rationale="because\x1b[2J\nplease", hit_count=number
    )
    made.proposed_rule.endpoints.add(host="api.example.com", ports=[443])
    made.proposed_rule.binaries.add(path="/usr/bin/curl")
    made.last_seen_time.FromSeconds(1_800_000_000 + number)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


async def test_recommendations_are_bounded_plain_and_newest_first(bench):
    await bench.deploy()
    hostile = chunk(9)
    hostile.proposed_rule.endpoints[0].host = "evil host\n"
    wide = chunk(8)
    wide.proposed_rule.endpoints.add(host="b.example.com", ports=[443])
    bench.gateway.state.drafts.extend(
        [chunk(1), hostile, chunk(3), wide, chunk(2, status="odd"), chunk(4, id="<script>")]
    )
    found = await bench.driver.read_policy_recommendations(bench.revision(), 2)
    assert [item.id for item in found] == ["c3", "c2"]
    assert found[1].state == "unknown"
    assert found[0].reason == "because [2J please"
    assert (found[0].host, found[0].port, found[0].binary, found[0].observations) == (
        "api.example.com",
        443,
        "/usr/bin/curl",
        3,
    )
