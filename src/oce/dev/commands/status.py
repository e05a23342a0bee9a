"""`occ status`: what runs, each line with its evidence."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import click

from oce.dev.commands.options import OUTPUT, STATE_DIR
from oce.dev.state import StateDirectory, StateError
from oce.dev.survey import survey

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@STATE_DIR
@OUTPUT
def status(state_dir: Path, output: str) -> None:
    """Show what runs, each line with the evidence it rests on. Exit code 1 unless everything serves."""
    state = StateDirectory(state_dir)
    if not state.ports_file.exists():
        raise click.ClickException(f"there is nothing at {state.root}; `occ up` makes it")
    try:
        found = asyncio.run(survey(state))
    except StateError as error:
        raise click.ClickException(str(error)) from None
    if output == "json":
        rows = [
            {"component": one.component, "serving": one.serving, "evidence": one.evidence}
            for one in found
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        for one in found:
            click.echo(
                f"{one.component:<14} {'serving' if one.serving else 'DOWN':<8} {one.evidence}"
            )
    if not all(one.serving for one in found):
        sys.exit(1)
