"""`occ audit`: who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from oce.cli.output import Column, show_list
from oce.cli.resources import group
from oce.cli.session import session_of
from oce.cli.times import moment

if TYPE_CHECKING:
    from datetime import datetime

COLUMNS: Final[tuple[Column, ...]] = (
    ("TIME", "occurredAt"),
    ("ACTOR", "actorId"),
    ("ACTION", "action"),
    ("RESOURCE", "resource.id"),
    ("OUTCOME", "outcome"),
    ("REASON", "reasonCode"),
)

audit = group("audit", "The audit trail; needs installation:administer.")


@audit.command("list")
@click.option("--actor", metavar="ID", help="Who did it.")
@click.option("--action", metavar="ACTION", help="For example openclaw.agents.deploy.")
@click.option("--resource-kind", metavar="KIND")
@click.option("--resource-id", metavar="ID")
@click.option("--outcome", type=click.Choice(("success", "denied", "failure")))
@click.option("--since", type=moment, metavar="WHEN", help="RFC 3339, or an age: 90s, 10m, 2h, 1d.")
@click.option("--until", type=moment, metavar="WHEN")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@click.option("--everywhere", is_flag=True, help="Of every Namespace instead of the chosen one.")
@click.pass_context
def list_(  # the filters of one command
    ctx: click.Context,
    actor: str | None,
    action: str | None,
    resource_kind: str | None,
    resource_id: str | None,
    outcome: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    *,
    everywhere: bool,
) -> None:
    """List events, newest first."""
    session = session_of(ctx)
    events = session.client.walk(
        "/audit",
        limit,
        namespace=None if everywhere else (session.context.namespace or None),
        actorId=actor,
        action=action,
        resourceKind=resource_kind,
        resourceId=resource_id,
        outcome=outcome,
        since=None if since is None else since.isoformat(),
        until=None if until is None else until.isoformat(),
    )
    show_list(session, events, COLUMNS)
