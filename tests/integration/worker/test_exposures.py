"""The sweep for exposures: what serves or failed for good without a pass, on every page, until it is proved gone."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import structlog

from oce.contracts.refusals import DeletionUnconfirmed, GatewayUnauthorized, StillPending
from oce.worker import exposures
from oce.worker.exposures import ExposureSweep
from oce.worker.main import build_engine

pytestmark = pytest.mark.postgres
NATIVE = {"id": "openclaw", "version": "2026.1", "mode": "dedicated"}


async def a_revision(seed, *, active=False, failed=False, harness=NATIVE):
    agent = await seed.agent(await seed.namespace())
    revision, key = await seed.deployment(agent, harness=harness)
    state, reason = ("failed_permanent", "UNKNOWN_FAILURE") if failed else ("succeeded", "X")
    if active or failed:
        await seed.run(
            "UPDATE occ.controller_work SET state = %(state)s, reason_code = %(reason)s,"
            " completed_at = clock_timestamp() WHERE idempotency_key = %(key)s",
            state=state,
            reason=reason,
            key=key,
        )
    if active:
        await seed.run(
            "UPDATE occ.agents SET active_revision_id = %(rev)s WHERE id = %(id)s",
            rev=revision,
            id=agent.id,
        )
    return agent, revision


@pytest.fixture
def sweep(world):
    return ExposureSweep(world.platform, period=0.01, limit=5)


@pytest.fixture
def log():
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as found:
        yield found


async def test_only_native_revisions_without_a_pass_are_withdrawn_and_once(seed, world, sweep):
    _, serving = await a_revision(seed, active=True)
    _, failed = await a_revision(seed, failed=True)
    await a_revision(seed, active=True, harness={**NATIVE, "id": "codex", "version": "0.163.0"})
    await a_revision(seed)  # its pass is queued
    agent, busy = await a_revision(seed, active=True)
    await seed.work(agent.namespace_id, agent=agent.id, target="stopped")
    _, gone = await a_revision(seed, failed=True)
    await seed.run(
        "UPDATE occ.agent_revisions SET retired_at = clock_timestamp() WHERE id = %(id)s", id=gone
    )
    await sweep.once()
    await sweep.once()
    assert world.provider.withdrawn == [serving, failed]
    await seed.run(
        "UPDATE occ.controller_work SET state = 'succeeded', reason_code = 'X',"
        " completed_at = clock_timestamp() WHERE agent_id = %(id)s",
        id=agent.id,
    )
    await sweep.once()
    assert world.provider.withdrawn == [serving, failed, busy]


async def test_every_page_is_read(seed, world, sweep, monkeypatch):
    monkeypatch.setattr(exposures, "_PAGE", 2)
    wanted = [(await a_revision(seed, failed=True))[1] for _ in range(5)]
    await sweep.once()
    assert world.provider.withdrawn == wanted


@pytest.mark.parametrize(
    ("refusal", "event", "hint"),
    [
        (DeletionUnconfirmed(), "unconfirmed", None),
        (GatewayUnauthorized(transient=False), "failed", "sandbox-gateway-identity"),
        (RuntimeError("unknown"), "failed", None),
    ],
    ids=["unconfirmed", "unauthorized", "fault"],
)
async def test_a_refusal_is_told_once_and_tried_again_and_holds_up_nobody(
    seed, world, sweep, log, refusal, event, hint
):
    _, first = await a_revision(seed, active=True)
    _, second = await a_revision(seed, active=True)
    faults = [refusal]

    def interrupt(point):
        if point.startswith("before") and faults:
            raise faults.pop()

    world.provider.interrupt = interrupt
    await sweep.once()
    assert world.provider.withdrawn == [second]
    faults.append(refusal)
    await sweep.once()
    told = [one for one in log if one["event"].startswith("worker.harness-exposure-withdrawal")]
    assert {one["event"] for one in told} == {f"worker.harness-exposure-withdrawal-{event}"}
    assert {one["revision_id"] for one in told} == {first}
    assert told[0].get("hint_code") == hint
    assert len(told) == (2 if isinstance(refusal, RuntimeError) else 1)
    await sweep.once()
    assert world.provider.withdrawn == [second, first]


async def test_what_is_only_pending_is_waited_for_in_silence(seed, world, sweep, log):
    await a_revision(seed, active=True)

    def interrupt(_point):
        raise StillPending("SANDBOX_DELETION_PENDING")

    world.provider.interrupt = interrupt
    await sweep.once()
    assert [one for one in log if one["log_level"] == "warning"] == []


async def test_a_worker_sweeps_as_soon_as_it_starts(seed, world):
    _, serving = await a_revision(seed, active=True)
    engine = build_engine(world.platform, dataclasses.replace(world.settings_worker, lanes=1))
    stop = asyncio.Event()
    world.provider.interrupt = lambda point: stop.set() if point.startswith("after") else None
    await asyncio.wait_for(engine.run(stop), 20)
    assert world.provider.withdrawn == [serving]
