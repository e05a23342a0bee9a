"""One machine: PostgreSQL, sandboxd, API, worker and Agent Gateway as one thing that starts and stops.

`Machine` starts the programs in the order in which they need each other, keeps them running, and stops them so that nothing is left:
Sandboxes too, because `occ down` means that nothing of ours runs. Sandboxes come back by themselves at the next start: sandboxd keeps
their records and restarts what should run.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from oce.client.context import Context, Contexts, home
from oce.dev import probes
from oce.dev.configs import UpstreamOverride, agentgw_toml, sandboxd_toml, startup_yaml
from oce.dev.initialize import initialize
from oce.dev.layout import install_programs
from oce.dev.pki import ensure_identity
from oce.dev.postgres import ENVIRONMENT, Postgres, PostgresPlan
from oce.dev.programs import Keeper, Program
from oce.dev.purge import stop_leftovers
from oce.dev.state import Lock, Ports, StateDirectory, refuse_taken_ports, write_private

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from oce.dev.layout import Programs
    from oce.dev.pki import ServerIdentity

SANDBOX_PYTHON: Final = "/usr/bin/python3"
"""The interpreter inside a Sandbox; sandboxd binds one there when the system has none."""
_TAKEN_BY_US: Final = ("sandboxd", "api", "gateway", "private")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlan:
    """What to run and where. `durable` False is for throw-away directories only."""

    state: StateDirectory
    ports: Ports
    context_name: str
    overrides: tuple[UpstreamOverride, ...] = ()
    durable: bool = True
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
        self._postgres = Postgres(
            PostgresPlan(root=plan.state.postgres, runtime=plan.state.runtime, durable=plan.durable)
        )

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
        """Start everything; returns when every program serves. Raises StateError, ProgramError, PostgresError, LayoutError."""
        state, ports = self.plan.state, self.plan.ports
        await stop_leftovers(state, self._postgres)
        refuse_taken_ports(ports, _TAKEN_BY_US)
        async with self._step("programs"):
            programs = await asyncio.to_thread(install_programs, state, SANDBOX_PYTHON)
            identity = ensure_identity(state.tls, "local", ("localhost",), datetime.now(UTC))
            self._write_configs(programs, identity)
        async with asyncio.TaskGroup() as together:
            together.create_task(self._start_database())
            together.create_task(self._start_sandboxd())
        async with asyncio.TaskGroup() as together:
            for program in (self._api(identity), self._worker(), self._agent_gateway()):
                together.create_task(self._start(program))
        Contexts(home(self.plan.environment)).save(self.context)

    async def stop(self) -> None:
        """Stop everything, Sandboxes included; data stays. Safe to call at any point of a start."""
        async with self._step("stop"):
            for name in ("agent-gateway", "worker", "api", "sandboxd"):
                await self.keeper.stop(name)
            await self.keeper.stop_all()
            await stop_leftovers(self.plan.state, self._postgres)
        self._lock.__exit__(None, None, None)

    @asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        started = time.monotonic()
        yield
        self._report(Step(name, (time.monotonic() - started) * 1000))

    async def _start(self, program: Program) -> None:
        async with self._step(program.name):
            await self.keeper.start(program)

    async def _start_database(self) -> None:
        plan = self._plan_of_postgres()
        async with self._step("postgresql"):
            await asyncio.to_thread(self._postgres.prepare)
            await self.keeper.start(
                Program(
                    name="postgresql",
                    command=self._postgres.command(),
                    log=plan.log,
                    ready=self._database_ready,
                    environment=ENVIRONMENT,
                    stop_signal=signal.SIGINT,
                )
            )
        async with self._step("schema"):
            await initialize(plan, self.plan.state.keys / "administrator.json")

    async def _database_ready(self) -> bool:
        return self._postgres.ready()

    def _plan_of_postgres(self) -> PostgresPlan:
        return PostgresPlan(
            root=self.plan.state.postgres,
            runtime=self.plan.state.runtime,
            durable=self.plan.durable,
        )

    async def _start_sandboxd(self) -> None:
        state = self.plan.state
        authority = state.sandboxd / "auth" / "ca.crt"
        await self._start(
            self._program(
                "sandboxd",
                ["oce.sandboxd.main", "serve", "--config", str(state.config / "sandboxd.toml")],
                probes.https(self.plan.ports.sandboxd, "/healthz", authority),
            )
        )

    def _write_configs(self, programs: Programs, identity: ServerIdentity) -> None:
        state, ports = self.plan.state, self.plan.ports
        token = state.keys / "internal.token"
        if not token.exists():
            write_private(token, secrets.token_urlsafe(32))
        write_private(state.config / "installation.yaml", startup_yaml(state, ports, programs))
        write_private(
            state.config / "sandboxd.toml",
            sandboxd_toml(state, ports, programs, self.plan.overrides),
        )
        write_private(state.config / "agentgw.toml", agentgw_toml(state, ports, identity))

    def _api(self, identity: ServerIdentity) -> Program:
        state, ports = self.plan.state, self.plan.ports
        environment = {
            **self._shared_environment(),
            "OCC_HOST": "127.0.0.1",
            "OCC_PORT": str(ports.api),
            "OCC_TLS_CERTIFICATE": str(identity.certificate),
            "OCC_TLS_KEY": str(identity.key),
            "OCC_PRIVATE_HOST": "127.0.0.1",
            "OCC_PRIVATE_PORT": str(ports.private),
            "OCC_INTERNAL_TOKEN_FILE": str(state.keys / "internal.token"),
        }
        return self._program(
            "api", ["oce.api.main"], probes.plain_http(ports.private, "/readyz"), environment
        )

    def _worker(self) -> Program:
        state = self.plan.state
        environment = {
            **self._shared_environment(),
            "OCC_WORKER_READINESS_PATH": str(state.run / "worker.ready"),
            "OCC_WORKER_LIVENESS_PATH": str(state.run / "worker.alive"),
        }
        for name in ("worker.ready", "worker.alive"):
            (state.run / name).unlink(missing_ok=True)
        return self._program(
            "worker", ["oce.worker.main"], probes.marker(state.run / "worker.ready"), environment
        )

    def _agent_gateway(self) -> Program:
        config = self.plan.state.config / "agentgw.toml"
        probe = probes.https(self.plan.ports.gateway, "/healthz", self.plan.state.tls / "ca.crt")
        return self._program("agent-gateway", ["oce.agentgw", "--config", str(config)], probe)

    def _shared_environment(self) -> dict[str, str]:
        return {
            "OCC_CONFIG_PATH": str(self.plan.state.config / "installation.yaml"),
            "OCC_DATABASE_URL": self._plan_of_postgres().url("occ_app"),
        }

    def _program(
        self,
        name: str,
        module: Sequence[str],
        ready: Callable[[], Awaitable[bool]],
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        return Program(
            name=name,
            command=_python(*module),
            log=self._log(name),
            ready=ready,
            environment=environment or {},
            pid_file=self.plan.state.run / f"{name}.pid",
        )

    def _log(self, name: str) -> Path:
        return self.plan.state.logs / f"{name}.log"


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]
