"""An upgraded control plane keeps what its predecessor made: a revision is rendered under the version it was admitted under."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oce.contracts.refusals import OwnershipConflict, RevisionUnsupported
from oce.drivers.openshell import rendering
from oce.testing.openshell_bench import a_revision

SECOND = "rev_11111111-8f1b-4c63-a1d7-9d9f4f0e6b42"


def second_rules(settings, context):
    """What a later program might render: one more variable."""
    first = rendering._first(settings, context)
    environment = {**first.spec["environment"], "LATER": "1"}
    return replace(first, spec={**first.spec, "environment": environment})


@pytest.fixture
def upgrade(bench, monkeypatch):
    """Make the control plane a later program with a second version of the rules."""

    def later(rules):
        monkeypatch.setattr(rendering, "_RULES", rules)
        bench.restart()

    return later


async def test_a_running_sandbox_outlives_a_change_of_the_rules(bench, upgrade):
    await bench.deploy()
    made = bench.gateway.state.sandboxes[bench.workspace, bench.sandbox].metadata.id
    upgrade({1: rendering._first, 2: second_rules})
    await bench.driver.provision_harness(bench.harness())
    later = bench.harness(a_revision(id=SECOND, render_version=2))
    await bench.driver.provision_harness(later)
    await bench.driver.provision_harness(later)
    first, second = bench.gateway.state.sandboxes.values()
    assert first.metadata.id == made
    assert "LATER" not in first.spec.environment
    assert second.spec.environment["LATER"] == "1"
    assert len(bench.gateway.made("CreateSandbox")) == 2


async def test_a_rule_that_changed_under_its_version_would_be_a_conflict_by_name(bench, upgrade):
    await bench.deploy()
    upgrade({1: second_rules})
    with pytest.raises(OwnershipConflict, match=r"spec\.environment\.LATER"):
        await bench.driver.provision_harness(bench.harness())
    assert len(bench.gateway.made("CreateSandbox")) == 1


async def test_a_revision_of_a_later_program_is_refused_before_any_call_and_can_be_removed(bench):
    await bench.deploy()
    before = len(bench.gateway.requests)
    with pytest.raises(RevisionUnsupported, match="render version"):
        await bench.driver.provision_harness(bench.harness(a_revision(render_version=2)))
    assert len(bench.gateway.requests) == before
    await bench.driver.cleanup(bench.removal())
    assert bench.gateway.state.sandboxes == {}
