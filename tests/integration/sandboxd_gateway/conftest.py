"""A gateway over TLS with an in-memory place and egress: the same composition as the program, minus the machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - annotation of a dataclass field

import grpc
import pytest
from openshell import SandboxClient, TlsConfig
from openshell._proto import datamodel_pb2, openshell_pb2, openshell_pb2_grpc
from openshell.errors import from_grpc_error

from oce.sandboxd.api.server import OpenGateway, open_gateway
from oce.sandboxd.config import parse_config
from oce.sandboxd.lifecycle.clock import SystemClock
from oce.sandboxd.place import ExecExit, ExecOutput, ExitStatus
from oce.sandboxd.state.directory import StateDirectory
from oce.sandboxd.state.keys import Keys, ensure_keys


class FakeRunning:
    """A Sandbox that "runs": its main process ends when the test says so."""

    def __init__(self, launch):
        self.launch = launch
        self.sandbox_id = launch.sandbox_id
        self.instance_id = launch.instance_id
        self.proc_id = "1:1"
        self.ended = asyncio.get_running_loop().create_future()
        self.lines = asyncio.Queue()
        self.ports = {}

    async def egress_descriptors(self):
        return object()

    async def connect(self, port):
        sock = socket.socket()
        sock.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.ports[port]))
        except OSError:
            sock.close()
            raise
        return sock

    async def exec(self, request):
        yield ExecOutput(1, " ".join(request.command).encode())
        yield ExecOutput(2, request.stdin)
        yield ExecExit(int(request.environment.get("CODE", "0")))

    async def output(self):
        while True:
            yield await self.lines.get()

    async def wait(self):
        return await asyncio.shield(self.ended)

    def end(self, code):
        if not self.ended.done():
            self.ended.set_result(ExitStatus(code=code))

    async def stop(self, grace_seconds):
        self.end(143)
        return await self.wait()


@dataclass
class FakePlace:
    running: dict = field(default_factory=dict)
    started: list = field(default_factory=list)
    refuse: Exception | None = None

    async def check(self):
        return None

    async def start(self, launch):
        if self.refuse is not None:
            raise self.refuse
        if launch.sandbox_id in self.running:
            raise AssertionError("a second start of a running sandbox")
        self.started.append(launch)
        found = FakeRunning(launch)
        self.running[launch.sandbox_id] = found
        return found

    async def adopt(self, sandbox_id):
        return self.running.get(sandbox_id)

    async def adoptable(self):
        return tuple(self.running)

    async def discard(self, sandbox_id):
        found = self.running.pop(sandbox_id, None)
        if found is not None:
            found.end(137)

    def last_exit(self, sandbox_id):
        return None

    def shown(self):
        return {"/usr": "/usr"}

    async def close(self):
        return None


@dataclass
class FakeEgress:
    served: dict = field(default_factory=dict)
    values: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    events: asyncio.Queue = field(default_factory=asyncio.Queue)
    away: bool = False
    installs: int = 0

    def _here(self):
        if self.away:
            raise ConnectionError("egress is away")

    async def certificate(self, sandbox_id):
        self._here()
        return b"-----BEGIN CERTIFICATE-----\nZmFrZQ==\n-----END CERTIFICATE-----\n"

    async def install(self, sandbox, descriptors):
        self._here()
        self.installs += 1
        self.served[sandbox.sandbox_id] = sandbox

    async def update(self, sandbox):
        self._here()
        if sandbox.sandbox_id not in self.served:
            raise ConnectionError("not installed")
        self.served[sandbox.sandbox_id] = sandbox

    async def remove(self, sandbox_id):
        self._here()
        self.served.pop(sandbox_id, None)

    async def installed(self):
        return {key: value.generation for key, value in self.served.items()}

    async def put_credentials(self, provider_id, version, values):
        self._here()
        self.values[provider_id] = dict(values)
        self.versions[provider_id] = version

    async def delete_credentials(self, provider_id):
        self._here()
        self.values.pop(provider_id, None)
        self.versions.pop(provider_id, None)

    async def credential_versions(self):
        self._here()
        return dict(self.versions)

    async def decisions(self):
        self._here()
        while True:
            event = await self.events.get()
            if event is None:
                raise ConnectionError("egress died")
            yield event

    async def revive(self):
        if self.away:
            raise ConnectionError("egress is away")


class FakeClock:
    """Time that stands still until a test moves it."""

    def __init__(self):
        self.time = 1_000_000.0
        self._sleepers = []

    def now(self):
        return self.time

    async def sleep(self, seconds):
        done = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.time + seconds, done))
        await done

    def advance(self, seconds):
        self.time += seconds
        for due, done in self._sleepers:
            if due <= self.time and not done.done():
                done.set_result(None)
        self._sleepers = [item for item in self._sleepers if not item[1].done()]


@dataclass
class World:
    """One gateway and what tests need of it."""

    state: Path
    place: FakePlace
    egress: FakeEgress
    gateway: OpenGateway | None = None
    port: int = 0
    extra: dict = field(default_factory=dict)
    clock: object = field(default_factory=SystemClock)

    @property
    def keys(self) -> Keys:
        return Keys(self.state / "auth")

    @property
    def tls(self) -> TlsConfig:
        keys = self.keys
        return TlsConfig(keys.ca, keys.client_certificate, keys.client_key)

    async def open(self) -> None:
        config = parse_config(
            {"gateway": {"state_dir": str(self.state), "listen": "127.0.0.1:0"}, **self.extra}
        )
        directory = StateDirectory(config.state_dir)
        directory.prepare()
        keys = ensure_keys(directory.auth, config.service_domain)
        listening = socket.create_server(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        self.gateway = await open_gateway(
            config,
            keys=keys,
            directory=directory,
            listening=listening,
            place=self.place,
            egress=self.egress,
            revive_egress=self.egress.revive,
            clock=self.clock,
        )

    async def close(self) -> None:
        if self.gateway is not None:
            await self.gateway.close()
            self.gateway = None

    async def reopen(self) -> None:
        """Restart the gateway; what "runs" in the fake place runs on."""
        await self.close()
        await self.open()

    def main(self, name="one"):
        """Return the running main process of the only, or the named, Sandbox."""
        record = self.gateway.store.read.named("sandbox", "default", name)
        return self.place.running.get(record.id)

    def sdk(self) -> SandboxClient:
        return SandboxClient(f"127.0.0.1:{self.port}", tls=self.tls, timeout=10)

    def channel(self, *, certificate: bool = False, ca: bytes | None = None) -> grpc.aio.Channel:
        keys = self.keys
        credentials = grpc.ssl_channel_credentials(
            root_certificates=ca or keys.ca.read_bytes(),
            private_key=keys.client_key.read_bytes() if certificate else None,
            certificate_chain=keys.client_certificate.read_bytes() if certificate else None,
        )
        return grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials)

    @property
    def bearer(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.keys.control_plane_token()}"),)


class Control:
    """The control plane's way in: raw stubs with the bearer token."""

    def __init__(self, world: World, channel: grpc.aio.Channel) -> None:
        self._metadata = world.bearer
        self._stub = openshell_pb2_grpc.OpenShellStub(channel)

    def __getattr__(self, name):
        method = getattr(self._stub, name)
        return lambda request, **options: method(
            request, metadata=self._metadata, timeout=10, **options
        )


def in_default(**fields):
    return {"workspace_scope": datamodel_pb2.WorkspaceSelector(workspace="default"), **fields}


async def eventually(condition, seconds: float = 10.0):
    """Poll until the condition's value is true; return it."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s")
        await asyncio.sleep(0.01)


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path / "state", FakePlace(), FakeEgress())
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def control(world):
    async with world.channel() as channel:
        yield Control(world, channel)


@pytest.fixture
def tools():
    """Return helpers that tests share."""

    class Tools:
        Control = Control
        in_default = staticmethod(in_default)
        eventually = staticmethod(eventually)
        pb = openshell_pb2
        new_id = staticmethod(lambda: str(uuid.uuid4()))

        @staticmethod
        async def phase(control, name, wanted):
            async def reached():
                response = await control.GetSandbox(
                    openshell_pb2.GetSandboxRequest(**in_default(name=name))
                )
                return response if response.sandbox.status.phase == wanted else None

            return await eventually(reached)

        @classmethod
        async def ready(cls, control, name):
            return await cls.phase(control, name, openshell_pb2.SANDBOX_PHASE_READY)

        @staticmethod
        async def create(control, name="one", **fields):
            request = openshell_pb2.CreateSandboxRequest(**in_default(name=name, **fields))
            return await control.CreateSandbox(request)

        @staticmethod
        @contextlib.asynccontextmanager
        async def refused(code, *words):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                yield caught
            assert caught.value.code() is code, caught.value.details()
            for word in words:
                assert word in caught.value.details()

        @staticmethod
        def reason(error):
            return from_grpc_error(error).error_info.reason

        @staticmethod
        async def gone(control, name):
            async def absent():
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await control.GetSandbox(
                        openshell_pb2.GetSandboxRequest(**in_default(name=name))
                    )
                    return False
                return True

            await eventually(absent)

        clock = FakeClock

    return Tools
