"""Sandbox create → running, beside what the same walls cost without a control plane.

`running` is phase READY as the gateway answers it: the confined launcher has confirmed Landlock and seccomp and started the command.
The clock runs from the CreateSandbox call, over gRPC and TLS, with a durable record and the request ledger. Bare `bwrap` gets the
options that sandboxd would give it for the same launch and runs `/bin/true` to its end: mounts and namespaces, but no network namespace
with listeners, no Landlock, no seccomp, no cgroup, no supervision. Codex is timed to its own `/readyz`, unconfined and in a Sandbox.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

from benchmarks.gateway import (
    CODEX_INSIDE,
    Calls,
    codex_binary,
    folder,
    free_port,
    pb,
    poll_http,
    sandboxd,
)
from benchmarks.measure import Table, interleaved, median, milliseconds, percentile, until
from oce.sandboxd.confine import generated, programs, view
from oce.sandboxd.confine.config import ConfineConfig
from oce.sandboxd.place import Launch, Mount

if TYPE_CHECKING:
    from pathlib import Path

BURST = 50
SLEEP = ("sleep", "1000000")
_PORT = 18790
_NUMBERS = itertools.count()


def run(*, quick: bool) -> list[Table]:
    with sandboxd() as calls, folder() as bare:
        calls.delete(_create(calls)[1])  # installs programs and certificates once
        return [
            _serial(calls, bare, 15 if quick else 60),
            _burst(calls, 1 if quick else 3),
            _codex(calls, bare, 3 if quick else 8),
        ]


def _create(calls: Calls) -> tuple[float, str, float]:
    """Return (milliseconds to running, name, milliseconds to the create's own answer)."""
    name = f"one{next(_NUMBERS)}"
    started = time.perf_counter()
    calls.call("CreateSandbox", calls.create_request(name, SLEEP))
    accepted = time.perf_counter()
    calls.wait_ready(name)
    return (time.perf_counter() - started) * 1000, name, (accepted - started) * 1000


def _serial(calls: Calls, bare: Path, rounds: int) -> Table:
    accepted: list[float] = []

    def sandbox() -> float:
        took, name, answer = _create(calls)
        accepted.append(answer)
        calls.delete(name)
        return took

    command = bwrap_command(bare)
    cases = {
        "Sandbox create → running": sandbox,
        "bare bwrap, same view, /bin/true": lambda: milliseconds(
            lambda: subprocess.run(command, check=True)
        ),
    }
    found = interleaved(rounds, cases)
    found["  of it CreateSandbox answered"] = accepted
    table = Table("Sandbox start, one after the other (ms)", ("", "p50", "p95", "max", "n"))
    for name, values in found.items():
        table.row(name, median(values), percentile(values, 0.95), max(values), str(len(values)))
    ours, peer = (median(found[name]) for name in cases)
    table.notes.append(f"Sandbox / bwrap, p50: {ours / peer:.1f}x")
    table.goal("create → running, p50", ours, 60, "ms")
    return table


def bwrap_command(root: Path) -> list[str]:
    """Return bwrap with the options of the same launch, ending in `/bin/true`."""
    config = ConfineConfig(runtime_dir=root / "run", state_dir=root / "state")
    installed = programs.install(config)
    workspace, etc = root / "workspace", root / "etc"
    for made in (workspace, etc):
        made.mkdir()
    for name, text in view.ETC_FILES.items():
        (etc / name).write_text(text)
    launch = Launch(
        sandbox_id="bare",
        instance_id="bare",
        uid_key="bare",
        command=["/bin/true"],
        environment={},
        workdir="/sandbox",
        mounts=(Mount(source=workspace, target="/sandbox", read_only=False),),
    )
    plan = view.build(
        launch,
        installed,
        generated.plan([], ["/sandbox"]),
        store=root / "files",
        etc=etc,
        system_paths=config.system_paths,
    )
    return [str(installed.bwrap), *plan.options, "--", "/bin/true"]


def _burst(calls: Calls, rounds: int) -> Table:
    table = Table(
        f"{BURST} Sandboxes at once (s)", ("", "all accepted", "half running", "all running")
    )
    times = []
    for number in range(1, rounds + 1):
        names = [f"burst{next(_NUMBERS)}" for _ in range(BURST)]
        started = time.perf_counter()
        futures = [
            calls.later("CreateSandbox", calls.create_request(name, SLEEP)) for name in names
        ]
        for future in futures:
            future.result()
        accepted = time.perf_counter() - started
        until(lambda: calls.ready_count() >= BURST // 2, 120, 0.02)
        half = time.perf_counter() - started
        until(lambda: calls.ready_count() == BURST, 120, 0.02)
        times.append(time.perf_counter() - started)
        table.row(f"round {number}", accepted, half, times[-1])
        calls.delete(*names)
    table.goal("50 at once, all running (median)", median(times), 5, "s")
    return table


def _codex(calls: Calls, bare: Path, rounds: int) -> Table:
    binary = codex_binary()
    cases = {
        "codex app-server in a Sandbox → /readyz": lambda: _confined(calls),
        "bare codex app-server → /readyz": lambda: _unconfined(binary, bare),
    }
    found = interleaved(rounds, cases)
    table = Table("Codex app-server to its own readiness (ms)", ("", "p50", "max", "n"))
    for name, values in found.items():
        table.row(name, median(values), max(values), str(len(values)))
    ours, peer = (median(found[name]) for name in cases)
    table.notes.append(f"confinement and control plane add {ours - peer:.0f} ms (p50)")
    return table


def _confined(calls: Calls) -> float:
    name = f"codex{next(_NUMBERS)}"
    request = calls.create_request(
        name,
        [f"{CODEX_INSIDE}/bin/codex", "app-server", "--listen", f"ws://127.0.0.1:{_PORT}"],
        environment={"HOME": "/sandbox", "CODEX_HOME": "/tmp", "PATH": "/usr/bin:/bin"},  # noqa: S108 - inside
        service_exposures=[pb.SandboxServiceExposure(target_port=_PORT)],
    )

    def start() -> None:
        calls.call("CreateSandbox", request)
        calls.wait_ready(name)
        calls.service(name, "/readyz")

    took = milliseconds(start)
    calls.delete(name)
    return took


def _unconfined(binary: Path, root: Path) -> float:
    port = free_port()
    with tempfile.TemporaryDirectory(dir=root) as home:
        command = [str(binary), "app-server", "--listen", f"ws://127.0.0.1:{port}"]
        environment = {"HOME": home, "CODEX_HOME": home, "PATH": os.environ["PATH"]}
        started = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home
        )
        try:
            poll_http(
                lambda: http.client.HTTPConnection("127.0.0.1", port, timeout=5), "/readyz", {}
            )
            return (time.perf_counter() - started) * 1000
        finally:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
