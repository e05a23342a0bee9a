"""The egress process beside a direct TLS connection and mitmproxy: same client, same upstream, same requests, same run.

Requests are POSTs with 1 KiB each way on kept-alive connections. Through the egress process every connection comes from inside a namespace
with the Sandbox network, its program is identified, both TLS sides are ours, every request is decided by policy and its placeholder is
replaced; the upstream answers 401 without the real key. The client is asyncio protocols on uvloop in this process. Everything
shares the machine's cores, so req/s depends on all three parties; CPU per request counts the proxy alone and is the steadier number.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import uvloop

from benchmarks import mitm
from benchmarks.gateway import folder
from benchmarks.measure import Table, cpu_seconds, median, percentile
from benchmarks.tls_upstream import ANSWER, KEY, PAUSE_SECONDS
from oce.sandboxd.egress.client import UnixEgressClient
from oce.sandboxd.egress.launch import ensure_egress
from oce.sandboxd.egress.names import address_v4
from oce.testing.egress_rig import Inside, TestAuthority, configuration
from oce.testing.egress_served import (
    API,
    PLACEHOLDER,
    PROVIDER,
    api_endpoint,
    configured,
    policy_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

CONNECTIONS = 16
_BODY = b'{"input":"' + b"y" * 1012 + b'"}'
_PATIENCE = 10.0


def run(*, quick: bool) -> list[Table]:
    with folder() as root:
        return uvloop.run(_measure(root, quick))


@dataclass(frozen=True)
class Target:
    """One way to the upstream. `pid` is the proxy's, None for none."""

    name: str
    connect: Callable[[], Awaitable[socket.socket]]
    key: bytes
    pid: int | None


class Caller(asyncio.Protocol):
    """One connection with one request under way; `done(first)` is called with the time of the answer's first body byte."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._answer: asyncio.Future[float] | None = None
        self._buffer = bytearray()
        self._first = 0.0
        self._end = b""

    def ask(self, request: bytes, end: bytes) -> asyncio.Future[float]:
        """Send; the answer ends with `end`. The result is the time of its first body byte."""
        self._answer = asyncio.get_running_loop().create_future()
        self._end, self._first = end, 0.0
        self._buffer.clear()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if not self._first and head >= 0 and len(self._buffer) > head + 4:
            self._first = time.perf_counter()
        if self._buffer.endswith(self._end):
            ok = self._buffer.startswith(b"HTTP/1.1 200")
            answer, self._answer = self._answer, None
            if answer is None or answer.done():
                return
            if ok:
                answer.set_result(self._first)
            else:
                answer.set_exception(RuntimeError(bytes(self._buffer[:300]).decode()))
        elif self._buffer.startswith(b"HTTP/1.1 4") and self._answer and not self._answer.done():
            self._answer.set_exception(RuntimeError(bytes(self._buffer[:300]).decode()))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("closed"))

    def close(self) -> None:
        self._transport.abort()


def _request(path: str, key: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: {API}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(_BODY)}\r\nauthorization: ".encode()
        + key
        + b"\r\n\r\n"
        + _BODY
    )


async def _open(target: Target) -> Caller:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    sock = await target.connect()
    sock.setblocking(False)  # noqa: FBT003 - the method takes no keyword
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    loop = asyncio.get_running_loop()
    _, caller = await loop.create_connection(Caller, sock=sock, ssl=context, server_hostname=API)
    return caller


async def _throughput(target: Target, seconds: float) -> tuple[float, float, list[float]]:
    """Return (requests per second, the proxy's CPU microseconds per request, latencies in ms)."""
    callers = [await _open(target) for _ in range(CONNECTIONS)]
    request = _request("/v1/responses", target.key)
    latencies: list[float] = []

    async def loop(caller: Caller, until: float) -> None:
        while (began := time.perf_counter()) < until:
            await caller.ask(request, ANSWER)
            latencies.append((time.perf_counter() - began) * 1000)

    async def together(span: float) -> None:
        until = time.perf_counter() + span
        await asyncio.gather(*(loop(caller, until) for caller in callers))

    try:
        async with asyncio.timeout(seconds + _PATIENCE):
            await together(0.2)
            latencies.clear()
            cpu = cpu_seconds(target.pid) if target.pid else 0.0
            began = time.perf_counter()
            await together(seconds)
            took = time.perf_counter() - began
            spent = (cpu_seconds(target.pid) if target.pid else 0.0) - cpu
    finally:
        for caller in callers:
            caller.close()
    return len(latencies) / took, spent / len(latencies) * 1e6, latencies


async def _first_bytes(target: Target, count: int) -> list[float]:
    """Return the milliseconds from request to first streamed byte, on one kept-alive connection."""
    caller = await _open(target)
    request = _request("/v1/stream", target.key)
    found, gaps = [], []
    try:
        async with asyncio.timeout(count * 0.2 + _PATIENCE):
            for _ in range(count):
                began = time.perf_counter()
                first = await caller.ask(request, b"0\r\n\r\n")
                found.append((first - began) * 1000)
                gaps.append(time.perf_counter() - first)
    finally:
        caller.close()
    if median(gaps) < PAUSE_SECONDS / 2:
        raise RuntimeError(f"{target.name} buffers the stream")
    return found


async def _measure(root: Path, quick: bool) -> list[Table]:
    rounds, seconds, samples = (2, 1.0, 30) if quick else (5, 3.0, 60)
    async with _targets(root) as (targets, missing):
        rates: dict[str, list[tuple[float, float, list[float]]]] = {one.name: [] for one in targets}
        firsts: dict[str, list[float]] = {one.name: [] for one in targets}
        for _ in range(rounds):
            for target in targets:
                rates[target.name].append(await _throughput(target, seconds))
            for target in targets:
                firsts[target.name] += await _first_bytes(target, samples)
    return [_table(rates, firsts, missing)]


def _table(
    rates: dict[str, list[tuple[float, float, list[float]]]],
    firsts: dict[str, list[float]],
    missing: list[str],
) -> Table:
    table = Table(
        f"Egress with TLS interception and credential swap, {CONNECTIONS} kept-alive connections",
        ("", "req/s", "p50 ms", "p99 ms", "proxy CPU µs/req", "first byte p50 ms", "p99 ms"),
    )
    summary = {}
    for name, found in rates.items():
        latencies = [one for _, _, some in found for one in some]
        rate, cpu = median([one[0] for one in found]), median([one[1] for one in found])
        first = median(firsts[name])
        summary[name] = (rate, cpu, first)
        table.row(
            name,
            rate,
            median(latencies),
            percentile(latencies, 0.99),
            cpu or "-",
            first,
            percentile(firsts[name], 0.99),
        )
    direct, ours, *rest = summary.values()
    table.notes += missing
    if rest:
        table.notes.append(
            f"egress / mitmproxy: {ours[0] / rest[0][0]:.1f}x requests/s, 1/{rest[0][1] / ours[1]:.1f} of its CPU per request"
        )
        table.goal("requests/s of mitmproxy", ours[0] / rest[0][0], 5, "times", more=True)
    table.goal("first streamed byte over direct", ours[2] - direct[2], 2, "ms")
    return table


@contextlib.contextmanager
def _upstream(certificate: Path) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.tls_upstream", "--certificate", str(certificate)],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def _targets(root: Path) -> AsyncIterator[tuple[list[Target], list[str]]]:
    authority = TestAuthority(root)
    authority.context(API)  # leaves certificate and key in a file
    async with contextlib.AsyncExitStack() as stack:
        port = stack.enter_context(_upstream(root / f"{API}.pem"))
        direct = await _direct(port)
        targets = [
            Target("direct TLS", direct, KEY, None),
            await _egress(root, authority, port, stack),
        ]
        missing = []
        if program := await asyncio.to_thread(mitm.program):
            serving = mitm.serving(program, root, port, KEY.decode())
            mitm_port, pid = stack.enter_context(serving)
            targets.append(
                Target("mitmproxy", await _direct(mitm_port), b"Bearer placeholder", pid)
            )
        else:
            missing.append("mitmproxy could not be installed here; no peer in this run")
        yield targets, missing


async def _direct(port: int) -> Callable[[], Awaitable[socket.socket]]:
    async def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port))

    return connect


async def _egress(
    root: Path, authority: TestAuthority, port: int, stack: contextlib.AsyncExitStack
) -> Target:
    """Start an egress process that serves one namespace, as sandboxd would."""
    inside = await stack.enter_async_context(Inside(root))
    config, state = root / "sandboxd.toml", root / "egress"
    config.write_text(configuration([(API, 443, port, authority.file)]))
    pid = await ensure_egress(root / "control.sock", state, config)
    client = UnixEgressClient(root / "control.sock")
    stack.push_async_callback(client.close)
    stack.push_async_callback(client.shutdown)
    sandbox = configured(policy_of(api_endpoint()))
    await client.certificate(sandbox.sandbox_id)
    real = KEY.removeprefix(b"Bearer ").decode()
    await client.put_credentials(PROVIDER, 1, {"OPENAI_API_KEY": real})
    await client.install(sandbox, inside.descriptors())
    address = socket.inet_ntoa(address_v4(API))

    async def connect() -> socket.socket:
        return await inside.connect(address, 443)

    return Target("egress process", connect, f"Bearer {PLACEHOLDER}".encode(), pid)
