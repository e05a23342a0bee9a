"""The engine: lanes, wake-up, lost and lapsed leases, reconnects, shutdown."""

import asyncio
import contextlib
import dataclasses
import time
from pathlib import Path

import psycopg
import pytest

from oce.store import work
from oce.store.database import Database
from oce.store.errors import StoreUnavailable
from oce.store.queue import WorkKind
from oce.worker.engine import Engine
from oce.worker.outcomes import Success

pytestmark = pytest.mark.postgres


class ScriptedPass:
    """Does what the test says and records who ran beside whom."""

    def __init__(self, action=None):
        self.action = action
        self.running = []
        self.most = 0
        self.overlap = False
        self.claims = []

    async def run(self, claim, step):
        self.overlap |= claim.agent_id in self.running
        self.running.append(claim.agent_id)
        self.most = max(self.most, len(self.running))
        self.claims.append(claim)
        try:
            await step("work")
            if self.action is not None:
                await self.action(claim, step)
        finally:
            self.running.remove(claim.agent_id)
        return Success(reason="AGENT_STOPPED")

    async def refused(self, claim, step, outcome):
        return outcome


def engine_of(db, settings, scripted, **changes):
    engine = Engine(db, dataclasses.replace(settings, **changes))
    engine.passes = dict.fromkeys(WorkKind, scripted)
    return engine


@contextlib.asynccontextmanager
async def running(engine):
    stop = asyncio.Event()
    task = asyncio.create_task(engine.run(stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(task, 20)


async def until(condition, seconds=15):
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


async def finished(seed):
    try:
        row = await seed.one(
            "SELECT count(*) AS n FROM occ.controller_work WHERE state IN ('queued', 'claimed')"
        )
    except StoreUnavailable:
        return False
    return row["n"] == 0


async def enqueue_stop(db, agent):
    async with db.transact() as tx:
        key = work.operation_key("agent", agent.id, "stop")
        await work.enqueue(
            tx,
            key=key,
            namespace_id=agent.namespace_id,
            actor_id="spn_x",
            agent_id=agent.id,
            agent_target="stopped",
        )
    return key


async def test_lanes_run_siblings_together_and_one_agent_in_turn(seed, db, worker_settings):
    namespace = await seed.namespace()
    agents = [await seed.agent(namespace) for _ in range(6)]
    for agent in agents:
        for _ in range(3):
            await seed.work(namespace, agent=agent.id, target="stopped")
    full = asyncio.Event()

    async def meet(claim, step):
        if scripted.most == 4:
            full.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await full.wait()

    scripted = ScriptedPass(meet)
    async with running(engine_of(db, worker_settings, scripted)):
        await until(lambda: finished(seed))
    assert (len(scripted.claims), scripted.most, scripted.overlap) == (18, 4, False)


async def test_new_work_wakes_an_idle_worker_without_polling(seed, db, worker_settings):
    agent = await seed.agent(await seed.namespace())
    begun = []

    async def note(claim, step):
        begun.append(time.monotonic())

    engine = engine_of(db, worker_settings, ScriptedPass(note), poll=30)
    async with running(engine):
        await until(lambda: engine.health.ready)
        delays = []
        for _ in range(10):
            sent = time.monotonic()
            await enqueue_stop(db, agent)
            await until(lambda: finished(seed))
            delays.append(begun[-1] - sent)
    assert sorted(delays)[5] < 0.25


async def test_a_killed_notification_line_comes_back_and_is_visible_meanwhile(
    seed, db, worker_settings, test_database, tmp_path
):
    agent = await seed.agent(await seed.namespace())
    ready = tmp_path / "ready"
    engine = engine_of(
        db,
        worker_settings,
        ScriptedPass(),
        poll=30,
        readiness_path=ready,
        liveness_path=tmp_path / "live",
    )
    seen = []
    line = engine._line
    engine._line = lambda *, up: (line(up=up), seen.append((up, ready.exists())))
    async with running(engine):
        await until(ready.exists)
        assert (tmp_path / "live").exists()
        with psycopg.connect(test_database.superuser_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE '%-listen' AND datname = current_database()"
            )
        await until(lambda: (False, False) in seen)
        await until(ready.exists)
        await enqueue_stop(db, agent)
        await until(lambda: finished(seed), 5)
    assert not ready.exists()


async def test_every_connection_killed_in_the_middle_of_a_pass_costs_nothing(
    seed, db, worker_settings, test_database
):
    agent = await seed.agent(await seed.namespace())

    async def cut(claim, step):
        with psycopg.connect(test_database.superuser_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        scripted.action = None
        await asyncio.sleep(0.6)
        await step("more")

    scripted = ScriptedPass(cut)
    key = await seed.work(agent.namespace_id, agent=agent.id, target="stopped")
    async with running(engine_of(db, worker_settings, scripted)):
        await until(lambda: finished(seed))
    assert len(scripted.claims) == 1
    assert (await seed.row(key))["state"] == "succeeded"


async def test_a_stolen_claim_publishes_nothing(seed, db, worker_settings, world):
    agent = await seed.agent(await seed.namespace())
    key = await seed.work(agent.namespace_id, agent=agent.id, target="stopped")

    async def steal(claim, step):
        await seed.expire(key)

    engine = engine_of(db, worker_settings, ScriptedPass(steal))
    assert await engine.process(await engine.queue.claim()) == "claim_lost"
    assert (await seed.row(key))["state"] == "claimed"
    assert await seed.evidence(key) == []


async def test_many_short_effects_outlive_several_leases(seed, db, worker_settings):
    agent = await seed.agent(await seed.namespace())
    key = await seed.work(agent.namespace_id, agent=agent.id, target="stopped")

    async def effects(claim, step):
        for _ in range(12):
            await step("effect")
            await asyncio.sleep(0.1)

    engine = engine_of(db, worker_settings, ScriptedPass(effects), lease=0.5)
    assert await engine.process(await engine.queue.claim()) == "success"
    assert (await seed.row(key))["state"] == "succeeded"


async def test_shutdown_stops_the_effect_and_hands_the_work_back(seed, db, worker_settings):
    agent = await seed.agent(await seed.namespace())
    key = await seed.work(agent.namespace_id, agent=agent.id, target="stopped")
    entered = asyncio.Event()
    cancelled = []

    async def hang(claim, step):
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async with running(engine_of(db, worker_settings, ScriptedPass(hang))):
        await asyncio.wait_for(entered.wait(), 10)
    row = await seed.row(key)
    assert cancelled == [True]
    assert (row["state"], row["attempt_count"]) == ("queued", 0)


async def test_a_claim_whose_answer_comes_during_shutdown_is_handed_back(
    seed, db, worker_settings, monkeypatch
):
    agent = await seed.agent(await seed.namespace())
    key = await seed.work(agent.namespace_id, agent=agent.id, target="stopped")
    engine = engine_of(db, worker_settings, ScriptedPass(), lanes=1)
    claim, taken, answered = engine.queue.claim, asyncio.Event(), asyncio.Event()

    async def slow(_queue):
        found = await claim()
        if found is not None:
            taken.set()
            await answered.wait()
        return found

    monkeypatch.setattr(type(engine.queue), "claim", slow)
    stop = asyncio.Event()
    task = asyncio.create_task(engine.run(stop))
    await asyncio.wait_for(taken.wait(), 10)
    stop.set()
    for _ in range(10):
        await asyncio.sleep(0)
    answered.set()
    await asyncio.wait_for(task, 20)
    row = await seed.row(key)
    assert (row["state"], row["attempt_count"]) == ("queued", 0)


async def test_a_pass_without_end_is_cut_off_and_tried_again(seed, db, worker_settings):
    agent = await seed.agent(await seed.namespace())
    key = await seed.work(agent.namespace_id, agent=agent.id, target="stopped")

    async def hang(claim, step):
        await asyncio.Event().wait()

    engine = engine_of(db, worker_settings, ScriptedPass(hang), pass_limit=0.1)
    assert await engine.process(await engine.queue.claim()) == "retry"
    assert await seed.evidence(key) == [("failure", "DEPENDENCY_UNAVAILABLE", None)]


class Forwarder:
    """A unix-socket forwarder in front of PostgreSQL that can stop passing bytes while it keeps every connection open."""

    def __init__(self, target, directory):
        self._target = target
        self.directory = directory
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks = set()
        self._writers = []

    async def __aenter__(self):
        self._server = await asyncio.start_unix_server(
            self._accept, str(Path(self.directory) / ".s.PGSQL.5432")
        )
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self):
        self._flowing.clear()

    def thaw(self):
        self._flowing.set()

    async def _accept(self, reader, writer):
        up_reader, up_writer = await asyncio.open_unix_connection(
            str(Path(self._target) / ".s.PGSQL.5432")
        )
        self._writers += [writer, up_writer]
        for source, sink in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)

    async def _pump(self, source, sink):
        while data := await source.read(65536):
            await self._flowing.wait()
            sink.write(data)
        sink.close()


async def test_a_silent_connection_ends_the_effect_before_another_worker_takes_over(
    seed, db, worker_settings, test_database, tmp_path
):
    agent = await seed.agent(await seed.namespace())
    key = await seed.work(agent.namespace_id, agent=agent.id, target="stopped")
    entered, ended = asyncio.Event(), []

    async def hang(claim, step):
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(time.monotonic())

    taken = []

    async def note(claim, step):
        taken.append(time.monotonic())

    sockets = test_database.cluster.plan.sockets
    async with Forwarder(sockets, tmp_path) as forwarder:
        url = f"postgresql://occ_app@/{test_database.name}?host={tmp_path}"
        silent = Database(url, pool_size=4, statement_timeout=20)
        first = engine_of(
            silent, worker_settings, ScriptedPass(hang), lease=1.5, shutdown_grace=0.2
        )
        stop = asyncio.Event()
        lost = asyncio.create_task(first.run(stop))
        await asyncio.wait_for(entered.wait(), 10)
        forwarder.freeze()
        frozen = time.monotonic()
        second = ScriptedPass(note)
        async with running(engine_of(db, worker_settings, second, lease=1.5)):
            await until(lambda: finished(seed))
        stop.set()
        lost.cancel()
    await asyncio.wait({lost}, timeout=15)
    assert lost.done()
    await silent.close()
    assert ended[0] - frozen < 1.5 + 1
    assert ended[0] < taken[0]
    assert [entry[:2] for entry in await seed.evidence(key)] == [
        ("failure", "LEASE_EXPIRED"),
        ("success", "AGENT_STOPPED"),
    ]


async def test_a_query_that_is_never_answered_is_given_up(
    seed, db, worker_settings, test_database, tmp_path
):
    agent = await seed.agent(await seed.namespace())
    async with Forwarder(test_database.cluster.plan.sockets, tmp_path) as forwarder:
        url = f"postgresql://occ_app@/{test_database.name}?host={tmp_path}"
        silent = Database(url, pool_size=4, statement_timeout=20)
        ready = tmp_path / "ready"
        engine = engine_of(
            silent, worker_settings, ScriptedPass(), database_timeout=0.3, readiness_path=ready
        )
        stop = asyncio.Event()
        task = asyncio.create_task(engine.run(stop))
        await until(ready.exists)
        forwarder.freeze()
        await until(lambda: not ready.exists())
        forwarder.thaw()
        await enqueue_stop(db, agent)
        await until(lambda: finished(seed), 30)
        await until(ready.exists, 30)
        stop.set()
        await asyncio.wait_for(task, 20)
        await silent.close()
