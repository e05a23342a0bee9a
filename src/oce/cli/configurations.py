"""`occ configuration`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from oce.cli.files import read_document
from oce.cli.output import Column, show
from oce.cli.resources import FILE, NAME, add_verbs, group
from oce.cli.session import session_of
from oce.client.api import CONFIGURATION

if TYPE_CHECKING:
    from oce.client.api import Resource

COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("NAME", "name"),
    ("KIND", "kind"),
    ("GENERATION", "generation"),
    ("CREATED", "createdAt"),
)

configuration = group("configuration", "What Agents run with; a deploy takes a snapshot.")
add_verbs(configuration, CONFIGURATION, COLUMNS)


def _request(path: str) -> Resource:
    """Return the API's request; a document of `occ apply` (`kind: Configuration`) will do as well."""
    document = read_document(path)
    if document.get("kind") == "Configuration":
        document["kind"] = "agent"
    return document


@configuration.command()
@FILE
@click.pass_context
def create(ctx: click.Context, path: str) -> None:
    """Store a Configuration.

    \b
    The smallest file:
      kind: Configuration
      name: assistant
      values: {…}
    """  # noqa: D301 - click's mark is the backspace character
    session = session_of(ctx)
    show(session, session.client.create(CONFIGURATION, _request(path)), COLUMNS)


@configuration.command()
@NAME
@FILE
@click.option(
    "--if-generation", type=click.IntRange(1), help="Only if it still has this generation."
)
@click.pass_context
def update(ctx: click.Context, name: str, path: str, if_generation: int | None) -> None:
    """Replace a Configuration's document; deployed Agents keep what they have."""
    session = session_of(ctx)
    body = {key: value for key, value in _request(path).items() if key not in {"kind", "name"}}
    changed = session.client.update(CONFIGURATION, name, body, generation=if_generation)
    show(session, changed, COLUMNS)
