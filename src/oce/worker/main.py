"""The worker process: `python -m oce.worker.main`. Settings come from the environment, see `oce.worker.settings`.

Order of start: settings, composition, the Installation row (absent: refuse to start), Compute's preflight, then the loop. On SIGTERM or
SIGINT running effects are cancelled, their claims handed back, and the process ends with 0.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import uvloop

from oce.core.installation.queries import find
from oce.core.platform import Platform
from oce.domain.clock import SystemClock
from oce.installation.compose import compose, load, settings_of
from oce.installation.errors import StartupRefused
from oce.observability import logging
from oce.observability.metrics import WorkerMetrics, new_registry
from oce.store.database import Database
from oce.store.errors import StoreError
from oce.worker.engine import Engine
from oce.worker.exposition import Exposition
from oce.worker.exposures import ExposureSweep
from oce.worker.passes import all_passes
from oce.worker.passes.common import CoreAuthority, Workshop
from oce.worker.settings import WorkerSettingsRefused, from_environment

if TYPE_CHECKING:
    from oce.worker.settings import WorkerProcess, WorkerSettings

_SPARE_CONNECTIONS = 4
"""Sweep, health, scrape and one to spare; each lane may hold one for its pass and one for its lease."""


def build_engine(
    platform: Platform, settings: WorkerSettings, metrics: WorkerMetrics | None = None
) -> Engine:
    """Return an engine with every pass and chore over a composed platform."""
    engine = Engine(platform.db, settings, metrics=metrics)
    engine.passes = all_passes(Workshop(platform, engine.queue, authority=CoreAuthority(platform)))
    sweep = ExposureSweep(platform, period=settings.exposure_sweep, limit=settings.pass_limit)
    engine.chores = (sweep,)
    return engine


async def work(process: WorkerProcess) -> int:
    """Work until a signal comes and return the exit code. Raises StartupRefused, StoreError, OSError."""
    log = logging.get_logger()
    settings = process.worker
    database = Database(
        process.database_url,
        pool_size=2 * settings.lanes + _SPARE_CONNECTIONS,
        statement_timeout=settings.database_timeout,
        connect_timeout=settings.database_timeout,
        name="occ-worker",
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        startup = load(process.config_path)
        drivers = compose(startup, database)
        installation = await find(database)
        if installation is None:
            log.error("worker.startup-error", reason="no Installation was bootstrapped")
            return 1
        for warning in await drivers.compute.preflight():
            log.warning("compute.preflight-warning", message=warning)
        registry = new_registry()
        metrics = WorkerMetrics(registry)
        platform = Platform(
            db=database,
            drivers=drivers,
            clock=SystemClock(),
            installation_id=installation.id,
            settings=settings_of(startup),
        )
        engine = build_engine(platform, settings, metrics)

        async def refresh() -> None:
            found = await engine.queue.aggregates()
            metrics.queue(
                pending=found.pending, oldest_age_seconds=found.oldest_age, agents=found.agents
            )

        listener = None
        if process.metrics is not None:
            exposition = Exposition(registry, refresh)
            listener = await exposition.listen(process.metrics.host, process.metrics.port)
        log.info(
            "worker.started",
            compute_driver_id=drivers.compute.id,
            sandbox_driver_id=drivers.sandbox.driver.id if drivers.sandbox is not None else None,
            lanes=settings.lanes,
            pid=os.getpid(),
        )
        await engine.run(stop)
        if listener is not None:
            listener.close()
            await listener.wait_closed()
        log.info("worker.stopped")
        return 0
    finally:
        await database.close()


def main() -> int:
    """Run the process and return its exit code; a refusal is one sentence on standard error."""
    try:
        process = from_environment(os.environ)
    except WorkerSettingsRefused as error:
        sys.stderr.write(f"oce.worker: {error}\n")
        return 2
    logging.configure("worker", process.log_level)
    try:
        return uvloop.run(work(process))
    except StartupRefused as error:
        sys.stderr.write(f"oce.worker: {error}\n")
        return 2
    except (StoreError, OSError) as error:
        logging.get_logger().error("worker.startup-error", exc_info=error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
