"""What runs on this machine, each finding with the evidence it rests on (failure case BR-11).

Every program is asked now, as the one meant: a listener must prove itself with this directory's CA, a process must be the very one that was
started here. A stranger on our port is not ours and is said to be a stranger.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oce.dev import probes
from oce.dev.postgres import Postgres, PostgresPlan
from oce.dev.processes import recorded
from oce.dev.state import Lock

if TYPE_CHECKING:
    from pathlib import Path

    from oce.dev.state import StateDirectory


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """One program: whether it serves now, and how that is known."""

    component: str
    serving: bool
    evidence: str


def _serves(component: str, evidence: str) -> ComponentStatus:
    return ComponentStatus(component, serving=True, evidence=evidence)


def _down(component: str, evidence: str) -> ComponentStatus:
    return ComponentStatus(component, serving=False, evidence=evidence)


async def survey(state: StateDirectory) -> tuple[ComponentStatus, ...]:
    """Ask every program now; nothing is remembered from earlier. Raises StateError."""
    ports = state.ports()
    own, sandboxd = state.tls / "ca.crt", state.sandboxd / "auth" / "ca.crt"
    return (
        _supervisor(state),
        await asyncio.to_thread(_postgresql, state),
        *await asyncio.gather(
            _listener(state, "sandboxd", ports.sandboxd, sandboxd),
            _api(state, ports.api, ports.private, own),
        ),
        _worker(state),
        await _listener(state, "agent-gateway", ports.gateway, own),
    )


def _supervisor(state: StateDirectory) -> ComponentStatus:
    holder = Lock(state).holder()
    evidence = "nobody holds the lock" if holder is None else f"{holder} holds the lock"
    return ComponentStatus("supervisor", serving=holder is not None, evidence=evidence)


def _postgresql(state: StateDirectory) -> ComponentStatus:
    database = Postgres(PostgresPlan(root=state.postgres, runtime=state.runtime))
    pid = database.pid()
    if pid is None:
        return _down("postgresql", "no server of this directory runs")
    serving = database.answers()
    said = "answers on its socket" if serving else "does not answer on its socket"
    return ComponentStatus("postgresql", serving, f"process {pid} {said}")


async def _listener(
    state: StateDirectory, name: str, port: int, authority: Path
) -> ComponentStatus:
    pid = recorded(state.run / f"{name}.pid")
    serving = await probes.answers(port, "/healthz", authority)
    if serving:
        who = f"process {pid}" if pid else "a process that this supervisor did not start"
        return _serves(name, f"port {port} answered, proven by its CA ({who})")
    return _down(name, _silence(pid, port))


async def _api(state: StateDirectory, port: int, private: int, authority: Path) -> ComponentStatus:
    """Ask both listeners: the public one proves who it is, the private one tells whether the database answers."""
    pid = recorded(state.run / "api.pid")
    speaks, ready = await asyncio.gather(
        probes.speaks(port, authority), probes.answers(private, "/readyz", None)
    )
    if speaks and ready and pid is not None:
        return _serves(
            "api", f"port {port} proven by its CA, port {private} says ready (process {pid})"
        )
    if speaks:
        return _down(
            "api",
            f"port {port} is ours, but port {private} does not say ready (process {pid})",
        )
    return _down("api", _silence(pid, port))


def _worker(state: StateDirectory) -> ComponentStatus:
    pid = recorded(state.run / "worker.pid")
    if pid is None:
        return _down("worker", "its process does not run")
    if not (state.run / "worker.ready").exists():
        return _down("worker", f"process {pid} is not ready")
    fresh = probes.marker_fresh(state.run / "worker.alive")
    said = "its liveness marker is fresh" if fresh else "its liveness marker is old"
    return ComponentStatus("worker", fresh, f"process {pid} runs and {said}")


def _silence(pid: int | None, port: int) -> str:
    if pid is not None:
        return f"process {pid} runs, but port {port} does not answer as ours"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    return (
        f"its process does not run; port {port} is in use by another process"
        if taken
        else f"its process does not run; nothing listens on port {port}"
    )
