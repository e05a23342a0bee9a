"""Worker passes that do nothing, per second, beside bare SKIP LOCKED loops over as many connections.

The engine is the real one: claim, lease keeper, pass, publication with its audit evidence, eight lanes in one process. Its pass has no
external effect, so this is the price of the machinery. Each queue holds one row for each of thousands of Agents, as a restart after an
outage would find it. The peers are psycopg in the same process: one transaction per job that locks a row and marks it done, and a
lease like ours in two transactions (claim, then complete), with nothing else: no lanes, no evidence, no fencing by the clock.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import uvloop

from benchmarks.database import postgres
from benchmarks.measure import Table, median
from oce.observability.logging import configure
from oce.store.database import Database
from oce.store.queue import Claim, WorkKind
from oce.worker.engine import Engine
from oce.worker.outcomes import Permanent, Success
from oce.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oce.dev.postgres import PostgresPlan
    from oce.worker.lease import StepRecorder

LANES = 8
_NAMESPACE = "ns_00000000-0000-4000-8000-000000000001"
_ACTOR = "spn_00000000-0000-4000-8000-000000000002"
_FILL = f"""
TRUNCATE occ.controller_work CASCADE;
INSERT INTO occ.controller_work (idempotency_key, namespace_id, agent_id, actor_id, agent_target)
    SELECT 'bench:' || n, '{_NAMESPACE}', 'agt_' || gen_random_uuid(), '{_ACTOR}', 'stopped'
    FROM generate_series(1, %(rows)s) n;
"""  # noqa: S608 - constants
_FILL_BARE = """
TRUNCATE bench_jobs;
INSERT INTO bench_jobs (id, state, available_at)
    SELECT 'bench:' || n, 'queued', clock_timestamp() FROM generate_series(1, %(rows)s) n;
"""
_SETUP = f"""
INSERT INTO occ.installation (id, name) VALUES ('ins_00000000-0000-4000-8000-000000000001', 'bench');
INSERT INTO occ.namespaces (id, name, status) VALUES ('{_NAMESPACE}', 'bench', 'ready');
CREATE TABLE bench_jobs (id text PRIMARY KEY, state text NOT NULL, available_at timestamptz NOT NULL, token uuid,
    lease_until timestamptz);
CREATE INDEX ON bench_jobs (available_at, id) WHERE state = 'queued';
"""  # noqa: S608 - constants
_PICK = "SELECT id FROM bench_jobs WHERE state = 'queued' ORDER BY available_at, id LIMIT 1 FOR UPDATE SKIP LOCKED"
_DONE = "UPDATE bench_jobs SET state = 'done' WHERE id = %s"
_CLAIM = f"""UPDATE bench_jobs SET state = 'claimed', token = gen_random_uuid(), lease_until = clock_timestamp() + interval '5 s'
    WHERE id = ({_PICK}) RETURNING id, token"""  # noqa: S608 - constants
_COMPLETE = "UPDATE bench_jobs SET state = 'done', token = NULL WHERE id = %s AND token = %s"


class Nothing:
    """A pass without an effect."""

    async def run(self, claim: Claim, step: StepRecorder) -> Success:  # noqa: ARG002 - the engine's protocol
        return Success(reason="AGENT_STOPPED")

    async def refused(self, claim: Claim, step: StepRecorder, outcome: Permanent) -> Permanent:  # noqa: ARG002 - the same
        return outcome


def run(*, quick: bool) -> list[Table]:
    with postgres() as plan:
        with psycopg.connect(plan.url("postgres"), autocommit=True) as connection:
            connection.execute(_SETUP)
        rows, rounds = (400, 2) if quick else (1000, 5)
        with Path(os.devnull).open("w") as log:
            configure(
                "worker", stream=log
            )  # a line for each pass as in production, but no terminal that reads it
            return [uvloop.run(_measure(plan, rows, rounds))]


async def _measure(plan: PostgresPlan, rows: int, rounds: int) -> Table:
    cases: dict[str, Callable[[], Awaitable[float]]] = {
        "worker engine, no-op pass": lambda: _engine(plan, rows),
        "bare loop, one transaction": lambda: _bare(plan, rows, _lock_and_mark),
        "bare loop, claim and complete": lambda: _bare(plan, rows, _claim_and_complete),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            with psycopg.connect(plan.url("postgres"), autocommit=True) as connection:
                for statement in (
                    _FILL if case is cases["worker engine, no-op pass"] else _FILL_BARE
                ).split(";")[:-1]:
                    connection.execute(statement, {"rows": rows})
                connection.execute("ANALYZE")
            found[name].append(await case())
    table = Table(
        f"Jobs per second, {LANES} lanes or connections, {rows:,} rows",
        ("", "median", "best", "rounds"),
    )
    for name, values in found.items():
        table.row(name, median(values), max(values), str(rounds))
    ours, _, lease = (median(values) for values in found.values())
    table.notes.append(f"the bare claim-and-complete loop does {lease / ours:.1f}x as many")
    table.goal("no-op passes per process", ours, 500, "/s", more=True)
    return table


async def _engine(plan: PostgresPlan, rows: int) -> float:
    database = Database(plan.url("occ_app"), pool_size=2 * LANES + 4)
    engine = Engine(database, WorkerSettings(lanes=LANES))
    nothing = Nothing()
    engine.passes = dict.fromkeys(WorkKind, nothing)
    stop = asyncio.Event()
    began = time.perf_counter()
    task = asyncio.create_task(engine.run(stop))
    try:
        async with asyncio.timeout(60):
            while await engine.queue.pending():  # noqa: ASYNC110 - the database is the condition
                await asyncio.sleep(0.02)
        return rows / (time.perf_counter() - began)
    finally:
        stop.set()
        await task
        await database.close()


async def _bare(
    plan: PostgresPlan, rows: int, job: Callable[[psycopg.AsyncConnection], Awaitable[bool]]
) -> float:
    url = plan.url("postgres")
    connections = [await psycopg.AsyncConnection.connect(url) for _ in range(LANES)]

    async def lane(connection: psycopg.AsyncConnection) -> None:
        while await job(connection):
            pass

    began = time.perf_counter()
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(lane(connection) for connection in connections))
        return rows / (time.perf_counter() - began)
    finally:
        for connection in connections:
            await connection.close()


async def _lock_and_mark(connection: psycopg.AsyncConnection) -> bool:
    async with connection.transaction():
        row = await (await connection.execute(_PICK)).fetchone()
        if row is not None:
            await connection.execute(_DONE, (row[0],))
    return row is not None


async def _claim_and_complete(connection: psycopg.AsyncConnection) -> bool:
    async with connection.transaction():
        row = await (await connection.execute(_CLAIM)).fetchone()
    if row is not None:
        async with connection.transaction():
            await connection.execute(_COMPLETE, row)
    return row is not None
