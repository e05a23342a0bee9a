"""`occ key`: service keys. A new key goes into a 0600 file and is never printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click

from oce.cli.output import Column, show, show_deleted
from oce.cli.resources import add_verbs, group
from oce.cli.session import session_of
from oce.client.api import KEY
from oce.client.context import reserve_private, write_private

_DAY: Final = 86_400
COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("NAME", "name"),
    ("PRINCIPAL", "servicePrincipalId"),
    ("NAMESPACE", "namespaceId"),
    ("EXPIRES", "expiresAt"),
    ("LAST USED", "lastUsedAt"),
)

key = group("key", "Service keys.")
add_verbs(key, KEY, COLUMNS, verbs=("list",))


@key.command()
@click.argument("name")
@click.option(
    "--service-principal", "subject", required=True, metavar="ID", help="Who acts with it."
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="New file for the key.")
@click.option("--expires-in-days", type=click.IntRange(1, 365), help="[30]")
@click.option(
    "--only-namespace",
    metavar="ID",
    help="Restrict the key to one Namespace (needed for that Namespace's own principals).",
)
@click.pass_context
def create(  # the options of one command
    ctx: click.Context,
    name: str,
    subject: str,
    out: Path,
    expires_in_days: int | None,
    only_namespace: str | None,
) -> None:
    """Issue a service key and write it to a new 0600 file."""
    session = session_of(ctx)
    body: dict[str, Any] = {"servicePrincipalId": subject, "name": name}
    if expires_in_days is not None:
        body["expiresIn"] = expires_in_days * _DAY
    if only_namespace is not None:
        body["namespaceId"] = only_namespace
    # The file is made first: a key that cannot be kept must not be issued.
    try:
        reserve_private(out)
    except OSError as error:
        raise click.ClickException(f"{out} cannot be created: {error.strerror}.") from None
    try:
        made = session.client.create(KEY, body)
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    write_private(out, json.dumps({"data": made}, indent=2) + "\n")
    show(session, {name: value for name, value in made.items() if name != "key"}, COLUMNS)


@key.command()
@click.argument("identifier", metavar="NAME|ID")
@click.pass_context
def revoke(ctx: click.Context, identifier: str) -> None:
    """Revoke a key; it is dead at once."""
    session = session_of(ctx)
    gone = session.client.delete(KEY, identifier)
    show_deleted(session, KEY.word, gone, "Revoked")
