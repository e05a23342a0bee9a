"""`occ context`: which control plane the commands speak to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from oce.cli.output import Column, show, show_list
from oce.cli.resources import group
from oce.cli.session import session_of
from oce.client.context import Context
from oce.client.errors import ContextError

COLUMNS: Final[tuple[Column, ...]] = (
    ("CURRENT", lambda item: "*" if item["current"] else None),
    ("NAME", "name"),
    ("URL", "url"),
    ("NAMESPACE", "namespace"),
    ("KEY FILE", "key_file"),
)

context = group("context", "Which control plane the commands speak to. `occ up` writes one.")


@context.command("list")
@click.pass_context
def list_(ctx: click.Context) -> None:
    """List the contexts; a star marks the one in use."""
    session = session_of(ctx)
    current = session.contexts.current()
    found = [
        {**asdict(session.contexts.load(name)), "current": name == current}
        for name in session.contexts.names()
    ]
    show_list(session, found, COLUMNS)


@context.command()
@click.argument("name")
@click.pass_context
def use(ctx: click.Context, name: str) -> None:
    """Use a context from now on."""
    session_of(ctx).contexts.use(name)
    click.echo(f"Using context {name}.")


@context.command()
@click.argument("name", required=False)
@click.pass_context
def get(ctx: click.Context, name: str | None) -> None:
    """Show a context, or the one in use."""
    session = session_of(ctx)
    current = session.contexts.current()
    if name is None and current is None:
        raise ContextError("No context is in use.", "`occ context list` shows them.")
    wanted = str(name or current)
    show(
        session,
        {**asdict(session.contexts.load(wanted)), "current": wanted == current},
        COLUMNS,
    )


@context.command()
@click.argument("name")
@click.option("--url", "origin", required=True, help="Origin of the API.")
@click.option("--service-key-file", "key_path", required=True, help="File that holds the key.")
@click.option("--ca-bundle", "ca_path", default="", help="CA certificates to believe.")
@click.option("--default-namespace", default="", help="Namespace, by name or id.")
@click.option("--gateway-url", default="", help="The Agent Gateway, for `occ agent chat`.")
@click.pass_context
def create(  # the options of one command
    ctx: click.Context,
    name: str,
    origin: str,
    key_path: str,
    ca_path: str,
    default_namespace: str,
    gateway_url: str,
) -> None:
    """Write a context for a control plane elsewhere, and use it."""
    made = Context(
        name=name,
        url=origin,
        key_file=key_path,
        ca_file=ca_path,
        namespace=default_namespace,
        gateway_url=gateway_url,
    )
    session_of(ctx).contexts.save(made)
    click.echo(f"Using context {name}.")


@context.command()
@click.argument("name")
@click.pass_context
def delete(ctx: click.Context, name: str) -> None:
    """Forget a context; the control plane is not touched."""
    session_of(ctx).contexts.remove(name)
    click.echo(f"Deleted context {name}.")
