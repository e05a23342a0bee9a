"""Preparing ``CODEX_HOME`` and logging Codex in with the placeholder.

The placeholder goes to ``codex login`` on standard input: never an argument, never an environment variable of a child. Codex stores it
in ``auth.json`` and does not contact anybody; that the key behind it works is proven by the model probe.
"""

from __future__ import annotations

import os
import signal
import subprocess

from oce.harness.codex.children import Children, kill_group
from oce.harness.codex.failure import HeldFailure, not_started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oce.harness.codex.environment import Settings

LOGIN_SECONDS = 30.0


def prepare_home(settings: Settings) -> None:
    """Make ``CODEX_HOME`` (0700), write ``config.toml`` (0600) and link the shared threads. Raises OSError, HeldFailure."""
    home = settings.codex_home
    os.makedirs(home, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib costs start time
    with open(settings.config_source, "rb") as stream:  # noqa: PTH123 - the same
        content = stream.read()
    _write_private(f"{home}/config.toml", content)
    if settings.sessions is not None:
        _link_sessions(f"{home}/sessions", settings.sessions)


def _write_private(path: str, content: bytes) -> None:
    fresh = path + ".new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(fresh, flags, 0o600), "wb") as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.write(content)
    os.replace(fresh, path)  # noqa: PTH105 - pathlib costs start time


def _link_sessions(link: str, target: str) -> None:
    """Point ``sessions`` at the Agent's own folder; a folder that already holds threads is never replaced."""
    if os.path.islink(link):  # noqa: PTH114 - pathlib costs start time
        if os.readlink(link) == target:  # noqa: PTH115 - the same
            return
        os.unlink(link)  # noqa: PTH108 - the same
    elif os.path.isdir(link):  # noqa: PTH112 - the same
        try:
            os.rmdir(link)  # noqa: PTH106 - the same
        except OSError as error:
            raise HeldFailure(
                "NOT_CONFIGURED", check="login", variable="OCE_CODEX_SESSIONS_DIR"
            ) from error
    os.symlink(target, link)  # noqa: PTH211 - the same


def log_in(settings: Settings, children: Children) -> None:
    """Log in. Raises HeldFailure: LOGIN_FAILED, or UNAVAILABLE when the binary does not even tell its version."""
    status = _run(settings, children, ["login", "--with-api-key"], settings.placeholder.reveal())
    if status == 0 or children.stopping():
        return
    if status is not None and _run(settings, children, ["--version"], "") != 0:
        raise HeldFailure("UNAVAILABLE", check="app-server")
    raise HeldFailure("LOGIN_FAILED", check="login")


def _run(settings: Settings, children: Children, arguments: list[str], given: str) -> int | None:
    """Run Codex with text on standard input; None means that it did not end in time."""
    command = [settings.binary, "-c", "cli_auth_credentials_store=file", *arguments]
    try:
        child = children.start(
            command,
            environment=settings.environment,
            cwd=settings.codex_home,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise HeldFailure("UNAVAILABLE", check="app-server", cause=not_started(error)) from error
    try:
        child.communicate(given.encode(), timeout=LOGIN_SECONDS)
    except subprocess.TimeoutExpired:
        kill_group(child, signal.SIGKILL)
        children.finish(child)
        return None
    return children.finish(child)
