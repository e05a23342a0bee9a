"""What runs on this machine, each finding with the evidence it rests on (failure case BR-11)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oce.dev import probes
from oce.dev.postgres import Postgres, PostgresPlan
from oce.dev.state import Lock

if TYPE_CHECKING:
    from oce.dev.state import StateDirectory


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """One program: whether it serves now, and how that is known."""

    component: str
    serving: bool
    evidence: str


async def survey(state: StateDirectory) -> tuple[ComponentStatus, ...]:
    """Ask every program now; nothing is remembered from earlier."""
    ports = state.ports()
    own_ca = state.tls / "ca.crt"
    holder = Lock(state).holder()
    database = Postgres(PostgresPlan(root=state.postgres, runtime=state.runtime))
    api, gateway, sandboxd = await asyncio.gather(
        probes.answers(ports.private, "/readyz", None),
        probes.answers(ports.gateway, "/healthz", own_ca),
        probes.answers(ports.sandboxd, "/healthz", state.sandboxd / "auth" / "ca.crt"),
    )
    return (
        ComponentStatus(
            "supervisor",
            holder is not None,
            f"process {holder} holds the lock" if holder else "nobody holds the lock",
        ),
        ComponentStatus(
            "postgresql",
            database.ready(),
            f"process {database.pid()} accepts connections"
            if database.ready()
            else "no server of this directory accepts connections",
        ),
        ComponentStatus(
            "sandboxd", sandboxd, _answer(ports.sandboxd, sandboxd, "TLS by its own CA")
        ),
        ComponentStatus("api", api, _answer(ports.private, api, "/readyz on the private listener")),
        ComponentStatus(
            "worker",
            probes.marker_fresh(state.run / "worker.alive"),
            "its liveness marker is fresh"
            if probes.marker_fresh(state.run / "worker.alive")
            else "its liveness marker is old or absent",
        ),
        ComponentStatus(
            "agent-gateway", gateway, _answer(ports.gateway, gateway, "TLS by the local CA")
        ),
    )


def _answer(port: int, serving: bool, how: str) -> str:
    if serving:
        return f"port {port} answered ({how})"
    return f"port {port} did not answer as ours; another process may hold it"
