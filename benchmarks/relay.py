"""What the Agent Gateway adds to a message, beside the same WebSocket without it.

The gateway is the real process with a route document. Client and echoing Harness speak TLS in both cases, so direct is one TLS connection and
relayed is two. The second peer is a bare splice, TLS to TLS, in the same language on the same loop: what it adds is the price of one more
process, the rest is what the gateway does with a message. One message of 256 bytes is under way at a time; the three alternate in short
runs. Then the same with 1,000 more sockets open through the gateway, which say nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import uvloop
import websockets

from benchmarks.gateway import folder
from benchmarks.measure import Table, median, memory, percentile, until
from benchmarks.relay_peers import AGENT, NAMESPACE
from oce.testing.egress_rig import TestAuthority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

IDLE = 1000
_HOST = "bench.openshell.localhost"
_TOKEN = "transport-token-of-the-benchmark"
_API_TOKEN = "internal-token-of-the-benchmark"
_TEXT = json.dumps({"id": 1, "method": "echo", "params": {"text": "z" * 210}})
_RUN = 50
_AT_ONCE = 32


def run(*, quick: bool) -> list[Table]:
    with folder() as root, _gateway(root) as (urls, pid):
        return [uvloop.run(_measure(root, urls, pid, 10 if quick else 40))]


@contextlib.contextmanager
def _gateway(root: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Yield the URLs by what is in between, and the gateway's pid."""
    TestAuthority(root).context(_HOST)
    pem = root / f"{_HOST}.pem"
    with contextlib.ExitStack() as stack:
        harness, api = _peer(stack, "harness", "--certificate", str(pem), "--token", _TOKEN)
        (splice,) = _peer(stack, "splice", "--certificate", str(pem), "--to", str(harness))
        config = _write(root, pem, harness, api)
        with (root / "gateway.log").open("wb") as log:
            gateway = subprocess.Popen(
                [sys.executable, "-m", "oce.agentgw", "--config", str(config)],
                stdout=log,
                stderr=log,
            )
        stack.callback(_end, gateway)
        ready = root / "ready"
        until(lambda: ready.exists() or gateway.poll() is not None)
        if gateway.poll() is not None:
            raise RuntimeError((root / "gateway.log").read_text()[-500:])
        address = ready.read_text().strip()
        urls = {
            "direct": f"wss://127.0.0.1:{harness}/",
            "bare splice": f"wss://127.0.0.1:{splice}/",
            "Agent Gateway": f"wss://{address}/namespaces/{NAMESPACE}/agents/{AGENT}",
        }
        yield urls, gateway.pid


def _peer(stack: contextlib.ExitStack, *arguments: str) -> list[int]:
    """Start a part of `relay_peers` and return the ports it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.relay_peers", *arguments], stdout=subprocess.PIPE
    )
    stack.callback(_end, process)
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


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
        "version": 1,
        "namespaceId": NAMESPACE,
        "namespaceName": "default",
        "agentId": AGENT,
        "agentName": "helper",
        "generation": 1,
        "revisionId": "rev_1",
        "target": f"wss://{_HOST}:{harness}/",
        "connect": f"127.0.0.1:{harness}",
        "caFile": None,
        "caBundle": (root / "upstream-ca.pem").read_text(),
        "transportToken": _TOKEN,
        "drainSeconds": 1,
    }
    (routes / f"{AGENT}.json").write_text(json.dumps(document))
    config = root / "agentgw.toml"
    values: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "tls_cert": str(pem),
        "tls_key": str(pem),
        "routes_dir": str(routes),
        "control_socket": str(root / "ctl"),
        "api_url": f"http://127.0.0.1:{api}",
        "api_token_file": str(token),
        "ready_file": str(root / "ready"),
        "drain_seconds": 1,
    }
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return config


def _connect(root: Path, url: str) -> Any:
    context = ssl.create_default_context(cafile=str(root / "upstream-ca.pem"))
    headers = {"x-api-key": "any"} if AGENT in url else {"authorization": f"Bearer {_TOKEN}"}
    return websockets.connect(
        url,
        ssl=context,
        server_hostname=_HOST,
        additional_headers=headers,
        proxy=None,
        compression=None,
        ping_interval=None,
        open_timeout=30,
    )


async def _latencies(socket: websockets.ClientConnection) -> list[float]:
    found = []
    for _ in range(_RUN):
        began = time.perf_counter()
        await socket.send(_TEXT)
        await socket.recv()
        found.append((time.perf_counter() - began) * 1000)
    return found


async def _measure(root: Path, urls: dict[str, str], pid: int, rounds: int) -> Table:
    table = Table(
        "Agent Gateway relay, 256-byte messages, one at a time (ms)",
        ("", "p50", "p99", "added p50"),
    )
    async with contextlib.AsyncExitStack() as stack:
        sockets = {
            name: await stack.enter_async_context(_connect(root, url)) for name, url in urls.items()
        }

        async def compare(suffix: str) -> float:
            found: dict[str, list[float]] = {name: [] for name in sockets}
            for _ in range(rounds):
                for name, socket in sockets.items():
                    found[name] += await _latencies(socket)
            direct = median(found["direct"])
            for name, values in found.items():
                added = median(values) - direct
                table.row(
                    name + suffix, f"{median(values):.3f}", percentile(values, 0.99), f"{added:.3f}"
                )
            return median(found["Agent Gateway"]) - direct

        await compare("")
        before = memory(pid)[0]
        async with _idle(root, urls["Agent Gateway"]) as took:
            added = await compare(f", {IDLE:,} idle sockets beside")
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
            return await _connect(root, url)

    began = time.perf_counter()
    sockets = await asyncio.gather(*(open_one() for _ in range(IDLE)))
    try:
        yield time.perf_counter() - began
    finally:
        for socket in sockets:
            socket.transport.abort()
