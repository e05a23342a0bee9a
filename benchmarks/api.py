"""API reads at a steady 200 requests a second, and `occ agent get`, in a whole installation with a deployed Agent.

Requests are sent by the clock over 16 kept-alive TLS connections; an answer's time counts from when its request was due, so a stall
is not hidden by a client that waits. Reads alternate between the Agent, the list of Agents and the deployment: each authenticates a key,
asks IAM and reads PostgreSQL. The peer is uvicorn with one function and a fixed answer, at the same rate. `occ agent get` is
timed as a process from start to end, beside `python -c pass`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvloop

from benchmarks.gateway import folder, free_port, listens
from benchmarks.installation import create_agent, deploy, installation
from benchmarks.measure import (
    Table,
    cpu_seconds,
    interleaved,
    median,
    milliseconds,
    percentile,
    until,
)
from oce.client.api import AGENT
from oce.testing.egress_rig import TestAuthority

if TYPE_CHECKING:
    from benchmarks.installation import Installation

RATE = 200
_CONNECTIONS = 16


def run(*, quick: bool) -> list[Table]:
    with installation() as one, folder() as root:
        client = one.client()
        agent = create_agent(client)
        revision, _, _ = deploy(client, agent)
        path = client.path_of(AGENT, agent)
        client.close()
        paths = [path, path.rpartition("/")[0], f"{path}/deployments/{revision}"]
        return [
            _reads(one, root, paths, 2 if quick else 4, 3.0 if quick else 8.0),
            _command(one, 5 if quick else 20),
        ]


def _reads(one: Installation, root: Path, paths: list[str], rounds: int, seconds: float) -> Table:
    key = json.loads(Path(one.context.key_file).read_text())["data"]["key"]
    TestAuthority(root).context("localhost")
    port = free_port()
    bare = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.bare_api",
            "--port",
            str(port),
            "--certificate",
            str(root / "localhost.pem"),
        ]
    )
    try:
        until(lambda: listens(port) or bare.poll() is not None, pause=0.02)
        ours = urlsplit(one.context.url).port or 443
        cases = {
            "API": (ours, paths, one.pids()["api"]),
            "bare uvicorn": (port, ["/"], bare.pid),
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        spent = dict.fromkeys(cases, 0.0)
        for _ in range(rounds):
            for name, (at, asked, pid) in cases.items():
                before = cpu_seconds(pid)
                found[name] += uvloop.run(_steady(at, asked, key, seconds))
                spent[name] += cpu_seconds(pid) - before
    finally:
        bare.terminate()
        bare.wait(10)
    table = Table(
        f"Reads over TLS at {RATE} requests/s (ms, from when each was due)",
        ("", "p50", "p95", "p99", "max", "n", "server CPU per read"),
    )
    for name, values in found.items():
        table.row(
            name,
            *(percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)),
            f"{len(values):,}",
            spent[name] / len(values) * 1000,
        )
    table.goal(f"API read at {RATE}/s, p99", percentile(found["API"], 0.99), 25, "ms")
    return table


async def _steady(port: int, paths: list[str], key: str, seconds: float) -> list[float]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    due: asyncio.Queue[tuple[float, str] | None] = asyncio.Queue()
    found: list[float] = []

    async def caller() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        while (item := await due.get()) is not None:
            at, path = item
            writer.write(
                f"GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head[:200].decode())
            await reader.readexactly(
                int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            )
            found.append((time.perf_counter() - at) * 1000)
        writer.transport.abort()

    async with asyncio.TaskGroup() as together:
        for _ in range(_CONNECTIONS):
            together.create_task(caller())
        await asyncio.sleep(0.5)
        began = time.perf_counter()
        for number in range(int(RATE * seconds)):
            at = began + number / RATE
            if (wait := at - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            due.put_nowait((at, paths[number % len(paths)]))
        for _ in range(_CONNECTIONS):
            due.put_nowait(None)
    return found


def _command(one: Installation, rounds: int) -> Table:
    occ = str(Path(sys.executable).with_name("occ"))

    def timed(*command: str) -> float:
        return milliseconds(
            lambda: subprocess.run(command, env=one.environment, check=True, capture_output=True)
        )

    cases = {
        "occ agent get": lambda: timed(occ, "agent", "get", "hello"),
        "python -c pass": lambda: timed(sys.executable, "-c", "pass"),
        "python -I -S -c pass": lambda: timed(sys.executable, "-I", "-S", "-c", "pass"),
    }
    found = interleaved(rounds, cases)
    table = Table("Commands, wall time (ms)", ("", "p50", "min", "max", "n"))
    for name, values in found.items():
        table.row(name, median(values), min(values), max(values), str(len(values)))
    table.goal("occ agent get, p50", median(found["occ agent get"]), 150, "ms")
    return table
