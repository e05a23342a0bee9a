"""`occ namespace`."""

from __future__ import annotations

from typing import Final

import click

from oce.cli.output import Column, show, show_deleted
from oce.cli.progress import until
from oce.cli.resources import WAIT, add_verbs, group, is_gone
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
@WAIT
@click.pass_context
def create(ctx: click.Context, name: str, existing_namespace: str | None, *, wait: bool) -> None:
    """Create a Namespace; it takes Secrets and deploys when it is `ready`."""
    session = session_of(ctx)
    body = {"name": name}
    if existing_namespace:
        body["existingNamespace"] = existing_namespace
    made = session.client.create(NAMESPACE, body)
    if wait:

        def settled() -> bool:
            made.update(session.client.get(NAMESPACE, str(made["id"])))
            return bool(made["status"] != "provisioning")

        until(settled, f"Provisioning {name}")
    show(session, made, COLUMNS)
    if made["status"] == "failed":
        ctx.exit(1)


@namespace.command()
@click.argument("name", metavar="NAME|ID")
@WAIT
@click.pass_context
def delete(ctx: click.Context, name: str, *, wait: bool) -> None:
    """Tear down an empty Namespace; `get` shows `deleting` until it is gone."""
    session = session_of(ctx)
    gone = session.client.delete(NAMESPACE, name)
    if wait:
        until(lambda: is_gone(session, NAMESPACE, gone), f"Deleting {name}")
    show_deleted(session, NAMESPACE.word, name, "Deleted" if wait else "Deleting")
