"""Fixtures that several folders share: one real PostgreSQL per session, one database per test."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from oce.dev.postgres import ENVIRONMENT, Postgres, PostgresPlan
from oce.store.database import Database
from oce.store.migrate import migrate
from oce.store.provision import provision

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Cluster:
    """A private server of this session with a migrated template database `occ`."""

    server: Postgres
    plan: PostgresPlan

    def superuser_url(self, database: str = "postgres") -> str:
        return self.plan.url("postgres", database)


@dataclass(frozen=True)
class TestDatabase:
    """A fresh, migrated database of one test."""

    __test__ = False
    cluster: Cluster
    name: str

    @property
    def app_url(self) -> str:
        return self.cluster.plan.url("occ_app", self.name)

    @property
    def migrator_url(self) -> str:
        return self.cluster.plan.url("occ_migrator", self.name)

    @property
    def superuser_url(self) -> str:
        return self.cluster.superuser_url(self.name)


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Cluster]:
    directory = Path(tempfile.mkdtemp(prefix="oce-pg-", dir="/tmp"))
    directory.chmod(0o711)
    plan = PostgresPlan(root=directory / "pg", runtime=directory / "runtime", durable=False)
    (directory / "runtime").mkdir(mode=0o755)
    if os.geteuid() == 0:
        directory.chmod(0o755)
    server = Postgres(plan)
    process: subprocess.Popen[bytes] | None = None
    try:
        server.prepare()
        process = subprocess.Popen(
            server.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=ENVIRONMENT,
        )
        deadline = time.monotonic() + 30
        while not server.ready():
            assert process.poll() is None, "PostgreSQL ended at once"
            assert time.monotonic() < deadline, "PostgreSQL did not become ready"
            time.sleep(0.01)
        cluster = Cluster(server, plan)
        provision(cluster.superuser_url())
        migrate(plan.url("occ_migrator", "occ"))
        yield cluster
    finally:
        server.stop()
        if process is not None:
            process.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def test_database(postgres_cluster: Cluster) -> Iterator[TestDatabase]:
    name = f"t{next(_NUMBERS)}"
    with psycopg.connect(postgres_cluster.superuser_url(), autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE occ OWNER occ_migrator STRATEGY file_copy"
        )
        connection.execute(f"GRANT CONNECT ON DATABASE {name} TO occ_app, occ_migrator")
    yield TestDatabase(postgres_cluster, name)
    with psycopg.connect(postgres_cluster.superuser_url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
async def db(test_database: TestDatabase) -> AsyncIterator[Database]:
    database = Database(test_database.app_url, pool_size=8, statement_timeout=20)
    yield database
    await database.close()
