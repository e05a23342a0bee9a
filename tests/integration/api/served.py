"""The real control plane in one process: PostgreSQL, core, worker engine and API, over an in-memory Sandbox provider."""

import asyncio
import contextlib
import os
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn

from oce.api.app import create_app
from oce.contracts.drivers import Drivers, abilities_of
from oce.contracts.sandbox import PolicyObservation, PolicyRecommendation, PolicySnapshot
from oce.core.access.native import NativeIam
from oce.core.installation.commands import bootstrap
from oce.core.platform import Platform
from oce.domain.clock import SystemClock
from oce.drivers.local.compute import LocalCompute
from oce.drivers.local.configuration import LocalConfigurationDriver
from oce.drivers.local.secrets import LocalSecretDriver
from oce.drivers.local.settings import LocalComputeSettings
from oce.drivers.openshell import policies
from oce.testing.memory_provider import (
    MemoryAgentGateway,
    MemoryCredentialGateway,
    MemoryProvider,
    MemorySandboxDriver,
)
from oce.worker.main import build_engine
from oce.worker.settings import WorkerSettings


class PolicedSandboxDriver(MemorySandboxDriver):
    """Admits policies as the OpenShell Driver does and has them in force at once."""

    network_policy = policies.SUPPORT
    current = None
    version = 1

    def admit_network_policy(self, additions, version, defaults=None, scope=None):
        return policies.admit(
            self.id, (), additions=additions, version=version, defaults=defaults, scope=scope
        )

    async def observe_network_policy(self, context, snapshot):
        current = self.current or PolicySnapshot(**context.revision.network_policy)
        return PolicyObservation(
            provider_version=str(self.version),
            policy_version=self.version,
            load_state="loaded",
            matches=current == snapshot,
        )

    async def apply_network_policy(self, context, application):
        self.current = application.snapshot
        self.version += 1
        return await self.observe_network_policy(context, application.snapshot)

    async def read_policy_recommendations(self, context, limit):
        return (
            PolicyRecommendation(
                id="c1", state="pending", host="h.example.com", port=443, binary="/b", reason="r"
            ),
        )


@dataclass(kw_only=True)
class World:
    """What a test holds."""

    platform: Platform
    provider: MemoryProvider
    key: str
    administrator: str
    root: Path
    app: object

    def client(self, key=None):
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(
            transport=transport,
            base_url="http://occ.test",
            headers={"x-api-key": key or self.key},
        )


def drivers(root, provider, db):
    secret = LocalSecretDriver(root / "secrets", root / "keys" / "secret.key")
    sandbox = abilities_of(PolicedSandboxDriver(provider))
    credentials = MemoryCredentialGateway(provider)
    settings = LocalComputeSettings(
        agents_dir=root / "agents",
        routes_dir=root / "routes",
        gateway_control_socket=root / "control.sock",
        harness_command=("/opt/oce/python/bin/python3", "-I", "harness"),
        ready_wait_seconds=0.05,
        first_poll_seconds=0.001,
        slowest_poll_seconds=0.01,
    )
    settings.routes_dir.mkdir(exist_ok=True)
    return Drivers(
        compute=LocalCompute(
            "compute-local",
            settings,
            sandbox=sandbox,
            credential_gateway=credentials,
            secret_driver=secret,
        ),
        sandbox=sandbox,
        credential_gateway=credentials,
        configuration=LocalConfigurationDriver(root / "configurations"),
        secret=secret,
        iam=NativeIam(db),
    )


@asynccontextmanager
async def worker(platform):
    """Run the engine beside the test."""
    settings = WorkerSettings(lanes=2, lease=5, max_attempts=5, poll=0.05)
    engine = build_engine(platform, settings)
    stop = asyncio.Event()
    task = asyncio.create_task(engine.run(stop))
    try:
        yield engine
    finally:
        stop.set()
        await task


@asynccontextmanager
async def control_plane(db):
    """Yield a bootstrapped world with its worker running."""
    with tempfile.TemporaryDirectory(prefix="oce-api-") as name:
        root = Path(name)
        provider = MemoryProvider()
        clock = SystemClock()
        made = await bootstrap(db, clock, name="test")
        platform = Platform(
            db=db,
            drivers=drivers(root, provider, db),
            clock=clock,
            installation_id=made.installation.id,
        )
        world = World(
            platform=platform,
            provider=provider,
            key=made.key_text.reveal(),
            administrator=made.administrator_id,
            root=root,
            app=create_app(platform),
        )
        async with (
            MemoryAgentGateway(root / "control.sock", root / "routes"),
            worker(platform),
        ):
            yield world


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):
        yield


@asynccontextmanager
async def listening(app, **tls):
    """Serve an application on a loopback port of the system's choice and yield its origin."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, lifespan="off", access_log=False, **tls
    )
    server = _Quiet(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await task


async def eventually(look, seconds=10.0):
    """Await `look()` until it returns something true."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (found := await look()):
        assert asyncio.get_running_loop().time() < deadline, "it did not come true in time"
        await asyncio.sleep(0.01)
    return found


async def program(*arguments, environment=None, stdin=b"", cwd=None):
    """Run a program of this checkout and return (exit code, out, err)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
    )
    out, err = await asyncio.wait_for(process.communicate(stdin), 30)
    return process.returncode, out.decode(), err.decode()
