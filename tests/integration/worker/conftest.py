"""Rows to work on: an Installation, a Namespace, Agents, revisions and queued work, written as the application role."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import structlog
from psycopg.types.json import Jsonb

from oce.contracts.drivers import Drivers, abilities_of
from oce.core.platform import Platform
from oce.domain.clock import SystemClock
from oce.drivers.local.compute import LocalCompute
from oce.drivers.local.configuration import LocalConfigurationDriver
from oce.drivers.local.secrets import LocalSecretDriver
from oce.drivers.local.settings import LocalComputeSettings
from oce.store.queue import WorkQueue
from oce.testing.memory_provider import (
    MemoryAgentGateway,
    MemoryCredentialGateway,
    MemoryProvider,
    MemorySandboxDriver,
)
from oce.worker.engine import Engine
from oce.worker.passes import all_passes
from oce.worker.passes.common import Workshop
from oce.worker.settings import WorkerSettings

INSTALLATION = "ins_00000000-0000-4000-8000-000000000001"
ACTOR = "spn_00000000-0000-4000-8000-000000000002"


def uid(prefix):
    return f"{prefix}_{uuid.uuid4()}"


@dataclass(kw_only=True)
class SeededAgent:
    id: str
    namespace_id: str
    configuration_id: str
    source_id: str
    principal_id: str
    revisions: int = 0


class Seed:
    """Writes valid rows with defaults; every method commits."""

    def __init__(self, db):
        self.db = db

    async def run(self, query, **params):
        async with self.db.transact() as tx:
            return await tx.run(query, **params)

    async def one(self, query, **params):
        async with self.db.read() as reader:
            return await reader.one(query, **params)

    async def all(self, query, **params):
        async with self.db.read() as reader:
            return await reader.all(query, **params)

    async def installation(self):
        await self.run(
            "INSERT INTO occ.installation (id, name) VALUES (%(id)s, 'test')", id=INSTALLATION
        )
        await self.run(
            "INSERT INTO occ.iam_identities (id, kind) VALUES (%(id)s, 'service_principal')",
            id=ACTOR,
        )
        await self.run(
            "INSERT INTO occ.iam_access_bindings (id, subject_kind, subject_id, role_id)"
            " VALUES (%(id)s, 'identity', %(actor)s, 'role_administrator')",
            id=uid("binding"),
            actor=ACTOR,
        )

    async def namespace(self, status="ready"):
        identifier = uid("ns")
        await self.run(
            "INSERT INTO occ.namespaces (id, name, status) VALUES (%(id)s, %(id)s, %(status)s)",
            id=identifier,
            status=status,
        )
        return identifier

    async def agent(self, namespace_id):
        agent = SeededAgent(
            id=uid("agt"),
            namespace_id=namespace_id,
            configuration_id=uid("cfg"),
            source_id=uid("cs"),
            principal_id=uid("spn"),
        )
        async with self.db.transact() as tx:
            names = {
                "ns": namespace_id,
                "agent": agent.id,
                "cfg": agent.configuration_id,
                "cs": agent.source_id,
                "spn": agent.principal_id,
            }
            await tx.run(
                "INSERT INTO occ.configurations (id, namespace_id, kind, generation, reserved_generation, state)"
                " VALUES (%(cfg)s, %(ns)s, 'agent', 1, 1, 'ready')",
                **names,
            )
            await tx.run(
                "INSERT INTO occ.credential_sources (id, namespace_id, name, type, driver_id, state)"
                " VALUES (%(cs)s, %(ns)s, %(cs)s, 'openai', 'credentials-memory', 'ready')",
                **names,
            )
            await tx.run(
                "INSERT INTO occ.iam_identities (id, kind, namespace_id, agent_id)"
                " VALUES (%(spn)s, 'service_principal', %(ns)s, %(agent)s)",
                **names,
            )
            await tx.run(
                "INSERT INTO occ.agents (id, namespace_id, name, configuration_id, execution_mode, service_principal_id,"
                " harness_auth, harness_auth_source_id, desired_runtime_state, status)"
                " VALUES (%(agent)s, %(ns)s, %(agent)s, %(cfg)s, 'dedicated', %(spn)s, %(auth)s, %(cs)s, 'running',"
                " 'active')",
                **names,
                auth=Jsonb({"method": "credential_source", "source_id": agent.source_id}),
            )
            await tx.run(
                "INSERT INTO occ.agent_credential_sources (agent_id, position, namespace_id, credential_source_id)"
                " VALUES (%(agent)s, 0, %(ns)s, %(cs)s)",
                **names,
            )
            await tx.run(
                "INSERT INTO occ.iam_access_bindings (id, subject_kind, subject_id, role_id, namespace_id)"
                " VALUES (%(id)s, 'identity', %(spn)s, 'role_operator', %(ns)s)",
                id=uid("binding"),
                **names,
            )
        return agent

    async def revision(self, agent, **spec):
        agent.revisions += 1
        identifier = uid("rev")
        admitted = {
            "configuration_id": agent.configuration_id,
            "configuration_generation": 1,
            "configuration": {"agents": {"defaults": {"model": "openai/gpt-test"}}},
            "harness": {"id": "codex", "version": "0.163.0", "mode": "dedicated"},
            "compute": {"id": "compute-local", "implementation": "local"},
            "sandbox_driver_id": "sandbox-memory",
            "service_principal_id": agent.principal_id,
            "harness_auth": {"method": "credential_source", "source_id": agent.source_id},
            "credential_sources": [
                {
                    "source_id": agent.source_id,
                    "credential_gateway_id": "credentials-memory",
                    "source_type": "openai",
                }
            ],
            "secret_bindings": {},
            "network_policy": None,
            "render_version": 1,
            **spec,
        }
        await self.run(
            "INSERT INTO occ.agent_revisions (id, namespace_id, agent_id, revision_number, admitted_spec)"
            " VALUES (%(id)s, %(ns)s, %(agent)s, %(number)s, %(spec)s)",
            id=identifier,
            ns=agent.namespace_id,
            agent=agent.id,
            number=agent.revisions,
            spec=Jsonb(admitted),
        )
        return identifier

    async def work(self, namespace_id, *, agent=None, revision=None, target=None, created=0.0):
        """Queue a row; `created` is its age in seconds."""
        key = f"test:{uuid.uuid4()}"
        await self.run(
            "INSERT INTO occ.controller_work (idempotency_key, namespace_id, agent_id, revision_id, actor_id,"
            " namespace_target, agent_target, created_at, available_at) VALUES (%(key)s, %(ns)s, %(agent)s, %(revision)s,"
            " %(actor)s, %(nt)s, %(at)s, clock_timestamp() - %(age)s * interval '1 second',"
            " clock_timestamp() - %(age)s * interval '1 second')",
            key=key,
            ns=namespace_id,
            agent=agent,
            revision=revision,
            actor=ACTOR,
            nt=target if agent is None else None,
            at=target if agent is not None else None,
            age=created,
        )
        return key

    async def deployment(self, agent, *, created=0.0, **spec):
        revision = await self.revision(agent, **spec)
        key = await self.work(
            agent.namespace_id, agent=agent.id, revision=revision, created=created
        )
        return revision, key

    async def expire(self, key):
        """Let a claim's lease be over by the database's clock."""
        await self.run(
            "UPDATE occ.controller_work SET lease_expires_at = clock_timestamp() - interval '1 second'"
            " WHERE idempotency_key = %(key)s",
            key=key,
        )

    async def available(self, key):
        """Let a delayed row be due."""
        await self.run(
            "UPDATE occ.controller_work SET available_at = clock_timestamp() WHERE idempotency_key = %(key)s",
            key=key,
        )

    async def row(self, key):
        return await self.one(
            "SELECT *, extract(epoch FROM available_at - clock_timestamp())::float8 AS due_in,"
            " extract(epoch FROM lease_expires_at - clock_timestamp())::float8 AS lease_left"
            " FROM occ.controller_work WHERE idempotency_key = %(key)s",
            key=key,
        )

    async def evidence(self, key):
        """Return (outcome, code, refusal) of each evidence row, oldest first."""
        rows = await self.all(
            "SELECT outcome, reason_code, details FROM occ.audit_events WHERE details ->> 'workId' = %(key)s ORDER BY seq",
            key=key,
        )
        return [(row["outcome"], row["reason_code"], row["details"].get("refusal")) for row in rows]


@pytest.fixture(autouse=True)
def quiet_log():
    """Expected faults would fill the output."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
async def seed(db):
    seed = Seed(db)
    await seed.installation()
    return seed


@pytest.fixture
def queue(db):
    return WorkQueue(db, lease_seconds=5, max_attempts=3)


class Allowing:
    """An authority that allows everything until it is told a refusal."""

    def __init__(self):
        self.refusal = None

    async def namespace(self, claim, namespace, target):
        return self.refusal

    async def agent(self, claim, agent, target):
        return self.refusal

    async def revision(self, claim, agent, revision):
        return self.refusal


class World:
    """Engine, passes and local Compute over an in-memory provider."""

    def __init__(self, *, db, url, root, gateway, settings, worker, provider):
        self.url = url
        self.settings = settings
        self.settings_worker = worker
        self.provider = provider
        self.gateway = gateway
        self.authority = Allowing()
        secret = LocalSecretDriver(root / "secrets", root / "keys" / "secret.key")
        sandbox = abilities_of(MemorySandboxDriver(provider))
        credentials = MemoryCredentialGateway(provider)
        compute = LocalCompute(
            "compute-local",
            settings,
            sandbox=sandbox,
            credential_gateway=credentials,
            secret_driver=secret,
        )
        self.platform = Platform(
            db=db,
            drivers=Drivers(
                compute=compute,
                sandbox=sandbox,
                credential_gateway=credentials,
                configuration=LocalConfigurationDriver(root / "configurations"),
                secret=secret,
                iam=None,
            ),
            clock=SystemClock(),
            installation_id=INSTALLATION,
        )
        self.engine = self.new_engine()

    def new_engine(self, **changes):
        settings = dataclasses.replace(self.settings_worker, **changes)
        engine = Engine(self.platform.db, settings)
        engine.passes = all_passes(Workshop(self.platform, engine.queue, authority=self.authority))
        return engine

    def with_iam(self, iam):
        """Decide over the real policy tables."""
        drivers = dataclasses.replace(self.platform.drivers, iam=iam)
        self.platform = dataclasses.replace(self.platform, drivers=drivers)

    async def drain(self, engine=None):
        """Process everything that is due; return the labels of the passes."""
        engine = engine or self.engine
        labels = []
        while claim := await engine.queue.claim():
            labels.append(await engine.process(claim))
        return labels

    def at(self, moment, statement):
        """Run a statement over a connection of its own at one point of the provider."""

        def interrupt(point):
            if point == moment:
                self.provider.interrupt = lambda _point: None
                with psycopg.connect(self.url, autocommit=True) as connection:
                    connection.execute(statement)

        self.provider.interrupt = interrupt


@pytest.fixture
def worker_settings():
    return WorkerSettings(lanes=4, lease=5, max_attempts=5)


@pytest.fixture
async def world(db, seed, test_database, worker_settings):
    with tempfile.TemporaryDirectory(prefix="oce-w-") as name:
        root = Path(name)
        settings = LocalComputeSettings(
            agents_dir=root / "agents",
            routes_dir=root / "routes",
            gateway_control_socket=root / "control.sock",
            harness_command=("/opt/oce/python/bin/python3", "-I", "harness"),
            ready_wait_seconds=0.05,
            first_poll_seconds=0.001,
            slowest_poll_seconds=0.01,
        )
        settings.routes_dir.mkdir()
        async with MemoryAgentGateway(settings.gateway_control_socket, settings.routes_dir) as agw:
            yield World(
                db=db,
                url=test_database.app_url,
                root=root,
                gateway=agw,
                settings=settings,
                worker=worker_settings,
                provider=MemoryProvider(),
            )
