"""`occ demo`: what `make demo` runs."""

from __future__ import annotations

import sys

import click

from oce.dev import demonstration


@click.command()
@click.option(
    "--keep", is_flag=True, help="Keep the state directory afterwards (for a look around)."
)
def demo(*, keep: bool) -> None:
    """Show a real Codex agent answering from inside a Sandbox, in a throw-away state directory."""
    sys.exit(demonstration.run(keep=keep))
