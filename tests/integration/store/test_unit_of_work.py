"""Transactions over a real server: all or nothing, unknown outcomes, lost servers, wake-ups."""

# ruff: noqa: PT012 - the block under test is a transaction

from __future__ import annotations

import asyncio

import psycopg
import pytest

from oce.domain.clock import SystemClock
from oce.domain.resources import Installation
from oce.store import installation, work
from oce.store.database import Database
from oce.store.errors import (
    ConstraintViolated,
    StorageFull,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    UnknownOutcome,
    translate,
)

pytestmark = pytest.mark.postgres


def _installation(name="one"):
    return Installation(id=f"ins_{name}", name=name, created_at=SystemClock().now())


async def test_a_block_commits_whole_or_not_at_all(db):
    with pytest.raises(ZeroDivisionError):
        async with db.transact() as tx:
            await installation.insert(tx, _installation())
            raise ZeroDivisionError
    async with db.read() as reader:
        assert await installation.find(reader) is None
    async with db.transact() as tx:
        await installation.insert(tx, _installation())
    with pytest.raises(ConstraintViolated) as twice:
        async with db.transact() as tx:
            await installation.insert(tx, _installation("two"))
    assert twice.value.constraint == "installation_singleton"
    async with db.read() as reader:
        assert (await installation.find(reader)).name == "one"


async def test_a_swallowed_failure_cannot_be_committed(db):
    with pytest.raises(StoreUnavailable):
        async with db.transact() as tx:
            await installation.insert(tx, _installation())
            with pytest.raises(StoreError):
                await tx.run("SELECT nonsense")
    async with db.read() as reader:
        assert await installation.find(reader) is None


async def test_handles_die_with_their_block_and_readers_cannot_write(db):
    async with db.transact() as tx:
        pass
    with pytest.raises(RuntimeError, match="after its block"):
        await tx.one("SELECT 1 AS x")
    with pytest.raises(StoreError, match="25006"):
        async with db.read() as reader:
            await reader.one("INSERT INTO occ.iam_groups (id) VALUES ('g') RETURNING id")


async def test_a_commit_whose_answer_is_lost_is_unknown_and_not_repeated(db, test_database):
    """The server dies between COMMIT and its answer; what happened is found by looking, and here it was not committed."""
    with pytest.raises(UnknownOutcome):
        async with db.transact() as tx:
            await installation.insert(tx, _installation())
            pid = (await tx.one("SELECT pg_backend_pid() AS pid"))["pid"]
            with psycopg.connect(test_database.superuser_url, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    async with db.read() as reader:
        assert await installation.find(reader) is None


async def test_a_commit_that_took_effect_without_an_answer_is_unknown_too(db, monkeypatch):
    real = psycopg.AsyncConnection.execute

    async def lost(self, query, *args, **options):
        cursor = await real(self, query, *args, **options)
        if query == b"COMMIT":
            raise psycopg.OperationalError("consuming input failed")
        return cursor

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", lost)
    with pytest.raises(UnknownOutcome):
        async with db.transact() as tx:
            await installation.insert(tx, _installation())
    monkeypatch.undo()
    async with db.read() as reader:
        assert (await installation.find(reader)).name == "one"


_ONCE = "INSERT INTO occ.installation (id, name) VALUES (%(id)s, 'one') RETURNING id, pg_backend_pid() AS pid"


async def test_one_statement_commits_by_itself_and_says_what_is_known(db, test_database):
    (row,) = await db.once(_ONCE, id="ins_one")
    with pytest.raises(ConstraintViolated):
        await db.once(_ONCE, id="ins_two")
    with psycopg.connect(test_database.superuser_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (row["pid"],))
        # An idle connection that was cut is noticed before anything is sent on it.
        (fresh,) = await db.once("SELECT pg_backend_pid() AS pid")
        assert fresh["pid"] != row["pid"]
    with pytest.raises(UnknownOutcome):
        await db.once("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(5)")
    assert await db.once("SELECT id FROM occ.installation") == [{"id": "ins_one"}]


async def test_a_refused_commit_is_known(db):
    """A deferred constraint speaks at COMMIT."""
    with pytest.raises(ConstraintViolated):
        async with db.transact() as tx:
            await tx.run(
                "INSERT INTO occ.namespaces (id, name, status) VALUES ('ns_1', 'n', 'ready')"
            )
            await tx.run(
                "INSERT INTO occ.iam_identities (id, kind, namespace_id, agent_id)"
                " VALUES ('spn_1', 'service_principal', 'ns_1', 'agt_missing')"
            )


async def test_idle_connections_cut_by_the_server_cost_nobody_an_error(db, test_database):
    async def look():
        async with db.read() as reader, db.transact() as tx:
            return [
                (await handle.one("SELECT pg_backend_pid() AS pid"))["pid"]
                for handle in (reader, tx)
            ]

    before = {pid for pids in await asyncio.gather(*(look() for _ in range(4))) for pid in pids}
    with psycopg.connect(test_database.superuser_url, autocommit=True) as other:
        for pid in before:
            other.execute("SELECT pg_terminate_backend(%s, 2000)", (pid,))
    after = {pid for pids in await asyncio.gather(*(look() for _ in range(4))) for pid in pids}
    assert not before & after


async def test_timeouts_and_an_absent_server_are_named(test_database, tmp_path):
    slow = Database(test_database.app_url, pool_size=1, statement_timeout=0.05, connect_timeout=0.2)
    with pytest.raises(StoreTimeout):
        async with slow.read() as reader:
            await reader.one("SELECT pg_sleep(5)")
    async with slow.read():
        with pytest.raises(StoreUnavailable, match="no connection became free"):
            async with slow.read():
                pass
    await slow.close()
    absent = Database(f"postgresql://occ_app@/occ?host={tmp_path}")
    with pytest.raises(StoreUnavailable):
        await absent.ping()


async def test_a_cancelled_block_rolls_back(db):
    started = asyncio.Event()

    async def write():
        async with db.transact() as tx:
            await installation.insert(tx, _installation())
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with db.transact() as tx:
        await installation.insert(tx, _installation("two"))


async def test_cancelled_blocks_give_their_places_back(test_database):
    db = Database(test_database.app_url, pool_size=2, connect_timeout=5)

    async def busy(block):
        async with block() as handle:
            await handle.one("SELECT pg_sleep(30)")

    tasks = [asyncio.create_task(busy(block)) for block in (db.read, db.transact) for _ in range(4)]
    for delay in (0, 0.01, 0.05):
        await asyncio.sleep(delay)
        for task in tasks[::2]:
            task.cancel()
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one) for one in results} == {asyncio.CancelledError}
    for _ in range(3):
        async with db.read() as reader, db.transact() as tx:
            assert await reader.one("SELECT 1 AS x") == await tx.one("SELECT 1 AS x")
    await db.close()


async def test_work_wakes_a_listener_only_when_it_exists(db):
    async with db.listen("occ_work") as listener:

        async def enqueue(key, *, fail=False):
            async with db.transact() as tx:
                await tx.run(
                    "INSERT INTO occ.namespaces (id, name, status) VALUES (%(id)s, %(id)s, 'ready')"
                    " ON CONFLICT DO NOTHING",
                    id="ns_1",
                )
                await work.enqueue(
                    tx, key=key, namespace_id="ns_1", actor_id="spn_1", namespace_target="deleted"
                )
                if fail:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await enqueue("never", fail=True)
        await enqueue("first")
        assert await listener.wait(5) == ["first"]
        await enqueue("first")
        async with db.transact() as tx:
            with pytest.raises(work.WorkConflict):
                await work.enqueue(
                    tx,
                    key="first",
                    namespace_id="ns_1",
                    actor_id="spn_2",
                    namespace_target="deleted",
                )


def test_a_full_disk_has_its_own_name():
    assert isinstance(translate(psycopg.errors.DiskFull("could not extend file")), StorageFull)
    assert StorageFull.code == "STORAGE_FULL"
