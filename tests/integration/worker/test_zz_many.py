"""Random histories of deploys, stops, faults and kills: invariants hold at every instant and everything converges."""

import json
import random

import pytest

from oce.contracts.sandbox import HarnessStatus
from oce.worker import lease

pytestmark = pytest.mark.postgres

HELD = {
    "component": "agent",
    "check": "login",
    "checkedAt": "2026-01-02T03:04:05Z",
    "code": "AUTHENTICATION_FAILED",
}
STATUSES = {
    "serving": HarnessStatus(state="serving"),
    "starting": HarnessStatus(state="starting"),
    "failing": HarnessStatus(state="failed", failure_document=HELD),
}


class Killed(BaseException):
    """The process is gone."""


class History:
    """One Agent, and what a random user, provider and reaper do to it."""

    def __init__(self, seed, world, agent, number):
        self.seed, self.world, self.agent = seed, world, agent
        self.random = random.Random(number)  # noqa: S311 - a reproducible history, not a secret
        self.left = None
        world.provider.interrupt = self.tick

    def tick(self, _point):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    async def deploy(self):
        await self.seed.run("UPDATE occ.agents SET desired_runtime_state = 'running'")
        await self.seed.deployment(self.agent)

    async def stop(self):
        await self.seed.run("UPDATE occ.agents SET desired_runtime_state = 'stopped'")
        await self.seed.work(self.agent.namespace_id, agent=self.agent.id, target="stopped")

    async def weather(self):
        self.world.provider.statuses[:] = [STATUSES[self.random.choice(sorted(STATUSES))]]

    async def work(self):
        await self.seed.run(
            "UPDATE occ.controller_work SET available_at = clock_timestamp() WHERE state = 'queued'"
        )
        self.left = self.random.choice([None, *range(0, 26, 2)])
        try:
            await self.world.drain()
        except Killed:
            await self.reap()
        finally:
            self.left = None

    async def reap(self):
        await self.seed.run(
            "UPDATE occ.controller_work SET lease_expires_at = clock_timestamp() - interval '1 second'"
            " WHERE state = 'claimed'"
        )
        await self.world.engine.queue.recover_stale()

    def routed(self):
        path = self.world.settings.routes_dir / f"{self.agent.id}.json"
        return json.loads(path.read_bytes())["revisionId"] if path.exists() else None

    def check(self):
        """Invariants 1 and 3: what is routed exists, and no Sandbox was ever made twice."""
        created = self.world.provider.created
        assert len(created) == len(set(created))
        assert self.routed() is None or self.routed() in self.world.provider.sandboxes

    async def converge(self):
        self.world.provider.statuses[:] = [STATUSES["serving"]]
        for _ in range(20):
            await self.reap()
            await self.seed.run(
                "UPDATE occ.controller_work SET available_at = clock_timestamp() WHERE state = 'queued'"
            )
            await self.world.drain()
            self.check()
            if not await self.world.engine.queue.pending():
                return
        raise AssertionError("the work never ended")


@pytest.mark.parametrize("number", range(60))
async def test_any_history_keeps_the_invariants_and_leaves_nothing_over(
    seed, world, monkeypatch, number
):
    agent = await seed.agent(await seed.namespace())
    history = History(seed, world, agent, number)
    renew = lease.LeaseKeeper.renew

    async def ticking(self, steps=()):
        history.tick("before step")
        await renew(self, steps)
        history.tick("after step")

    monkeypatch.setattr(lease.LeaseKeeper, "renew", ticking)
    moves = [history.deploy, history.stop, history.weather, history.work, history.work]
    await history.deploy()
    for _ in range(30):
        await history.random.choice(moves)()
        history.check()
    await history.converge()

    row = await seed.one(
        "SELECT active_revision_id, desired_runtime_state FROM occ.agents WHERE id = %(id)s",
        id=agent.id,
    )
    active = row["active_revision_id"]
    assert history.routed() == active
    assert list(world.provider.sandboxes) == ([] if active is None else [active])
    if row["desired_runtime_state"] == "stopped":
        assert active is None
