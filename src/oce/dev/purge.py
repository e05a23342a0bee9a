"""Stop what runs for a state directory whoever started it, and remove a state directory.

A killed `occ up` leaves its programs behind, each in a process group of its own; their pid files and sandboxd's own records say which
they are. Called under the directory's lock.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from typing import TYPE_CHECKING

from oce.dev.processes import end_recorded
from oce.dev.programs import ProgramError, exited, last_words
from oce.dev.spawn import detached

if TYPE_CHECKING:
    import subprocess

    from oce.dev.postgres import Postgres
    from oce.dev.state import StateDirectory


async def end_programs(state: StateDirectory, database: Postgres) -> bool:
    """End the programs that an earlier supervisor left, PostgreSQL last; tell whether any ran. Sandboxes run on."""
    files = sorted(state.run.glob("*.pid"))
    ran = await asyncio.gather(*(end_recorded(file) for file in files))
    found = any(ran) or database.pid() is not None
    await asyncio.to_thread(database.stop)
    return found


class SandboxesStop:
    """`sandboxd stop-all`: ends a gateway, every Sandbox and the egress process; loads while others still stop."""

    def __init__(self, state: StateDirectory) -> None:
        config = state.config / "sandboxd.toml"
        self._log = state.logs / "stop-all.log"
        self._process: subprocess.Popen[bytes] | None = None
        if config.exists() and (state.sandboxd / "auth").exists():
            command = [
                "-m",
                "oce.dev.run",
                "oce.sandboxd.main",
                "stop-all",
                "--config",
                str(config),
            ]
            self._process = detached([sys.executable, *command], self._log)

    async def carry_out(self) -> None:
        """Let it run to its end. Raises ProgramError when something of sandboxd's does not end."""
        if self._process is None or self._process.stdin is None:
            return
        os.write(self._process.stdin.fileno(), b"\n")
        self._process.stdin.close()
        if await exited(self._process):
            raise ProgramError(f"not every Sandbox could be ended: {last_words(self._log)}")


def remove(state: StateDirectory) -> None:
    """Remove the directory and everything in it. Raises OSError naming what could not be removed."""
    shutil.rmtree(state.root)
