"""What the Agent Gateway adds to a message, beside the same WebSocket without it.

The gateway is the real process with a route document. Client and echoing Harness speak TLS in both cases, so direct is one TLS connection and
relayed is two. One message of 256 bytes is under way at a time; direct and relayed messages alternate in short runs. Then the
same with 1,000 more sockets open through the gateway, which say nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
import websockets

from benchmarks.gateway import folder
from benchmarks.measure import Table, median, memory, percentile, until
from benchmarks.relay_peers import AGENT, NAMESPACE
from oce.testing.egress_rig import TestAuthority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

IDLE = 1000
_HOST = "bench.openshell.localhost"
_TOKEN = "transport-token-of-the-benchmark"
_API_TOKEN = "internal-token-of-the-benchmark"
_TEXT = json.dumps({"id": 1, "method": "echo", "params": {"text": "z" * 210}})
_RUN = 50
_AT_ONCE = 32


def run(*, quick: bool) -> list[Table]:
    with folder() as root, _gateway(root) as (direct, relayed, pid):
        return [uvloop.run(_measure(root, direct, relayed, pid, 10 if quick else 40))]


@contextlib.contextmanager
def _gateway(root: Path) -> Iterator[tuple[str, str, int]]:
    """Yield (direct URL, relayed URL, gateway pid)."""
    TestAuthority(root).context(_HOST)
    pem = root / f"{_HOST}.pem"
    with contextlib.ExitStack() as stack:
        peers = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.relay_peers", "--certificate", str(pem), "--token", _TOKEN],
            stdout=subprocess.PIPE,
        )
        stack.callback(_end, peers)
        assert peers.stdout is not None
        harness, api = peers.stdout.readline().split()
        config = _write(root, pem, int(harness), int(api))
        with (root / "gateway.log").open("wb") as log:
            gateway = subprocess.Popen(
                [sys.executable, "-m", "oce.agentgw", "--config", str(config)], stdout=log, stderr=log
            )
        stack.callback(_end, gateway)
        ready = root / "ready"
        until(lambda: ready.exists() or gateway.poll() is not None)
        if gateway.poll() is not None:
            raise RuntimeError((root / "gateway.log").read_text()[-500:])
        address = ready.read_text().strip()
        yield (
            f"wss://127.0.0.1:{int(harness)}/",
            f"wss://{address}/namespaces/{NAMESPACE}/agents/{AGENT}",
            gateway.pid,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _write(root: Path, pem: Path, harness: int, api: int) -> Path:
    routes = root / "routes"
    routes.mkdir()
    token = root / "token"
    token.write_text(_API_TOKEN)
    document = {
        "version": 1, "namespaceId": NAMESPACE, "namespaceName": "default", "agentId": AGENT,
        "agentName": "helper", "generation": 1, "revisionId": "rev_1",
        "target": f"wss://{_HOST}:{harness}/", "connect": f"127.0.0.1:{harness}", "caFile": None,
        "caBundle": (root / "upstream-ca.pem").read_text(), "transportToken": _TOKEN, "drainSeconds": 1,
    }
    (routes / f"{AGENT}.json").write_text(json.dumps(document))
    config = root / "agentgw.toml"
    values: dict[str, Any] = {
        "listen": "127.0.0.1:0", "tls_cert": str(pem), "tls_key": str(pem), "routes_dir": str(routes),
        "control_socket": str(root / "ctl"), "api_url": f"http://127.0.0.1:{api}",
        "api_token_file": str(token), "ready_file": str(root / "ready"), "drain_seconds": 1,
    }
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return config


def _connect(root: Path, url: str, relayed: bool) -> Any:
    context = ssl.create_default_context(cafile=str(root / "upstream-ca.pem"))
    headers = {"x-api-key": "any"} if relayed else {"authorization": f"Bearer {_TOKEN}"}
    return websockets.connect(
        url, ssl=context, server_hostname=_HOST, additional_headers=headers, proxy=None,
        compression=None, ping_interval=None, open_timeout=30,
    )


async def _latencies(socket: websockets.ClientConnection) -> list[float]:
    found = []
    for _ in range(_RUN):
        began = time.perf_counter()
        await socket.send(_TEXT)
        await socket.recv()
        found.append((time.perf_counter() - began) * 1000)
    return found


async def _measure(root: Path, direct: str, relayed: str, pid: int, rounds: int) -> Table:
    table = Table("Agent Gateway relay, 256-byte messages, one at a time (ms)",
                  ("", "direct p50", "relayed p50", "added p50", "direct p99", "relayed p99"))
    async with _connect(root, direct, relayed=False) as one, _connect(root, relayed, relayed=True) as two:

        async def compare(name: str) -> float:
            found: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                found[0].extend(await _latencies(one))
                found[1].extend(await _latencies(two))
            added = median(found[1]) - median(found[0])
            table.row(name, f"{median(found[0]):.3f}", f"{median(found[1]):.3f}", f"{added:.3f}",
                      percentile(found[0], 0.99), percentile(found[1], 0.99))
            return added

        await compare("alone")
        before = memory(pid)[0]
        async with _idle(root, relayed) as took:
            added = await compare(f"beside {IDLE:,} idle sockets")
            table.notes.append(
                f"{IDLE:,} sockets opened in {took:.1f} s; RSS of the gateway {before:.0f} → {memory(pid)[0]:.0f} MiB"
            )
    table.goal(f"added at {IDLE:,} sockets, p50", added, 0.15, "ms")
    return table


@contextlib.asynccontextmanager
async def _idle(root: Path, url: str) -> AsyncIterator[float]:
    """Hold idle sockets through the gateway; yields the seconds it took to open them."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def open_one() -> websockets.ClientConnection:
        async with turn:
            return await _connect(root, url, relayed=True)

    began = time.perf_counter()
    sockets = await asyncio.gather(*(open_one() for _ in range(IDLE)))
    try:
        yield time.perf_counter() - began
    finally:
        for socket in sockets:
            socket.transport.abort()
