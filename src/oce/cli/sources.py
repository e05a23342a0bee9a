"""`occ credential-source`: credentials that an Agent uses without holding them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from oce.cli.files import read_document
from oce.cli.output import Column, show
from oce.cli.resources import NAME, add_verbs, group
from oce.cli.session import session_of
from oce.client.api import SOURCE

if TYPE_CHECKING:
    from oce.cli.session import Session
    from oce.client.api import Resource

COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("NAME", "name"),
    ("TYPE", "type"),
    ("STATE", "state"),
    ("GATEWAY STATUS", "status.state"),
)
_SECRET = click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="FIELD=SECRET",
    help="A field and the Secret it reads, by name or id.",
)

source = group("credential-source", "Credentials that Agents use without holding them.")
add_verbs(source, SOURCE, COLUMNS)


def pairs(given: tuple[str, ...], option: str) -> dict[str, str]:
    """Return `NAME=VALUE` options as a mapping. Raises click.BadParameter."""
    found: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise click.BadParameter(f"{option} takes NAME=VALUE.")
        found[name] = value
    return found


def secret_fields(session: Session, fields: dict[str, str]) -> dict[str, Resource]:
    """Return references to Secrets of the chosen Namespace."""
    namespace = session.client.namespace()
    return {
        field: {"kind": "secret", "namespaceId": namespace, "id": secret}
        for field, secret in fields.items()
    }


@source.command()
@click.argument("name", required=False)
@click.option("--type", "type_", default="openai", show_default=True, help="Type of credential.")
@_SECRET
@click.option(
    "--config", multiple=True, metavar="NAME=VALUE", help="A setting of the type, not secret."
)
@click.option("-f", "--file", "path", metavar="PATH", help="The whole request as YAML or JSON.")
@click.pass_context
def create(  # the options of one command
    ctx: click.Context,
    name: str | None,
    type_: str,
    secrets: tuple[str, ...],
    config: tuple[str, ...],
    path: str | None,
) -> None:
    """Register a credential.

    For example: occ credential-source create openai --secret api_key=openai-key
    """
    session = session_of(ctx)
    if path is not None:
        body = read_document(path)
    elif name is not None:
        body = {
            "name": name,
            "type": type_,
            "config": pairs(config, "--config"),
            "secrets": secret_fields(session, pairs(secrets, "--secret")),
        }
    else:
        raise click.UsageError("Give a NAME, or a request with --file.")
    show(session, session.client.create(SOURCE, body), COLUMNS)


@source.command()
@NAME
@_SECRET
@click.pass_context
def update(ctx: click.Context, name: str, secrets: tuple[str, ...]) -> None:
    """Hand the Secrets to the gateway again, or other ones. Agents take them up at their next deploy."""
    session = session_of(ctx)
    fields = pairs(secrets, "--secret")
    body = {"secrets": secret_fields(session, fields)} if fields else {}
    show(session, session.client.update(SOURCE, name, body), COLUMNS)
