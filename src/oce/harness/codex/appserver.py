"""Supervising ``codex app-server``: start, notice that it listens, start again after an exit.

It gets only the digest of the transport token; the bearer check is Codex's own. A program that ends three times before it ever
listened will not do better the fourth time and becomes a held ``UNAVAILABLE``; after it once listened it is restarted for ever, with a
growing pause.
"""

from __future__ import annotations

import json
import select
import socket
import time

from oce.harness.codex import log
from oce.harness.codex.environment import HOST
from oce.harness.codex.failure import HeldFailure, not_started, process_exit

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

    from oce.harness.codex.children import Children
    from oce.harness.codex.environment import Settings

ATTEMPTS_BEFORE_HELD = 3
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
_POLL_SECONDS = 0.01
_SLOW_POLL_SECONDS = 0.25
_POLL_QUICKLY_SECONDS = 5.0
_CONNECT_SECONDS = 0.25


def command(settings: Settings) -> list[str]:
    """Return the app-server's command line (reference/kubernetes-compute.md §13.6), on loopback."""
    options = (
        f"model={json.dumps(settings.model)}",
        'otel.exporter="none"',
        "otel.log_user_prompt=false",
        "allow_login_shell=false",
        "shell_environment_policy.experimental_use_profile=false",
        f"shell_environment_policy.set.PATH={json.dumps(settings.environment['PATH'])}",
        'cli_auth_credentials_store="file"',
    )
    return [
        settings.binary,
        *(part for option in options for part in ("-c", option)),
        "app-server",
        *("--listen", f"ws://{HOST}:{settings.listener.port}"),
        *("--ws-auth", "capability-token"),
        *("--ws-token-sha256", settings.listener.token_sha256),
    ]


def next_pause(pause: float, ran_seconds: float) -> float:
    """Return the pause after an exit: doubling, back to the first after a steady run."""
    if ran_seconds >= STEADY_SECONDS or pause == 0:
        return FIRST_PAUSE_SECONDS
    return min(pause * 2, LONGEST_PAUSE_SECONDS)


def supervise(settings: Settings, children: Children, started: float) -> None:
    """Keep the app-server running until told to stop. Raises HeldFailure(UNAVAILABLE)."""
    ever_listened, exits, pause = False, 0, 0.0
    while not children.stopping():
        began = time.monotonic()
        listened, cause = _run_once(settings, children, started)
        if children.stopping():
            return
        ever_listened = ever_listened or listened
        exits += 1
        pause = next_pause(pause, time.monotonic() - began)
        log.event("codex.app_server_exited", listened=listened, detail=cause, pause_seconds=pause)
        if not ever_listened and exits >= ATTEMPTS_BEFORE_HELD:
            raise HeldFailure("UNAVAILABLE", check="app-server")
        children.sleep(pause)


def _run_once(settings: Settings, children: Children, started: float) -> tuple[bool, str | None]:
    """Run it to its end; return whether it listened, and how it ended."""
    if _connects(settings.listener.port):
        # A stranger on the port would make a program look alive that cannot bind.
        return False, "port-taken"
    try:
        child = children.start(
            command(settings), environment=settings.environment, cwd=settings.workspace
        )
    except OSError as error:
        return False, not_started(error).detail
    listened = _await_listening(child, settings.listener.port, children)
    if listened:
        log.phase("app-server-listening", started)
    return listened, process_exit(children.finish(child)).detail


def _await_listening(child: subprocess.Popen[bytes], port: int, children: Children) -> bool:
    """Poll the port until it accepts or the child ends."""
    quick_until = time.monotonic() + _POLL_QUICKLY_SECONDS
    while child.poll() is None and not children.stopping():
        if _connects(port):
            return child.poll() is None
        quick = time.monotonic() < quick_until
        select.select([], [], [], _POLL_SECONDS if quick else _SLOW_POLL_SECONDS)
    return False


def _connects(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
