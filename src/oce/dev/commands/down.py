"""`occ down`: stop what runs for a state directory, whoever started it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Final

import click

from oce.client.context import Contexts, home
from oce.dev import purge
from oce.dev.commands.options import STATE_DIR
from oce.dev.naming import context_of
from oce.dev.postgres import Postgres, PostgresError, PostgresPlan
from oce.dev.programs import ProgramError
from oce.dev.state import Lock, StateDirectory, StateError

if TYPE_CHECKING:
    from pathlib import Path

_STOP_SECONDS: Final = 90.0
_NAME_SECONDS: Final = 2.0


@click.command()
@STATE_DIR
@click.option(
    "--purge",
    "remove",
    is_flag=True,
    help="Also remove the state directory: every Agent, Secret and workspace.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def down(state_dir: Path, *, remove: bool, yes: bool) -> None:
    """Stop everything; data stays unless --purge is given."""
    state = StateDirectory(state_dir)
    if not state.run.exists():
        raise click.ClickException(f"there is nothing at {state.root}; `occ up` makes it")
    if remove and not yes:
        click.confirm(
            f"Remove {state.root} with every Agent, Secret and workspace in it?", abort=True
        )
    try:
        ran = _stop_supervisor(state)
        with Lock(state):
            ran |= asyncio.run(_stop_rest(state))
            click.echo("stopped" if ran else "nothing was running")
            if remove:
                purge.remove(state)
    except (StateError, ProgramError, PostgresError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.strerror} ({error.filename})") from None
    if not remove:
        click.echo(f"data stays in {state.root}; `occ up` brings every Agent back that was serving")
        return
    contexts = Contexts(home(os.environ))
    name = context_of(contexts, state.root)
    if name is not None:
        contexts.remove(name)
    click.echo(f"removed {state.root}" + (f" and context {name}" if name else ""))


async def _stop_rest(state: StateDirectory) -> bool:
    """End what a killed supervisor left; tell whether any of it ran."""
    database = Postgres(PostgresPlan(root=state.postgres, runtime=state.runtime))
    sandboxes = purge.SandboxesStop(state)
    ran = await purge.end_programs(state, database)
    await sandboxes.carry_out()
    return ran


def _stop_supervisor(state: StateDirectory) -> bool:
    """Ask the supervisor to stop and wait for it; tell whether there was one. Raises StateError."""
    lock, asked = Lock(state), 0
    until = time.monotonic() + _NAME_SECONDS
    while (holder := lock.holder()) is not None:
        if holder.pid and holder.pid != asked:
            _ask(holder.pid)
            asked = holder.pid
            until = time.monotonic() + _STOP_SECONDS
        if time.monotonic() > until:
            raise StateError(
                f"{holder} holds {state.root} and does not stop; its log is {state.logs / 'supervisor.log'}"
            )
        time.sleep(0.02)
    return asked != 0


def _ask(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise StateError(
            f"process {pid} belongs to another user; run `occ down` as that user"
        ) from None
