"""A whole installation in a temporary state directory: `occ up --detach`, an offline model server, one Agent ready to deploy.

Everything is the product's own; only the model endpoint is replaced, by the operator's file. Afterwards `occ down --purge` and the
model server's end leave nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gateway import Calls, folder, free_port
from benchmarks.measure import descendants, processes, until
from oce.client.api import AGENT, CONFIGURATION, SECRET, SOURCE, Client
from oce.client.context import Contexts
from oce.dev.state import StateDirectory, free_ports
from oce.testing.egress_rig import TestAuthority

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oce.client.context import Context

NAME = "bench"
_MODEL = "gpt-5.1-codex"
_ENDPOINT = "api.openai.com"
_KEY = "sk-bench-0123456789abcdef"


@dataclass(frozen=True)
class Installation:
    """What a benchmark asks and looks at."""

    state: StateDirectory
    context: Context
    environment: dict[str, str]
    ports_base: int
    start_seconds: float

    def client(self) -> Client:
        return Client(self.context)

    def sandboxd(self) -> Calls:
        return Calls(self.ports_base, self.state.sandboxd / "auth")

    def pids(self) -> dict[str, int]:
        """Return the pid of each program by name."""
        return {
            path.stem: int(path.read_text().split()[0]) for path in self.state.run.glob("*.pid")
        }

    def programs(self) -> dict[str, list[int]]:
        """Return the pids of each long-running program by name, PostgreSQL's processes together."""
        table, root = processes(), str(self.state.root)
        postmaster = int((self.state.postgres / "data" / "postmaster.pid").read_text().split()[0])
        found = {"postgresql (all)": sorted(descendants([postmaster], table))}
        for name, pid in sorted(self.pids().items()):
            found.setdefault(name, [pid])
        for pid, (parent, command) in table.items():
            if "oce.sandboxd.egress" in command and root in command:
                found["egress"] = [pid]
            elif "confine.spawner" in command and parent == self.pids().get("sandboxd"):
                found["spawner"] = [pid]
            elif "oce.dev.daemon" in command and root in command:
                found["supervisor"] = [pid]
        return found


@contextlib.contextmanager
def installation(*, durable: bool = True) -> Iterator[Installation]:
    with folder() as root, contextlib.ExitStack() as stack:
        authority = TestAuthority(root)
        authority.context(_ENDPOINT)
        model = _model_server(root, stack)
        state = StateDirectory(root / "state")
        state.root.mkdir(mode=0o711)
        state.operator_file.write_text(
            f'durable = {str(durable).lower()}\n[[upstream]]\nhost = "{_ENDPOINT}"\nport = 443\n'
            f'connect = "127.0.0.1:{model}"\nca_file = "{authority.file}"\n'
        )
        environment = {**os.environ, "OCC_HOME": str(root / "contexts")}
        base = free_ports(root).sandboxd
        started = time.monotonic()
        stack.callback(
            _occ, environment, "down", "--purge", "--yes", "--state-dir", str(state.root)
        )
        _occ(
            environment,
            "up",
            "--detach",
            "--state-dir",
            str(state.root),
            "--context",
            NAME,
            "--port-base",
            str(base),
            check=True,
        )
        context = Contexts(root / "contexts").load(NAME)
        yield Installation(state, context, environment, base, time.monotonic() - started)


def _occ(environment: dict[str, str], *arguments: str, check: bool = False) -> None:
    # Files, not pipes: what goes to the background would hold a pipe open.
    with Path(environment["OCC_HOME"]).with_suffix(".log").open("a+b") as log:
        done = subprocess.run(
            [sys.executable, "-m", "oce.cli.main", *arguments],
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            timeout=180,
            check=False,
        )
        if check and done.returncode:
            log.seek(0)
            raise RuntimeError(log.read().decode(errors="replace")[-1500:])


def _model_server(root: Path, stack: contextlib.ExitStack) -> int:
    key, ready, port, pem = (
        root / "model.key",
        root / "model.ready",
        free_port(),
        root / f"{_ENDPOINT}.pem",
    )
    key.write_text(_KEY)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "oce.dev.model_server",
            "--listen",
            f"127.0.0.1:{port}",
            "--cert",
            str(pem),
            "--key",
            str(pem),
            "--api-key-file",
            str(key),
            "--ready-file",
            str(ready),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    until(ready.exists)
    return port


def create_agent(client: Client, name: str = "hello") -> str:
    """Create everything an Agent needs and return its id."""
    path = f"/namespaces/{client.namespace()}"
    until(lambda: client.read(path)["status"] == "ready", pause=0.02)
    secret = client.create(SECRET, {"name": "openai-key", "value": _KEY})
    source = client.create(
        SOURCE,
        {"name": "openai", "type": "openai", "config": {}, "secrets": {"api_key": secret["ref"]}},
    )
    values = {"agents": {"defaults": {"model": {"primary": f"openai/{_MODEL}"}}}}
    configuration = client.create(CONFIGURATION, {"kind": "agent", "values": values})
    agent = client.create(
        AGENT,
        {
            "name": name,
            "configurationId": configuration["id"],
            "executionMode": "dedicated",
            "credentialSources": [{"sourceId": source["id"]}],
            "harnessAuth": {"method": "credential_source", "sourceId": source["id"]},
        },
    )
    return str(agent["id"])


def deploy(client: Client, agent: str) -> tuple[str, list[dict[str, Any]], float]:
    """Deploy and follow to the end; return (revision id, step events, seconds until serving was told)."""
    started = time.perf_counter()
    revision = client.deploy(agent)
    steps = [
        event.data
        for event in client.deployment_events(agent, revision["id"])
        if event.name == "step"
    ]
    took = time.perf_counter() - started
    view = client.read(f"{client.path_of(AGENT, agent)}/deployments/{revision['id']}")
    if view["status"] != "succeeded":
        raise RuntimeError(f"the deployment ended {view['status']}: {view.get('error')}")
    return str(revision["id"]), steps, took
