"""`occ agent`: the records and their life. Talking to an Agent is in `chat`, its first file in `starter`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from oce.cli.chat import chat
from oce.cli.files import read_document, read_text
from oce.cli.output import Column, printable, show, show_deleted, show_list
from oce.cli.policies import policy
from oce.cli.progress import DEPLOYMENT_COLUMNS, follow, until
from oce.cli.resources import DRY_RUN, FILE, LIMIT, NAME, WAIT, add_verbs, group, is_gone
from oce.cli.session import namespace_option, output_option, session_of
from oce.cli.starter import DEFAULT_MODEL, manifest
from oce.cli.times import moment
from oce.client.api import AGENT
from oce.client.errors import Refused

if TYPE_CHECKING:
    from datetime import datetime

    from oce.cli.session import Session
    from oce.client.api import Resource

COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("NAME", "name"),
    ("CONFIGURATION", "configurationId"),
    ("MODE", "executionMode"),
    ("DESIRED", "desiredRuntimeState"),
    ("STATUS", "status"),
    ("ACTIVE REVISION", "activeRevisionId"),
)
REVISION_COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("REVISION", "revision"),
    ("AGENT", "agentId"),
    ("CONFIGURATION", "configurationId"),
    ("GENERATION", "configurationGeneration"),
    ("CREATED", "createdAt"),
)
_FOLLOW = click.option("--wait", is_flag=True, help="Show the steps and return when it is over.")
_HARNESS_DOWN: Final = frozenset({"lost", "unknown"})


def harness_text(report: dict[str, Any] | None) -> str:
    """Return live evidence in a few words; what was not seen is never shown as healthy."""
    if report is None:
        return "-"
    if report["status"] != "observed":
        return f"{report['status']} ({report['reason']})" if report.get("reason") else "unobserved"
    harness = report.get("harness") or {}
    code = f" {harness['code']}" if harness.get("code") else ""
    return f"{harness.get('state', 'unknown')}{code}"


agent = group("agent", "Agents: create, deploy, stop, observe, talk to.")
add_verbs(agent, AGENT, COLUMNS, verbs=("list",))
agent.add_command(chat)
agent.add_command(policy)


def _observed(session: Session, name: str) -> dict[str, Any]:
    """Ask what the Harness does now; a refusal is an unknown state with its reason, not a healthy one."""
    try:
        return session.client.read(f"{session.client.path_of(AGENT, name)}/harness-status")
    except Refused as error:
        return {"status": "unobserved", "reason": error.code}


@agent.command()
@NAME
@click.pass_context
def get(ctx: click.Context, name: str) -> None:
    """Show an Agent and what its Harness does right now."""
    session = session_of(ctx)
    found = session.client.get(AGENT, name)
    found["harnessStatus"] = _observed(session, str(found["id"]))
    columns = (*COLUMNS, ("HARNESS", lambda item: harness_text(item["harnessStatus"])))
    show(session, found, columns)


@agent.command()
@click.argument("name", required=False)
@click.option("--configuration", metavar="NAME|ID", help="What it runs with.")
@click.option("--source", metavar="NAME|ID", help="Credential source of its model.")
@click.option(
    "--mode", type=click.Choice(("dedicated", "embedded")), default="dedicated", show_default=True
)
@click.option(
    "--workspace-file",
    "files",
    multiple=True,
    metavar="PATH",
    help="First content of its workspace: AGENTS.md, SOUL.md, IDENTITY.md or USER.md. May be repeated.",
)
@click.option("-f", "--file", "path", metavar="PATH", help="The whole request as YAML or JSON.")
@click.pass_context
def create(  # the options of one command
    ctx: click.Context,
    name: str | None,
    configuration: str | None,
    source: str | None,
    mode: str,
    files: tuple[str, ...],
    path: str | None,
) -> None:
    """Create an Agent; starts nothing.

    For example: occ agent create demo --configuration demo --source openai --workspace-file AGENTS.md
    """
    session = session_of(ctx)
    if path is not None:
        if files:
            raise click.UsageError("With --file the workspace files stand in the request.")
        body = read_document(path)
    elif name is not None and configuration is not None:
        body = {"name": name, "configurationId": configuration, "executionMode": mode}
        if source is not None:
            body["harnessAuth"] = {"method": "credential_source", "sourceId": source}
            body["credentialSources"] = [{"sourceId": source}]
        if files:
            body["initialWorkspaceFiles"] = _first_files(files)
    else:
        raise click.UsageError("Give a NAME and --configuration, or a request with --file.")
    show(session, session.client.create(AGENT, body), COLUMNS)


def _first_files(paths: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        name = Path(path).name
        if name in found:
            raise click.UsageError(f"{name} is there twice.")
        found[name] = read_text(path)
    return found


@agent.command()
@NAME
@FILE
@click.option(
    "--if-generation", type=click.IntRange(1), help="Only if it still has this generation."
)
@click.pass_context
def update(ctx: click.Context, name: str, path: str, if_generation: int | None) -> None:
    """Change an Agent's draft; what runs is untouched until the next deploy."""
    session = session_of(ctx)
    changed = session.client.update(AGENT, name, read_document(path), generation=if_generation)
    show(session, changed, COLUMNS)


@agent.command()
@NAME
@WAIT
@click.pass_context
def delete(ctx: click.Context, name: str, *, wait: bool) -> None:
    """Tear an Agent down; its Configuration and Secrets stay."""
    session = session_of(ctx)
    identifier = str(session.client.get(AGENT, name)["id"]) if wait else name
    session.client.delete(AGENT, identifier)
    if wait:
        until(lambda: is_gone(session, AGENT, identifier), f"Deleting {name}")
    show_deleted(session, AGENT.word, name, "Deleted" if wait else "Deleting")


@agent.command()
@NAME
@_FOLLOW
@DRY_RUN
@click.pass_context
def deploy(ctx: click.Context, name: str, *, wait: bool, dry_run: bool) -> None:
    """Put the draft in place. The predecessor serves until the new revision does."""
    session = session_of(ctx)
    if dry_run:
        session.client.deploy(name, dry_run=True)
        click.echo(f"A deploy of {name} would be admitted. Nothing was changed.")
        return
    revision = session.client.deploy(name)
    if wait:
        follow(session, name, str(revision["id"]))
    show(session, revision, REVISION_COLUMNS)


@agent.command()
@NAME
@WAIT
@click.pass_context
def stop(ctx: click.Context, name: str, *, wait: bool) -> None:
    """Stop an Agent; its record and workspace stay."""
    session = session_of(ctx)
    found = session.client.stop(name)
    if wait:

        def stopped() -> bool:
            found.update({"activeRevisionId": None, **session.client.get(AGENT, str(found["id"]))})
            return found["activeRevisionId"] is None

        until(stopped, f"Stopping {name}")
    show(session, found, COLUMNS)


@agent.command()
@NAME
@LIMIT
@click.pass_context
def revisions(ctx: click.Context, name: str, limit: int | None) -> None:
    """List the revisions, newest first; a star marks the active one."""
    session = session_of(ctx)
    active = session.client.get(AGENT, name).get("activeRevisionId")
    found: list[Resource] = [
        {**item, "active": item["id"] == active}
        for item in session.client.walk(f"{session.client.path_of(AGENT, name)}/revisions", limit)
    ]
    columns = (("ACTIVE", lambda item: "*" if item["active"] else None), *REVISION_COLUMNS)
    show_list(session, found, columns)


def _revision(session: Session, name: str, deployment: str | None) -> str:
    if deployment is not None:
        return deployment
    newest = next(
        iter(session.client.walk(f"{session.client.path_of(AGENT, name)}/revisions", 1)), None
    )
    if newest is None:
        raise click.ClickException(f"{name} was never deployed: `occ agent deploy {name}`.")
    return str(newest["id"])


@agent.command("deployment-status")
@NAME
@click.argument("deployment", required=False)
@_FOLLOW
@click.pass_context
def deployment_status(ctx: click.Context, name: str, deployment: str | None, *, wait: bool) -> None:
    """Show how far a deployment is (the newest one by default). Exit code 1 when it failed."""
    session = session_of(ctx)
    revision = _revision(session, name, deployment)
    if wait:
        found = follow(session, name, revision)
    else:
        path = f"{session.client.path_of(AGENT, name)}/deployments/{revision}"
        found = session.client.read(path)
    show(session, found, DEPLOYMENT_COLUMNS)
    if found["status"] == "failed":
        error = found["error"] or {}
        click.echo(f"{error.get('code')}: {error.get('message')}", err=True)
        if error.get("hint"):
            click.echo(f"Hint: {error['hint']}", err=True)
        ctx.exit(1)


@agent.command("harness-status")
@NAME
@click.pass_context
def harness_status(ctx: click.Context, name: str) -> None:
    """Ask the Sandbox provider what the Harness does right now. Exit code 1 unless it was seen running or starting."""
    session = session_of(ctx)
    report = session.client.read(f"{session.client.path_of(AGENT, name)}/harness-status")
    columns: tuple[Column, ...] = (
        ("STATUS", "status"),
        ("HARNESS", "harness.state"),
        ("CODE", "harness.code"),
        ("REASON", "reason"),
        ("RESTARTS", "harness.restarts"),
        ("REVISION", "revisionId"),
        ("OBSERVED", "observedAt"),
    )
    show(session, report, columns)
    state = (report.get("harness") or {}).get("state", "unknown")
    if report["status"] != "observed" or state in _HARNESS_DOWN:
        ctx.exit(1)


def _log_line(record: dict[str, Any]) -> str:
    if record["type"] != "line":
        return f"[{record['type']}: {record.get('count', '')} {record.get('reason', '')}]"
    fields = " ".join(f"{key}={value}" for key, value in record.get("fields", {}).items())
    parts = (
        record.get("time", "-"),
        record.get("level", "unknown").upper().ljust(7),
        record.get("source", ""),
        record.get("message", ""),
        fields,
    )
    return " ".join(part for part in parts if part)


@agent.command()
@NAME
@click.option("--since", type=moment, metavar="WHEN", help="RFC 3339, or an age: 90s, 10m, 2h, 1d.")
@click.option("--limit", type=click.IntRange(1, 1000), default=200, show_default=True)
@click.option(
    "--level", type=click.Choice(("error", "warn", "info", "debug")), help="Least level to show."
)
@click.pass_context
def logs(
    ctx: click.Context, name: str, since: datetime | None, limit: int, level: str | None
) -> None:
    """Show the Sandbox log of the active revision, classified and redacted."""
    session = session_of(ctx)
    page = session.client.read(
        f"{session.client.path_of(AGENT, name)}/logs",
        since=None if since is None else since.isoformat(),
        limit=str(limit),
        minLevel=level,
    )
    if session.output != "table":
        show(session, page, ())
        return
    for record in page["records"]:
        click.echo(printable(_log_line(record)))
    if page["withheld"]:
        click.echo(f"{page['withheld']} lines were withheld.", err=True)
    if page["truncated"]:
        click.echo("There may be more: raise --limit.", err=True)


@agent.command()
@click.argument("name")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Model to use.")
@click.option(
    "-f",
    "--file",
    "target",
    type=click.Path(path_type=Path),
    help="File to write instead of standard output.",
)
def init(name: str, model: str, target: Path | None) -> None:
    """Write a minimal, commented file for `occ apply`: credential, Configuration and Agent for Codex."""
    text = manifest(name, model)
    if target is None:
        click.echo(text, nl=False)
        return
    try:
        with target.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise click.ClickException(f"{target} is there already; it was left alone.") from None
    except OSError as error:
        raise click.ClickException(f"{target} cannot be written: {error.strerror}.") from None
    click.echo(f"Wrote {target}. Next: occ apply -f {target} --deploy --wait")


# `chat` is made apart from the group and takes the group's options like its siblings.
chat.params.extend((namespace_option(), output_option()))
