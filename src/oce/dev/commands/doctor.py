"""`occ doctor`: which rights this machine gives, and how to get what is missing."""

from __future__ import annotations

import asyncio
import json
import sys

import click

from oce.dev import rights
from oce.dev.commands.options import OUTPUT


@click.command()
@OUTPUT
def doctor(output: str) -> None:
    """Try every right that confinement needs, once, and say how to get what is missing."""
    found = asyncio.run(rights.examine())
    if output == "json":
        click.echo(json.dumps([finding.document() for finding in found], indent=2))
    else:
        for finding in found:
            click.echo(finding.line())
    if any(finding.required and not finding.held for finding in found):
        click.echo(
            "\nWhat is MISSING is required: no Agent runs on this machine without it, and nothing weaker is started instead.",
            err=True,
        )
        sys.exit(1)
