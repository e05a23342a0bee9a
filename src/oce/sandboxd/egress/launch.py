"""Start the egress process beside the gateway: own session, own log file, no inherited environment but what Python needs.

It outlives its starter; a second one on the same state directory gives up by itself (it cannot get the lock).
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from oce.sandboxd.egress.client import UnixEgressClient, wait_until_answering

if TYPE_CHECKING:
    from pathlib import Path

START_SECONDS = 15.0
LOG_NAME = "egress.log"

_KEEP = ("PATH", "PYTHONPATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR")


async def ensure_egress(socket_path: Path, state_directory: Path, config: Path | None) -> int:
    """Return the pid of the running egress process, starting one if none answers. Raises ConnectionError."""
    client = UnixEgressClient(socket_path)
    try:
        try:
            return await client.ping()
        except ConnectionError:
            await _start(socket_path, state_directory, config)
        return await wait_until_answering(client, START_SECONDS)
    finally:
        await client.close()


async def _start(socket_path: Path, state_directory: Path, config: Path | None) -> None:
    private_directory(state_directory)
    arguments = ["--socket", str(socket_path), "--state-dir", str(state_directory)]
    if config is not None:
        arguments += ["--config", str(config)]
    log = os.open(
        state_directory / LOG_NAME, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    try:
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "oce.sandboxd.egress",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={key: os.environ[key] for key in _KEEP if key in os.environ},
            start_new_session=True,
        )
    finally:
        os.close(log)


def private_directory(path: Path) -> None:
    """Make a directory that only this user can enter. Raises PermissionError when somebody else owns it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    path.chmod(0o700)
