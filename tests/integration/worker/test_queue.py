"""Every transition of the work queue against a real PostgreSQL."""

import asyncio
import dataclasses
import uuid

import pytest

from oce.store.queue import ClaimLost, Step, WorkKind

pytestmark = pytest.mark.postgres


async def test_claim_takes_the_oldest_due_row_and_starts_its_lease(seed, queue):
    namespace = await seed.namespace("provisioning")
    other = await seed.namespace("provisioning")
    newer = await seed.work(namespace, target="ready")
    older = await seed.work(other, target="ready", created=60)
    claim = await queue.claim()
    assert (claim.key, claim.kind, claim.attempt) == (older, WorkKind.NAMESPACE_ENSURE, 1)
    assert 60 <= claim.age < 70
    assert 4 < (await seed.row(older))["lease_left"] <= 5
    assert (await queue.claim()).key == newer
    assert await queue.claim() is None
    assert await queue.pending() == 2


async def test_one_live_claim_per_agent_while_siblings_go_on(seed, queue):
    namespace = await seed.namespace()
    first, second = await seed.agent(namespace), await seed.agent(namespace)
    _, one = await seed.deployment(first, created=9)
    stop = await seed.work(namespace, agent=first.id, target="stopped", created=8)
    _, two = await seed.deployment(second, created=7)
    claims = [await queue.claim() for _ in range(3)]
    assert [claim and claim.key for claim in claims] == [one, two, None]
    await queue.complete(claims[0])
    assert (await queue.claim()).key == stop


async def test_concurrent_claims_never_share_a_lane_or_a_row(seed, queue):
    namespace = await seed.namespace()
    agents = [await seed.agent(namespace) for _ in range(3)]
    for agent in agents:
        for _ in range(3):
            await seed.work(namespace, agent=agent.id, target="stopped")
    found = [claim for claim in await asyncio.gather(*(queue.claim() for _ in range(8))) if claim]
    lanes = [claim.agent_id for claim in found]
    assert len(set(lanes)) == len(lanes)
    while claim := await queue.claim():
        found.append(claim)
    assert len(found) == 3


@pytest.mark.parametrize("how", ["expired", "other token", "finished"])
async def test_nothing_is_written_without_the_live_claim(seed, queue, how):
    namespace = await seed.namespace("provisioning")
    key = await seed.work(namespace, target="ready")
    claim = await queue.claim()
    if how == "expired":
        await seed.expire(key)
    elif how == "finished":
        await queue.complete(claim)
    else:
        claim = dataclasses.replace(claim, token=str(uuid.uuid4()))
    before = (await seed.row(key), await seed.evidence(key))
    for transition in (
        queue.heartbeat(claim, [Step(step="x", outcome="started")]),
        queue.complete(claim),
        queue.defer(claim, "REVISION_INCOMPLETE"),
        queue.retry(claim, "DEPENDENCY_UNAVAILABLE"),
        queue.fail(claim, "INVALID_TARGET"),
        queue.release(claim),
    ):
        with pytest.raises(ClaimLost):
            await transition
    after = (await seed.row(key), await seed.evidence(key))
    for volatile in ("due_in", "lease_left"):
        before[0].pop(volatile), after[0].pop(volatile)
    assert before == after


async def test_heartbeat_extends_and_records_steps_in_order(seed, queue):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent)
    claim = await queue.claim()
    await seed.run(
        "UPDATE occ.controller_work SET lease_expires_at = clock_timestamp() + interval '1 second'"
    )
    await queue.heartbeat(
        claim,
        [
            Step(step="storage", outcome="succeeded", duration_ms=3),
            Step(step="sandbox", outcome="started"),
        ],
    )
    assert (await seed.row(key))["lease_left"] > 4
    events = await seed.all(
        "SELECT step, outcome, duration_ms FROM occ.deployment_events ORDER BY seq"
    )
    assert [tuple(event.values()) for event in events] == [
        ("storage", "succeeded", 3),
        ("sandbox", "started", None),
    ]


async def test_defer_refunds_the_attempt_and_a_long_wait_is_one_row_of_evidence(seed, queue):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent)
    for _ in range(10):
        claim = await queue.claim()
        await queue.defer(claim, "REVISION_INCOMPLETE", delay=0)
    assert (await seed.row(key))["attempt_count"] == 0
    assert await seed.evidence(key) == [("success", "REVISION_INCOMPLETE", None)]
    await queue.defer(await queue.claim(), "SANDBOX_DELETION_PENDING", delay=0)
    await queue.defer(
        await queue.claim(), "SANDBOX_DELETION_PENDING", delay=30, repeat_evidence=True
    )
    assert len(await seed.evidence(key)) == 3
    assert 29 < (await seed.row(key))["due_in"] <= 30
    assert await queue.claim() is None


async def test_retry_spends_attempts_within_the_jittered_backoff_and_then_fails(seed, queue):
    namespace = await seed.namespace("provisioning")
    key = await seed.work(namespace, target="ready")
    bounds = [1, 2]
    for bound in bounds:
        assert not await queue.retry(await queue.claim(), "DEPENDENCY_UNAVAILABLE")
        assert -1 < (await seed.row(key))["due_in"] <= bound
        await seed.available(key)
    assert await queue.retry(await queue.claim(), "DEPENDENCY_UNAVAILABLE")
    row = await seed.row(key)
    assert (row["state"], row["reason_code"], row["attempt_count"]) == (
        "failed_permanent",
        "DEPENDENCY_UNAVAILABLE",
        3,
    )
    assert (await seed.evidence(key))[-1] == ("failure", "DEPENDENCY_UNAVAILABLE", None)
    status = await seed.one("SELECT status FROM occ.namespaces WHERE id = %(id)s", id=namespace)
    assert status == {"status": "failed"}


async def test_results_have_closed_shapes(seed, queue):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent)
    claim = await queue.claim()
    for data in (
        {"timeoutMs": 1, "secret": 2},
        {"runtimeFailure": {"code": "x y"}},
        {"warnings": []},
    ):
        with pytest.raises(ValueError, match="does not carry"):
            await queue.fail(claim, "RUNTIME_MODEL_PROBE_FAILED", data=data)
    failure = {
        "component": "agent",
        "check": "model-probe",
        "checkedAt": "2026-01-02T03:04:05Z",
        "code": "MODEL_PROBE_FAILED",
    }
    await queue.fail(claim, "RUNTIME_MODEL_PROBE_FAILED", data={"runtimeFailure": failure})
    assert (await seed.row(key))["result_data"] == {"runtimeFailure": failure}


async def test_release_hands_back_at_once_without_evidence(seed, queue):
    key = await seed.work(await seed.namespace("provisioning"), target="ready")
    await queue.release(await queue.claim())
    assert (await seed.row(key))["attempt_count"] == 0
    assert await seed.evidence(key) == []
    assert (await queue.claim()).key == key


async def test_an_expired_claim_is_taken_back_and_ends_after_its_attempts(seed, queue):
    namespace = await seed.namespace("provisioning")
    key = await seed.work(namespace, target="ready")
    for attempt in range(1, 4):
        await seed.available(key)
        assert (await queue.claim()).attempt == attempt
        assert (await queue.recover_stale()).requeued == 0
        await seed.expire(key)
        found = await queue.recover_stale()
        assert (found.requeued, found.failed) == ((1, 0) if attempt < 3 else (0, 1))
    assert (await seed.row(key))["reason_code"] == "LEASE_EXPIRED"
    assert await seed.evidence(key) == [("failure", "LEASE_EXPIRED", None)] * 3
    status = await seed.one("SELECT status FROM occ.namespaces WHERE id = %(id)s", id=namespace)
    assert status == {"status": "failed"}


async def exhaust(seed, queue, key):
    """Let the worker die with the last attempt in its hands."""
    await seed.run(
        "UPDATE occ.controller_work SET attempt_count = 2 WHERE idempotency_key = %(key)s", key=key
    )
    claim = await queue.claim()
    await queue.heartbeat(claim, [Step(step="sandbox", outcome="started")])
    await seed.expire(key)
    await queue.recover_stale()


async def test_a_published_revision_gets_one_more_attempt(seed, queue):
    agent = await seed.agent(await seed.namespace())
    revision, key = await seed.deployment(agent)
    await seed.run(
        "UPDATE occ.agents SET active_revision_id = %(rev)s WHERE id = %(id)s",
        rev=revision,
        id=agent.id,
    )
    await exhaust(seed, queue, key)
    row = await seed.row(key)
    assert (row["state"], row["attempt_count"]) == ("queued", 2)
    assert -1 < row["due_in"] <= 1
    assert (await seed.evidence(key))[-1] == ("failure", "ACTIVE_REVISION_RECOVERY", None)


async def test_an_exhausted_candidate_comes_back_once_to_be_removed(seed, queue):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent)
    await exhaust(seed, queue, key)
    assert (await seed.evidence(key))[-1] == ("failure", "LEASE_EXPIRED", "LEASE_EXPIRED")
    await seed.available(key)
    claim = await queue.claim()
    assert (claim.refusal, claim.started, claim.attempt) == ("LEASE_EXPIRED", True, 3)
    await queue.defer(
        claim,
        "REFUSED_CANDIDATE_STOP_PENDING",
        delay=0,
        refusal="LEASE_EXPIRED",
        refusal_data={"stops": 1},
        repeat_evidence=True,
    )
    claim = await queue.claim()
    assert (claim.refusal, claim.refusal_data) == ("LEASE_EXPIRED", {"stops": 1})
    await seed.expire(key)
    await queue.recover_stale()
    await seed.available(key)
    claim = await queue.claim()
    assert (claim.refusal, claim.refusal_data, claim.attempt) == ("LEASE_EXPIRED", {"stops": 1}, 3)


async def test_queued_rows_without_attempts_end(seed, queue):
    key = await seed.work(await seed.namespace("provisioning"), target="ready")
    await seed.run("UPDATE occ.controller_work SET attempt_count = 3")
    assert await queue.claim() is None
    assert (await queue.recover_stale()).failed == 1
    assert (await seed.row(key))["reason_code"] == "MAX_ATTEMPTS_EXHAUSTED"


async def test_a_transition_rolls_back_with_the_transaction_it_belongs_to(seed, queue, db):
    key = await seed.work(await seed.namespace("provisioning"), target="ready")
    claim = await queue.claim()

    async def interrupted():
        async with db.transact() as tx:
            await queue.complete(claim, "NAMESPACE_RECONCILED", tx=tx)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await interrupted()
    assert (await seed.row(key))["state"] == "claimed"
    assert await seed.evidence(key) == []
