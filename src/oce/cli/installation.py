"""`occ installation`."""

from __future__ import annotations

from typing import Final

import click

from oce.cli.output import Column, show
from oce.cli.resources import group
from oce.cli.session import session_of

COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("NAME", "name"),
    ("CREATED", "createdAt"),
    ("HARNESSES", lambda item: " ".join(item.get("capabilities", {}).get("harnesses", []))),
)

installation = group("installation", "This control plane.")


@installation.command()
@click.pass_context
def get(ctx: click.Context) -> None:
    """Show the Installation and what its Drivers can admit."""
    session = session_of(ctx)
    show(session, session.client.read("/installation"), COLUMNS)
