"""Stop what runs for a state directory whoever started it, and remove a state directory.

A killed `occ up` leaves its programs behind, each in a process group of its own; their pid files and sandboxd's own records say which
they are. Called under the directory's lock.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import TYPE_CHECKING

from oce.dev.programs import end_recorded

if TYPE_CHECKING:
    from oce.dev.postgres import Postgres
    from oce.dev.state import StateDirectory


async def stop_leftovers(state: StateDirectory, database: Postgres) -> bool:
    """Stop programs, Sandboxes, the egress process and PostgreSQL; tell whether any program still ran."""
    found = database.pid() is not None
    for pid_file in sorted(state.run.glob("*.pid")):
        found |= await end_recorded(pid_file)
    config = state.config / "sandboxd.toml"
    if config.exists():
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "oce.sandboxd.main",
            "stop-all",
            "--config",
            str(config),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        await process.wait()
    await asyncio.to_thread(database.stop)
    return found


def remove(state: StateDirectory) -> None:
    """Remove the directory and everything in it. Raises OSError naming what could not be removed."""
    shutil.rmtree(state.root)
