"""Killed before and after every effect and every step: the work converges to the same state and creates one Sandbox."""

import json

import pytest

from oce.contracts.sandbox import HarnessStatus
from oce.worker import lease

pytestmark = pytest.mark.postgres


class Killed(BaseException):
    """The process is gone: nothing after this line happened."""


class Killer:
    """Kills at the n-th point; counts the points it saw."""

    def __init__(self):
        self.at = None
        self.seen = 0

    def __call__(self, _point):
        number, self.seen = self.seen, self.seen + 1
        if number == self.at:
            raise Killed

    def arm(self, number):
        self.at, self.seen = number, 0


@pytest.fixture
def killer(world, monkeypatch):
    killer = Killer()
    world.provider.interrupt = killer
    renew = lease.LeaseKeeper.renew

    async def killing(self, steps=()):
        killer("before step")
        await renew(self, steps)
        killer("after step")

    monkeypatch.setattr(lease.LeaseKeeper, "renew", killing)
    yield killer
    killer.arm(None)


async def crash_then_recover(seed, world, killer, number, key):
    """Kill the first pass at a point, let its lease run out, and work on; return whether the point existed."""
    killer.arm(number)
    killed = False
    try:
        await world.drain()
    except Killed:
        killed = True
    killer.arm(None)
    if killed:
        await seed.expire(key)
        await world.engine.queue.recover_stale()
        await seed.available(key)
        await world.drain()
    return killed


async def state(seed, agent):
    return await seed.one("SELECT * FROM occ.agents WHERE id = %(id)s", id=agent.id)


def route(world, agent):
    return json.loads((world.settings.routes_dir / f"{agent.id}.json").read_bytes())


@pytest.mark.parametrize("predecessor", [False, True])
async def test_a_deploy_survives_a_kill_at_every_point(seed, world, killer, predecessor):
    namespace = await seed.namespace()
    number = 0
    while True:
        agent = await seed.agent(namespace)
        if predecessor:
            await seed.deployment(agent)
            await world.drain()
        world.provider.created.clear()
        revision, key = await seed.deployment(agent)
        killed = await crash_then_recover(seed, world, killer, number, key)
        assert (await seed.row(key))["state"] == "succeeded", number
        assert (await state(seed, agent))["active_revision_id"] == revision
        assert route(world, agent)["revisionId"] == revision
        assert route(world, agent)["generation"] == (3 if predecessor else 2)
        assert world.provider.created == [revision]
        mine = [
            key for key, s in world.provider.sandboxes.items() if s.revision.agent_id == agent.id
        ]
        assert mine == [revision]
        if not killed:
            break
        number += 1
    assert number > 20


HELD = {
    "component": "agent",
    "check": "login",
    "checkedAt": "2026-01-02T03:04:05Z",
    "code": "AUTHENTICATION_FAILED",
}


async def test_a_refused_candidate_is_removed_once_whenever_the_worker_dies(seed, world, killer):
    agent = await seed.agent(await seed.namespace())
    first, _ = await seed.deployment(agent)
    await world.drain()
    world.provider.statuses[:] = [HarnessStatus(state="failed", failure_document=HELD)]
    number = 0
    while True:
        world.provider.created.clear()
        revision, key = await seed.deployment(agent)
        killed = await crash_then_recover(seed, world, killer, number, key)
        row = await seed.row(key)
        assert (row["state"], row["reason_code"]) == (
            "failed_permanent",
            "RUNTIME_AUTHENTICATION_FAILED",
        ), number
        assert world.provider.created == [revision]
        assert list(world.provider.sandboxes) == [first]
        assert route(world, agent)["revisionId"] == first
        if not killed:
            break
        number += 1
    assert number > 12


@pytest.mark.parametrize("target", ["stopped", "deleted"])
async def test_a_stop_or_deletion_survives_a_kill_at_every_point(seed, world, killer, target):
    namespace = await seed.namespace()
    number = 0
    while True:
        agent = await seed.agent(namespace)
        await seed.deployment(agent)
        await world.drain()
        await seed.run(
            "UPDATE occ.agents SET desired_runtime_state = 'stopped', status = %(status)s WHERE id = %(id)s",
            id=agent.id,
            status="deleting" if target == "deleted" else "active",
        )
        key = await seed.work(namespace, agent=agent.id, target=target)
        killed = await crash_then_recover(seed, world, killer, number, key)
        assert (await seed.row(key))["state"] == "succeeded", number
        assert world.provider.sandboxes == {}
        if target == "deleted":
            assert await state(seed, agent) is None
            assert not (world.settings.agents_dir / agent.id).exists()
            assert not (world.settings.routes_dir / f"{agent.id}.json").exists()
        else:
            assert (await state(seed, agent))["active_revision_id"] is None
            assert route(world, agent)["revisionId"] is None
        if not killed:
            break
        number += 1
    assert number > 4


async def test_dying_on_every_attempt_ends_with_the_candidate_removed(seed, world, killer):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent)
    for _ in range(world.settings_worker.max_attempts):
        await seed.available(key)
        killer.arm(None)
        world.provider.interrupt = _kill_after_create
        with pytest.raises(Killed):
            await world.drain()
        await seed.expire(key)
        await world.engine.queue.recover_stale()
    world.provider.interrupt = killer
    assert len(world.provider.sandboxes) == 1
    await seed.available(key)
    assert await world.drain() == ["permanent"]
    row = await seed.row(key)
    assert (row["state"], row["reason_code"]) == ("failed_permanent", "LEASE_EXPIRED")
    assert world.provider.sandboxes == {}


def _kill_after_create(point):
    if point == "after provision_harness":
        raise Killed
