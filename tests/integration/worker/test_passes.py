"""Whole passes: the real engine, queue, PostgreSQL and local Compute over an in-memory provider."""

import json

import pytest
import structlog

from oce.contracts.refusals import (
    DriverRefusal,
    GatewayUnauthorized,
    NamespaceRefused,
    OwnershipConflict,
    RevisionUnsupported,
    StillPending,
    TransientDependency,
)
from oce.contracts.sandbox import HarnessStatus
from oce.core.access.queries import Refusal
from oce.domain.failures import Tempo
from oce.observability.logging import clean

pytestmark = pytest.mark.postgres


async def agent_row(seed, agent):
    return await seed.one("SELECT * FROM occ.agents WHERE id = %(id)s", id=agent.id)


async def retired(seed, revision):
    row = await seed.one(
        "SELECT retired_at FROM occ.agent_revisions WHERE id = %(id)s", id=revision
    )
    return row["retired_at"] is not None


def route(world, agent):
    return json.loads((world.settings.routes_dir / f"{agent.id}.json").read_bytes())


async def outcome(seed, key):
    row = await seed.row(key)
    return row["state"], row["reason_code"]


async def test_namespace_becomes_ready_and_is_buried(seed, world):
    namespace = await seed.namespace("provisioning")
    key = await seed.work(namespace, target="ready")
    assert await world.drain() == ["success"]
    assert await outcome(seed, key) == ("succeeded", "NAMESPACE_RECONCILED")
    assert len(world.provider.workspaces) == 1
    again = await seed.work(namespace, target="ready")
    await world.drain()
    assert await outcome(seed, again) == ("succeeded", "SUPERSEDED_TARGET")
    await seed.run("UPDATE occ.namespaces SET status = 'deleting'")
    await seed.work(namespace, target="deleted")
    await world.drain()
    assert world.provider.workspaces == set()
    row = await seed.one("SELECT deleted_at FROM occ.namespaces WHERE id = %(id)s", id=namespace)
    assert row["deleted_at"] is not None


async def test_a_refused_workspace_fails_the_namespace_with_its_own_code(seed, world):
    namespace = await seed.namespace("provisioning")
    key = await seed.work(namespace, target="ready")

    def refuse(point):
        raise DriverRefusal("SANDBOX_NAMESPACE_REFUSED", Tempo.PERMANENT)

    world.provider.interrupt = refuse
    assert await world.drain() == ["permanent"]
    assert await outcome(seed, key) == ("failed_permanent", "SANDBOX_NAMESPACE_REFUSED")
    row = await seed.one("SELECT status FROM occ.namespaces WHERE id = %(id)s", id=namespace)
    assert row["status"] == "failed"


async def test_deploy_activates_records_its_steps_and_a_second_one_replaces_the_first(seed, world):
    agent = await seed.agent(await seed.namespace())
    first, key = await seed.deployment(agent)
    assert await world.drain() == ["success"]
    assert await outcome(seed, key) == ("succeeded", "REVISION_ACTIVATED")
    assert (await agent_row(seed, agent))["active_revision_id"] == first
    assert route(world, agent)["revisionId"] == first
    events = await seed.all(
        "SELECT step, outcome, duration_ms FROM occ.deployment_events WHERE work_key = %(key)s ORDER BY seq",
        key=key,
    )
    assert [event["step"] for event in events][::2] == [
        "storage",
        "gateway",
        "credentials",
        "sandbox",
        "endpoint",
        "readiness",
        "attachments",
        "activate",
    ]
    assert {event["outcome"] for event in events} == {"started", "succeeded"}
    assert all(
        (event["duration_ms"] is None) == (event["outcome"] == "started") for event in events
    )

    second, _ = await seed.deployment(agent)
    assert await world.drain() == ["success"]
    assert (await agent_row(seed, agent))["active_revision_id"] == second
    assert route(world, agent)["revisionId"] == second
    assert list(world.provider.sandboxes) == [second]
    assert await retired(seed, first)
    assert not await retired(seed, second)


async def test_not_ready_waits_with_one_row_of_evidence_and_few_step_records(seed, world):
    agent = await seed.agent(await seed.namespace())
    revision, key = await seed.deployment(agent)
    world.provider.statuses[:] = [HarnessStatus(state="starting")]
    for _ in range(4):
        assert await world.drain() == ["pending"]
        assert 0.4 < (await seed.row(key))["due_in"] <= 0.5
        await seed.available(key)
    assert await seed.evidence(key) == [("success", "REVISION_INCOMPLETE", None)]
    count = await seed.one("SELECT count(*) AS n FROM occ.deployment_events")
    assert count["n"] == 12
    world.provider.statuses[:] = [HarnessStatus(state="serving")]
    assert await world.drain() == ["success"]
    assert world.provider.created == [revision]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (HarnessStatus(state="starting"), "CONVERGENCE_DEADLINE_EXCEEDED"),
        (TransientDependency("SANDBOX_GATEWAY_UNAVAILABLE"), "SANDBOX_GATEWAY_UNAVAILABLE"),
    ],
)
async def test_at_the_deadline_the_missing_dependency_is_named(seed, world, fault, code):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent, created=901)
    world.provider.statuses[:] = [fault]
    assert await world.drain() == ["permanent"]
    assert await outcome(seed, key) == ("failed_permanent", code)
    assert world.provider.sandboxes == {}


HELD = {
    "runtimeFailure": {
        "component": "agent",
        "check": "model-probe",
        "checkedAt": "2026-01-02T03:04:05Z",
        "code": "MODEL_PROBE_FAILED",
        "cause": {"kind": "PROBE_STATUS", "detail": "no-reply"},
    }
}


async def test_a_failed_candidate_is_removed_and_the_predecessor_goes_on_serving(seed, world):
    agent = await seed.agent(await seed.namespace())
    first, _ = await seed.deployment(agent)
    await world.drain()
    before = route(world, agent)
    second, key = await seed.deployment(agent)
    world.provider.statuses[:] = [
        HarnessStatus(state="failed", failure_document=HELD["runtimeFailure"])
    ]
    assert await world.drain() == ["permanent"]
    row = await seed.row(key)
    assert (row["reason_code"], row["result_data"]) == ("RUNTIME_MODEL_PROBE_FAILED", HELD)
    assert (await agent_row(seed, agent))["active_revision_id"] == first
    assert route(world, agent) == before
    assert list(world.provider.sandboxes) == [first]
    assert await retired(seed, second)


async def test_a_refused_candidate_that_cannot_be_removed_waits_with_its_refusal(seed, world):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent, created=2000)

    def fail(point):
        if point == "before provision_harness":
            raise RevisionUnsupported("SANDBOX_HARNESS_UNSUPPORTED")
        if point == "before cleanup":
            raise StillPending("SANDBOX_DELETION_PENDING")

    world.provider.interrupt = fail
    delays = []
    for _ in range(3):
        assert await world.drain() == ["pending"]
        delays.append((await seed.row(key))["due_in"])
        await seed.available(key)
    assert [round(delay) for delay in delays] == [5, 10, 20]
    evidence = ("success", "REFUSED_CANDIDATE_STOP_PENDING", "SANDBOX_HARNESS_UNSUPPORTED")
    assert await seed.evidence(key) == [evidence] * 4
    assert world.provider.calls.count("provision_harness") == 1
    world.provider.interrupt = lambda point: None
    assert await world.drain() == ["permanent"]
    assert await outcome(seed, key) == ("failed_permanent", "SANDBOX_HARNESS_UNSUPPORTED")


async def test_unknown_faults_spend_attempts_and_end_without_a_leftover(seed, world):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent)

    def fail(point):
        if point == "after provision_harness":
            raise OSError("sk-secret in provider text")

    world.provider.interrupt = fail
    labels = []
    for _ in range(world.settings_worker.max_attempts):
        labels += await world.drain()
        await seed.run(
            "UPDATE occ.controller_work SET available_at = clock_timestamp() WHERE state = 'queued'"
        )
    assert labels == ["retry"] * 4 + ["permanent"]
    assert await outcome(seed, key) == ("failed_permanent", "DEPENDENCY_UNAVAILABLE")
    assert world.provider.sandboxes == {}
    text = json.dumps(
        [r["details"] for r in await seed.all("SELECT details FROM occ.audit_events")]
    )
    assert "sk-secret" not in text


async def test_a_denied_actor_causes_no_call_at_all(seed, world):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent)
    world.authority.refusal = Refusal(code="AUTHORIZATION_DENIED", reason="no grant")
    assert await world.drain() == ["permanent"]
    assert await outcome(seed, key) == ("failed_permanent", "AUTHORIZATION_DENIED")
    assert world.provider.calls == []


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (
            {"harness": {"id": "codex", "version": "0.0.1", "mode": "dedicated"}},
            "HARNESS_DESCRIPTOR_MISMATCH",
        ),
        ({"compute": {"id": "other", "implementation": "local"}}, "COMPUTE_DRIVER_MISMATCH"),
        ({"sandbox_driver_id": "other"}, "SANDBOX_DRIVER_MISMATCH"),
        ({"secret_bindings": {"A": "sec_1"}}, "SECRET_BINDINGS_UNSUPPORTED"),
        ({"harness_auth": None}, "HARNESS_AUTH_REQUIRED"),
    ],
)
async def test_a_revision_that_does_not_fit_fails_before_any_effect(seed, world, spec, code):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent, **spec)
    assert await world.drain() == ["permanent"]
    assert await outcome(seed, key) == ("failed_permanent", code)
    assert world.provider.calls == []


async def test_a_source_that_is_being_deleted_fails_the_deployment(seed, world):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent)
    await seed.run("UPDATE occ.credential_sources SET state = 'deleting'")
    await world.drain()
    assert await outcome(seed, key) == ("failed_permanent", "CREDENTIAL_SOURCE_UNAVAILABLE")


async def test_a_newer_deploy_supersedes_a_candidate_that_is_still_starting(seed, world):
    agent = await seed.agent(await seed.namespace())
    first, old = await seed.deployment(agent)
    world.provider.statuses[:] = [HarnessStatus(state="starting")]
    await world.drain()
    second, new = await seed.deployment(agent)
    world.provider.statuses[:] = [HarnessStatus(state="serving")]
    await seed.available(old)
    assert await world.drain() == ["success", "success"]
    assert await outcome(seed, old) == ("succeeded", "REVISION_SUPERSEDED")
    assert await outcome(seed, new) == ("succeeded", "REVISION_ACTIVATED")
    assert list(world.provider.sandboxes) == [second]
    assert await retired(seed, first)


@pytest.mark.parametrize("moment", ["before attach_for_revision", "after provision_harness"])
async def test_a_stop_that_arrives_during_preparation_wins(seed, world, moment):
    agent = await seed.agent(await seed.namespace())
    revision, key = await seed.deployment(agent)

    world.at(moment, "UPDATE occ.agents SET desired_runtime_state = 'stopped'")
    assert await world.drain() == ["success"]
    assert await outcome(seed, key) == ("succeeded", "REVISION_STOPPED")
    assert world.provider.sandboxes == {}
    assert (await agent_row(seed, agent))["active_revision_id"] is None
    assert await retired(seed, revision)


async def test_stop_removes_everything_keeps_history_and_yields_to_a_later_deploy(seed, world):
    agent = await seed.agent(await seed.namespace())
    revision, _ = await seed.deployment(agent)
    await world.drain()
    superseded = await seed.work(agent.namespace_id, agent=agent.id, target="stopped")
    await world.drain()
    assert await outcome(seed, superseded) == ("succeeded", "STOP_SUPERSEDED")
    await seed.run("UPDATE occ.agents SET desired_runtime_state = 'stopped'")
    key = await seed.work(agent.namespace_id, agent=agent.id, target="stopped")
    assert await world.drain() == ["success"]
    assert await outcome(seed, key) == ("succeeded", "AGENT_STOPPED")
    assert world.provider.sandboxes == {}
    assert route(world, agent)["revisionId"] is None
    assert (await agent_row(seed, agent))["active_revision_id"] is None
    assert await retired(seed, revision)
    again = await seed.work(agent.namespace_id, agent=agent.id, target="stopped")
    await world.drain()
    assert await outcome(seed, again) == ("succeeded", "AGENT_ALREADY_STOPPED")


async def test_delete_works_from_a_failed_half_way_state_and_leaves_nothing(seed, world):
    agent = await seed.agent(await seed.namespace())
    await seed.deployment(agent)
    await world.drain()
    _, half = await seed.deployment(agent)
    world.provider.statuses[:] = [HarnessStatus(state="starting")]
    await world.drain()
    await seed.run("UPDATE occ.agents SET desired_runtime_state = 'stopped', status = 'deleting'")
    key = await seed.work(agent.namespace_id, agent=agent.id, target="deleted")
    assert await world.drain() == ["success"]
    assert await outcome(seed, key) == ("succeeded", "AGENT_DELETED")
    assert await agent_row(seed, agent) is None
    assert world.provider.sandboxes == {}
    assert list(world.settings.routes_dir.iterdir()) == []
    assert list(world.settings.agents_dir.iterdir()) == []
    await seed.available(half)
    await world.drain()
    assert await outcome(seed, half) == ("failed_permanent", "INVALID_REVISION_OWNER")


async def test_delete_of_a_living_agent_is_refused(seed, world):
    agent = await seed.agent(await seed.namespace())
    key = await seed.work(agent.namespace_id, agent=agent.id, target="deleted")
    await world.drain()
    assert await outcome(seed, key) == ("failed_permanent", "INVALID_AGENT_STATE")


async def test_activation_that_drains_waits_and_is_finished_later(seed, world):
    agent = await seed.agent(await seed.namespace())
    revision, key = await seed.deployment(agent)
    world.gateway.drains = 10_000
    assert await world.drain() == ["pending"]
    assert await seed.evidence(key) == [("success", "AGENT_DRAIN_PENDING", None)]
    assert (await agent_row(seed, agent))["active_revision_id"] == revision
    world.gateway.drains = 0
    await seed.available(key)
    assert await world.drain() == ["success"]
    assert await outcome(seed, key) == ("succeeded", "REVISION_ALREADY_ACTIVE")
    assert world.provider.created == [revision]


async def test_a_changed_pointer_under_the_claim_is_tried_again(seed, world):
    agent = await seed.agent(await seed.namespace())
    first, _ = await seed.deployment(agent)
    await world.drain()
    _, key = await seed.deployment(agent)

    world.at("after provision_harness", "UPDATE occ.agents SET active_revision_id = NULL")
    assert await world.drain() == ["retry"]
    assert (await seed.evidence(key))[-1][1] == "ACTIVE_REVISION_CHANGED"
    await seed.available(key)
    assert await world.drain() == ["success"]
    assert first not in world.provider.sandboxes


async def test_a_published_revision_is_finished_however_often_that_fails(seed, world):
    agent = await seed.agent(await seed.namespace())
    first, _ = await seed.deployment(agent)
    await world.drain()
    second, key = await seed.deployment(agent)
    broken = [True]

    def interrupt(point):
        if point == "before cleanup" and broken:
            raise RuntimeError("the provider is out of order")

    world.provider.interrupt = interrupt
    labels = []
    for _ in range(2 * world.settings_worker.max_attempts):
        await seed.available(key)
        labels += await world.drain()
    assert set(labels[-3:]) == {"pending"}
    row = await seed.row(key)
    assert (row["state"], row["completed_at"]) == ("queued", None)
    assert 20 < row["due_in"] < 40
    assert (await agent_row(seed, agent))["active_revision_id"] == second
    assert route(world, agent)["revisionId"] == second
    broken.clear()
    await seed.available(key)
    assert await world.drain() == ["success"]
    assert await outcome(seed, key) == ("succeeded", "REVISION_ALREADY_ACTIVE")
    assert await retired(seed, first)
    assert list(world.provider.sandboxes) == [second]


async def test_a_refused_identity_ends_a_published_deployment_with_its_code(seed, world):
    agent = await seed.agent(await seed.namespace())
    await seed.deployment(agent)
    await world.drain()
    _, key = await seed.deployment(agent)

    def interrupt(point):
        if point == "before cleanup":
            raise GatewayUnauthorized(transient=True)

    world.provider.interrupt = interrupt
    for _ in range(world.settings_worker.max_attempts):
        await seed.available(key)
        await world.drain()
    assert await outcome(seed, key) == ("failed_permanent", "SANDBOX_GATEWAY_UNAUTHORIZED")


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (OwnershipConflict("Sandbox", "spec.command"), "Sandbox differs in spec.command"),
        (
            RevisionUnsupported("SANDBOX_GATEWAY_TOO_OLD", "the gateway lacks: x; run 0.1.3"),
            "the gateway lacks: x; run 0.1.3",
        ),
        (RevisionUnsupported("HARNESS_EXITED"), None),
        (TransientDependency("SANDBOX_GATEWAY_UNAVAILABLE", "GetSandbox failed"), None),
    ],
)
async def test_the_log_keeps_the_drivers_own_sentence(seed, world, refusal, said):
    """The hints of the catalogue send people there."""
    agent = await seed.agent(await seed.namespace())
    await seed.deployment(agent)

    def refuse(point):
        if point == "before provision_harness":
            raise refusal

    world.provider.interrupt = refuse
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as log:
        await world.drain()
    told = [one["reason"] for one in log if one["event"] == "worker.pass-refused"]
    assert told == ([] if said is None else [said])
    assert all(clean("worker.pass-refused", {"reason": one}) == {"reason": one} for one in told)


async def test_the_log_says_why_a_namespace_was_refused(seed, world):
    namespace = await seed.namespace("provisioning")
    await seed.work(namespace, target="ready")

    def refuse(_point):
        raise NamespaceRefused("PERMISSION_DENIED")

    world.provider.interrupt = refuse
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as log:
        await world.drain()
    assert "PERMISSION_DENIED" in [one.get("reason") for one in log]
