"""`occ namespace`."""

from __future__ import annotations

from typing import Final

import click

from oce.cli.output import Column, show, show_list
from oce.cli.resources import add_verbs, group
from oce.cli.session import session_of
from oce.client.api import NAMESPACE

COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("NAME", "name"),
    ("STATUS", "status"),
    ("EXISTING NAMESPACE", "existingNamespace"),
)

namespace = group("namespace", "Tenants: each holds its own Agents, Secrets and Configurations.")
add_verbs(namespace, NAMESPACE, COLUMNS, verbs=("list", "get"))


@namespace.command()
@click.argument("name")
@click.option("--existing-namespace", metavar="NAME", help="Adopt this Kubernetes namespace.")
@click.pass_context
def create(ctx: click.Context, name: str, existing_namespace: str | None) -> None:
    """Create a Namespace."""
    session = session_of(ctx)
    body = {"name": name}
    if existing_namespace:
        body["existingNamespace"] = existing_namespace
    show(session, session.client.create(NAMESPACE, body), COLUMNS)


@namespace.command()
@click.argument("name", metavar="NAME|ID")
@click.pass_context
def delete(ctx: click.Context, name: str) -> None:
    """Tear down an empty Namespace; `get` shows `deleting` until it is gone."""
    session = session_of(ctx)
    session.client.delete(NAMESPACE, name)
    if session.output == "table":
        click.echo(f"Deleting namespace {name}.")
    else:
        show_list(session, [session.client.get(NAMESPACE, name)], COLUMNS)
