"""A throw-away PostgreSQL with the schema of the product, durable like a real one (fsync and synchronous commit on)."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

from benchmarks.gateway import folder
from benchmarks.measure import until
from oce.dev.postgres import ENVIRONMENT, Postgres, PostgresPlan
from oce.store.migrate import migrate
from oce.store.provision import provision

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def postgres() -> Iterator[PostgresPlan]:
    with folder("oce-pg-") as root:
        (root / "runtime").mkdir(mode=0o755)
        plan = PostgresPlan(root=root / "pg", runtime=root / "runtime")
        server = Postgres(plan)
        server.prepare()
        process = subprocess.Popen(
            server.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=ENVIRONMENT,
        )
        try:
            until(lambda: server.ready() or process.poll() is not None, pause=0.02)
            provision(plan.url("postgres", "postgres"))
            migrate(plan.url("occ_migrator"))
            yield plan
        finally:
            server.stop()
            process.wait(30)
