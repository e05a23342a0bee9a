"""One machine: PostgreSQL, sandboxd, API, worker and Agent Gateway as one thing that starts and stops.

`Machine` loads all programs at once and lets each one run when what it needs is there (API and worker need the schema; sandboxd and Agent
Gateway need nothing but their files), keeps them running, and stops them so that nothing is left: Sandboxes too, because `occ down` means
that nothing of ours runs. Sandboxes come back by themselves at the next start: sandboxd keeps their records and restarts what should run.
After a killed supervisor the programs are ended and started again, and sandboxd adopts the Sandboxes that still run.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from oce.client.context import Context, Contexts, home
from oce.dev import operator_settings, probes
from oce.dev.configs import agentgw_toml, sandboxd_toml, startup_yaml
from oce.dev.files import write_private
from oce.dev.layout import install_programs
from oce.dev.pki import ensure_identity
from oce.dev.postgres import ENVIRONMENT, Postgres, PostgresPlan
from oce.dev.programs import Keeper, Program
from oce.dev.purge import SandboxesStop, end_programs
from oce.dev.state import Lock, Ports, StateDirectory, refuse_taken_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

SANDBOX_PYTHON: Final = "/usr/bin/python3"
"""The interpreter inside a Sandbox; sandboxd binds one there when the system has none."""
_TAKEN_BY_US: Final = ("sandboxd", "api", "gateway", "private")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlan:
    """What to run and where; the rest is in the state directory, the operator's file included."""

    state: StateDirectory
    ports: Ports
    context_name: str
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step of starting or stopping, with its duration."""

    name: str
    milliseconds: float


class Machine:
    """The programs of one state directory, run by this process."""

    def __init__(
        self,
        plan: MachinePlan,
        *,
        report: Callable[[Step], None] = lambda _step: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan = plan
        self.keeper = Keeper(changed)
        self._report = report
        self._lock = Lock(plan.state)
        self._settings = operator_settings.OperatorSettings()

    async def __aenter__(self) -> Machine:  # noqa: PYI034 - not subclassed
        self._lock.__enter__()
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def context(self) -> Context:
        """How clients reach this machine."""
        state, ports = self.plan.state, self.plan.ports
        return Context(
            name=self.plan.context_name,
            url=f"https://127.0.0.1:{ports.api}",
            ca_file=str(state.tls / "ca.crt"),
            key_file=str(state.keys / "administrator.json"),
            namespace="default",
            gateway_url=f"https://127.0.0.1:{ports.gateway}",
            state_dir=str(state.root),
        )

    async def start(self) -> None:
        """Start everything; returns when every program serves.

        Raises StateError, ProgramError, PostgresError, LayoutError, OSError, some of them in a group.
        """
        self._settings = operator_settings.read(self.plan.state.operator_file)
        await end_programs(self.plan.state, self._postgres)
        refuse_taken_ports(self.plan.ports, _TAKEN_BY_US)
        for program in (self._initialize(), self._api(), self._worker()):
            self.keeper.load(program)
        for program in (self._sandboxd(), self._agent_gateway()):
            self.keeper.load(program)
        async with asyncio.TaskGroup() as together:
            files = together.create_task(self._files())
            together.create_task(self._start_control_plane(files))
            together.create_task(self._start_after(files, self._sandboxd()))
            together.create_task(self._start_after(files, self._agent_gateway()))
        Contexts(home(self.plan.environment)).save(self.context)

    async def stop(self) -> None:
        """Stop everything, Sandboxes included; data stays. Safe to call at any point of a start. Raises ProgramError."""
        try:
            async with self._step("stop"):
                sandboxes = SandboxesStop(self.plan.state)
                await self.keeper.stop_all(but="postgresql")
                await asyncio.gather(sandboxes.carry_out(), self.keeper.stop("postgresql"))
        finally:
            await end_programs(self.plan.state, self._postgres)
            self._lock.__exit__(None, None, None)

    @asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        started = time.monotonic()
        yield
        self._report(Step(name, (time.monotonic() - started) * 1000))

    async def _files(self) -> None:
        async with self._step("files"):
            await asyncio.to_thread(self._write_files)

    async def _start_after(self, files: asyncio.Task[None], program: Program) -> None:
        await files
        async with self._step(program.name):
            await self.keeper.start(program)

    async def _start_control_plane(self, files: asyncio.Task[None]) -> None:
        async with self._step("postgresql"):
            await asyncio.to_thread(self._postgres.prepare)
            await self.keeper.start(self._database())
        async with self._step("schema"):
            await self.keeper.run_once(self._initialize())
        async with asyncio.TaskGroup() as together:
            together.create_task(self._start_after(files, self._api()))
            together.create_task(self._start_after(files, self._worker()))

    @property
    def _postgres_plan(self) -> PostgresPlan:
        state = self.plan.state
        return PostgresPlan(
            root=state.postgres, runtime=state.runtime, durable=self._settings.durable
        )

    @property
    def _postgres(self) -> Postgres:
        return Postgres(self._postgres_plan)

    def _write_files(self) -> None:
        state, ports = self.plan.state, self.plan.ports
        programs = install_programs(state, SANDBOX_PYTHON)
        identity = ensure_identity(state.tls, "local", ("localhost",), datetime.now(UTC))
        token = state.keys / "internal.token"
        if not token.exists():
            write_private(token, secrets.token_urlsafe(32))
        write_private(state.config / "installation.yaml", startup_yaml(state, ports, programs))
        write_private(
            state.config / "sandboxd.toml",
            sandboxd_toml(state, ports, programs, self._settings.upstreams),
        )
        write_private(state.config / "agentgw.toml", agentgw_toml(state, ports, identity))

    def _database(self) -> Program:
        postgres = self._postgres

        async def ready() -> bool:
            return postgres.ready()

        return Program(
            name="postgresql",
            command=postgres.command(),
            log=self._postgres_plan.log,
            ready=ready,
            environment=ENVIRONMENT,
            stop_signal=signal.SIGINT,
        )

    def _initialize(self) -> Program:
        plan, key = self._postgres_plan, self.plan.state.keys / "administrator.json"
        module = ["oce.dev.initialize", "--postgres", str(plan.root), "--runtime"]
        return self._program(
            "schema", [*module, str(plan.runtime), "--key-file", str(key)], probes.never
        )

    def _sandboxd(self) -> Program:
        state = self.plan.state
        return self._program(
            "sandboxd",
            ["oce.sandboxd.main", "serve", "--config", str(state.config / "sandboxd.toml")],
            probes.https(self.plan.ports.sandboxd, "/healthz", state.sandboxd / "auth" / "ca.crt"),
        )

    def _api(self) -> Program:
        state, ports = self.plan.state, self.plan.ports
        environment = {
            **self._shared_environment(),
            "OCC_HOST": "127.0.0.1",
            "OCC_PORT": str(ports.api),
            "OCC_TLS_CERTIFICATE": str(state.tls / "local.crt"),
            "OCC_TLS_KEY": str(state.tls / "local.key"),
            "OCC_PRIVATE_HOST": "127.0.0.1",
            "OCC_PRIVATE_PORT": str(ports.private),
            "OCC_INTERNAL_TOKEN_FILE": str(state.keys / "internal.token"),
        }
        return self._program(
            "api", ["oce.api.main"], probes.plain_http(ports.private, "/readyz"), environment
        )

    def _worker(self) -> Program:
        ready = self.plan.state.run / "worker.ready"
        environment = {
            **self._shared_environment(),
            "OCC_WORKER_READINESS_PATH": str(ready),
            "OCC_WORKER_LIVENESS_PATH": str(self.plan.state.run / "worker.alive"),
        }
        return self._program(
            "worker", ["oce.worker.main"], probes.present(ready), environment, marker=ready
        )

    def _agent_gateway(self) -> Program:
        config = self.plan.state.config / "agentgw.toml"
        probe = probes.https(self.plan.ports.gateway, "/healthz", self.plan.state.tls / "ca.crt")
        return self._program("agent-gateway", ["oce.agentgw.main", "--config", str(config)], probe)

    def _shared_environment(self) -> dict[str, str]:
        return {
            "OCC_CONFIG_PATH": str(self.plan.state.config / "installation.yaml"),
            "OCC_DATABASE_URL": self._postgres_plan.url("occ_app"),
        }

    def _program(
        self,
        name: str,
        module: Sequence[str],
        ready: Callable[[], Awaitable[bool]],
        environment: Mapping[str, str] | None = None,
        *,
        marker: Path | None = None,
    ) -> Program:
        return Program(
            name=name,
            module=module,
            log=self.plan.state.logs / f"{name}.log",
            ready=ready,
            environment=environment or {},
            pid_file=self.plan.state.run / f"{name}.pid",
            marker=marker,
        )
