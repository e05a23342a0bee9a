"""The verbs that every kind of resource has, made once: list, get, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oce.cli.output import show, show_deleted, show_list
from oce.cli.session import ResourceGroup, session_of
from oce.client.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oce.cli.output import Column
    from oce.cli.session import Session
    from oce.client.api import Kind

NAME = click.argument("name", metavar="NAME|ID")
FILE = click.option(
    "-f",
    "--file",
    "path",
    required=True,
    metavar="PATH",
    help="YAML or JSON; `-` reads standard input.",
)
WAIT = click.option("--wait", is_flag=True, help="Return when it is over.")
LIMIT = click.option("--limit", type=click.IntRange(1), help="Show at most this many.")
DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Let the server judge the request and change nothing."
)
INSTALLATION = click.option(
    "--installation",
    is_flag=True,
    help="Of the whole Installation instead of one Namespace.",
)


def add_verbs(
    group: click.Group,
    kind: Kind,
    columns: Sequence[Column],
    *,
    verbs: Sequence[str] = ("list", "get", "delete"),
    scoped: bool = False,
) -> None:
    """Give a group its common verbs; `scoped` adds `--installation`."""
    made: dict[str, Callable[..., Any]] = {}

    def scope(callback: Callable[..., Any]) -> Callable[..., Any]:
        return INSTALLATION(callback) if scoped else callback

    @click.pass_context
    def list_(ctx: click.Context, limit: int | None, *, installation: bool = False) -> None:
        session = session_of(ctx)
        show_list(
            session,
            session.client.pages(kind, installation=installation, limit=limit),
            columns,
        )

    @click.pass_context
    def get(ctx: click.Context, name: str, *, installation: bool = False) -> None:
        session = session_of(ctx)
        show(session, session.client.get(kind, name, installation=installation), columns)

    @click.pass_context
    def delete(ctx: click.Context, name: str, *, installation: bool = False) -> None:
        session = session_of(ctx)
        gone = session.client.delete(kind, name, installation=installation)
        show_deleted(session, kind.word, gone)

    words = kind.word.replace("-", " ")
    made["list"] = LIMIT(scope(list_))
    made["get"] = NAME(scope(get))
    made["delete"] = NAME(scope(delete))
    helps = {
        "list": f"List every {words} you may read.",
        "get": f"Show one {words}.",
        "delete": f"Delete a {words}.",
    }
    for verb in verbs:
        group.command(verb, help=helps[verb])(made[verb])


def is_gone(session: Session, kind: Kind, identifier: str) -> bool:
    """Tell whether a resource that is being deleted is not there any more."""
    try:
        session.client.get(kind, identifier)
    except Refused as error:
        if error.code == "NOT_FOUND":
            return True
        raise
    return False


def group(name: str, help_text: str) -> ResourceGroup:
    """Return an empty group of resource commands."""
    return ResourceGroup(name, help=help_text)
