"""`occ secret`: values come from a file or standard input, never from the command line."""

from __future__ import annotations

from typing import Any, Final

import click

from oce.cli.files import read_value
from oce.cli.output import Column, show
from oce.cli.resources import NAME, add_verbs, group
from oce.cli.session import session_of
from oce.client.api import SECRET


def _consumers(item: dict[str, Any]) -> object:
    found = item.get("consumers")
    if not found:
        return None
    return ", ".join(
        str(identifier)
        for kind in ("agents", "configurations", "credentialSources")
        for identifier in found[kind]
    )


COLUMNS: Final[tuple[Column, ...]] = (("ID", "id"), ("NAME", "name"), ("CREATED", "createdAt"))
_VALUE = click.option(
    "--value-file",
    required=True,
    metavar="PATH",
    help="File with the value; `-` reads standard input. One line break at its end is dropped.",
)

secret = group("secret", "Secret values: written, never read back.")
add_verbs(secret, SECRET, COLUMNS, verbs=("list", "delete"))


@secret.command()
@NAME
@click.pass_context
def get(ctx: click.Context, name: str) -> None:
    """Show a Secret's metadata and who uses it."""
    session = session_of(ctx)
    columns = (*COLUMNS, ("CONSUMERS", _consumers))
    show(session, session.client.get(SECRET, name), columns)


@secret.command()
@click.argument("name")
@_VALUE
@click.pass_context
def create(ctx: click.Context, name: str, value_file: str) -> None:
    """Store a Secret."""
    session = session_of(ctx)
    body = {"name": name, "value": read_value(value_file)}
    show(session, session.client.create(SECRET, body), COLUMNS)


@secret.command()
@NAME
@_VALUE
@click.pass_context
def update(ctx: click.Context, name: str, value_file: str) -> None:
    """Replace a Secret's value. Credential sources that use it take it up with `credential-source update`."""
    session = session_of(ctx)
    body = {"value": read_value(value_file)}
    show(session, session.client.update(SECRET, name, body), COLUMNS)
