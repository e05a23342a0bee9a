"""`occ apply` and `occ diff`: make resources be as files say, or show what would change."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from oce.cli import manifests
from oce.cli.files import read_documents, read_value
from oce.cli.output import show_list
from oce.cli.progress import follow
from oce.cli.session import ResourceCommand, session_of
from oce.client.api import AGENT, NAMESPACE, SECRET, SOURCE, Resource
from oce.client.errors import Refused

if TYPE_CHECKING:
    from oce.cli.manifests import Change, Manifest
    from oce.cli.output import Column
    from oce.cli.session import Session
    from oce.client.api import Client, Kind

_FILES = click.option(
    "-f",
    "--file",
    "paths",
    required=True,
    multiple=True,
    metavar="PATH",
    help="YAML or JSON, one or many documents; `-` reads standard input. May be repeated.",
)
_REPLACE = click.option(
    "--update-secrets", is_flag=True, help="Write the values of Secrets that are there already."
)
COLUMNS: Final[tuple[Column, ...]] = (
    ("ACTION", "action"),
    ("KIND", "kind"),
    ("NAME", "name"),
    ("ID", "id"),
)
_MARKS: Final = {"create": "+", "update": "~", "unchanged": "=", "refused": "!"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What has to happen for one document."""

    manifest: Manifest
    action: str
    body: Resource
    there: Resource | None = None
    changes: tuple[Change, ...] = ()
    note: str = ""


@dataclass(slots=True)
class Names:
    """Turns names into ids where the resource is there, asking once for each."""

    client: Client
    known: dict[tuple[str, str], Resource | None] = field(default_factory=dict)

    def find(self, kind: Kind, name: str) -> Resource | None:
        """Return the resource, or None."""
        key = (kind.word, name)
        if key not in self.known:
            try:
                self.known[key] = self.client.get(kind, name)
            except Refused as error:
                if error.code != "NOT_FOUND":
                    raise
                self.known[key] = None
        return self.known[key]

    def identify(self, kind: Kind, name: str) -> str:
        """Return the id of a resource that is there, else the name."""
        if name.startswith(kind.prefix):
            return name
        found = self.find(kind, name)
        return str(found["id"]) if found else name


def read(paths: tuple[str, ...]) -> list[Manifest]:
    """Return the documents of all files in the order of application. Raises click.ClickException."""
    found: list[Manifest] = []
    for path in paths:
        folder = "." if path == "-" else str(Path(path).parent)
        for number, document in enumerate(read_documents(path), 1):
            try:
                found.append(manifests.parse(document, folder))
            except manifests.ManifestError as error:
                raise click.ClickException(f"{path}, document {number}: {error}") from None
    try:
        return manifests.ordered(found)
    except manifests.ManifestError as error:
        raise click.ClickException(str(error)) from None


def plan(session: Session, found: list[Manifest], *, update_secrets: bool) -> list[Step]:
    """Compare documents with what is there. Raises click.ClickException for a document that cannot be used."""
    names = Names(session.client)
    steps = []
    for item in found:
        namespace = "" if item.kind is NAMESPACE else session.client.namespace()
        try:
            body = manifests.request(item, namespace)
        except manifests.ManifestError as error:
            raise click.ClickException(str(error)) from None
        there = names.find(item.kind, item.name)
        steps.append(_step(item, body, there, names, update_secrets=update_secrets))
    return _reading_again(steps)


def _reading_again(steps: list[Step]) -> list[Step]:
    """Let an unchanged credential source read a Secret again whose value is written: the gateway holds a copy of its own."""
    written = {
        s.manifest.label for s in steps if s.manifest.kind is SECRET and s.action == "update"
    }
    return [
        replace(step, action="update", body={}, note="reads its Secret again")
        if step.manifest.kind is SOURCE
        and step.action == "unchanged"
        and written & set(manifests.references(step.manifest))
        else step
        for step in steps
    ]


def _step(
    item: Manifest, body: Resource, there: Resource | None, names: Names, *, update_secrets: bool
) -> Step:
    if there is None:
        return Step(manifest=item, action="create", body=body)
    if item.kind is SECRET:
        note = "its value is written" if update_secrets else "its value is not compared"
        action = "update" if update_secrets else "unchanged"
        return Step(manifest=item, action=action, body=body, there=there, note=note)
    found = tuple(manifests.changes(item, body, there, names.identify))
    mutable = manifests.MUTABLE.get(item.kind.word, ())
    fixed = [change for change in found if change.path.split("/")[1] not in mutable]
    if fixed:
        note = "cannot be changed; delete it and apply again"
        return Step(
            manifest=item, action="refused", body=body, there=there, changes=found, note=note
        )
    action = "update" if found else "unchanged"
    changed = {key: value for key, value in body.items() if key in mutable}
    note = "its initial files are not compared" if "initialWorkspaceFiles" in body else ""
    return Step(manifest=item, action=action, body=changed, there=there, changes=found, note=note)


def _secret_value(item: Manifest) -> str:
    """Return the value a Secret's document refers to. Raises click.ClickException."""
    source = item.mapping("valueFrom")
    if "env" in source:
        value = os.environ.get(str(source["env"]))
        if not value:
            raise click.ClickException(
                f"{item.label}: the environment variable {source['env']} is not set."
            )
        return value
    return read_value(str(Path(item.folder, str(source["file"]))))


def carry_out(session: Session, step: Step, *, dry_run: bool = False) -> Resource:
    """Do one step and return the resource. The update of what was read names its generation, so nobody's change is lost.

    In a dry run the server judges the same request and changes nothing; a Secret's value stays here, another one stands for it.
    """
    item = step.manifest
    if step.action == "unchanged" and step.there is not None:
        return step.there
    body = dict(step.body)
    if item.kind is SECRET:
        value = _secret_value(item)
        body["value"] = "dry-run" if dry_run else value
        if step.there is not None:
            return session.client.update(
                SECRET, item.name, {"value": body["value"]}, dry_run=dry_run
            )
    if step.there is None:
        return session.client.create(item.kind, body, dry_run=dry_run)
    generation = None if item.kind is SOURCE else step.there.get("generation")
    return session.client.update(
        item.kind, str(step.there["id"]), body, generation=generation, dry_run=dry_run
    )


def rehearse(session: Session, steps: list[Step], *, deploy: bool) -> None:
    """Let the server judge every step that needs nothing which another step would make first. Raises what the steps raise.

    What cannot be judged yet is named on standard error, never passed over.
    """
    made: set[str] = set()
    for step in steps:
        waits_for = sorted(made & set(manifests.references(step.manifest)))
        if waits_for:
            click.echo(
                f"Not judged yet: {step.manifest.label} needs {', '.join(waits_for)}.", err=True
            )
        else:
            carry_out(session, step, dry_run=True)
        if step.action == "create" or waits_for:
            made.add(step.manifest.label)
    changed = any(step.action != "unchanged" for step in steps)
    for step in steps if deploy else ():
        if step.manifest.kind is not AGENT:
            continue
        if changed:
            click.echo(
                f"Not judged yet: the deploy of {step.manifest.label} takes what is applied before it.",
                err=True,
            )
        else:
            session.client.deploy(step.manifest.name, dry_run=True)


def describe(step: Step) -> str:
    """Return the lines that show a step."""
    note = f" ({step.note})" if step.note else ""
    lines = [f"{_MARKS[step.action]} {step.manifest.label}{note}"]
    lines += [f"    {change}" for change in step.changes]
    return "\n".join(lines)


def _show_plan(session: Session, steps: list[Step]) -> None:
    if session.output == "table":
        click.echo("\n".join(describe(step) for step in steps))
        return
    rows: list[dict[str, Any]] = [
        {
            "action": step.action,
            "kind": step.manifest.kind.word,
            "name": step.manifest.name,
            "changes": [
                {"path": change.path, "before": change.before, "after": change.after}
                for change in step.changes
            ],
        }
        for step in steps
    ]
    show_list(session, rows, COLUMNS)


def _refuse(steps: list[Step]) -> None:
    refused = [step for step in steps if step.action == "refused"]
    if refused:
        click.echo("\n".join(describe(step) for step in refused), err=True)
        raise click.ClickException("Nothing was changed.")


@click.command(cls=ResourceCommand)
@_FILES
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would change, let the server judge it, and change nothing.",
)
@_REPLACE
@click.option(
    "--deploy",
    is_flag=True,
    help="Deploy the Agents of the files that changed, or whose material did.",
)
@click.option(
    "--wait", is_flag=True, help="With --deploy: show the steps and return when it is over."
)
@click.pass_context
def apply(  # the options of one command
    ctx: click.Context,
    paths: tuple[str, ...],
    *,
    dry_run: bool,
    update_secrets: bool,
    deploy: bool,
    wait: bool,
) -> None:
    """Make resources be as files say: Namespace, Secret, CredentialSource, Configuration, Agent."""
    session = session_of(ctx)
    steps = plan(session, read(paths), update_secrets=update_secrets)
    if dry_run:
        _show_plan(session, steps)
        _refuse(steps)
        rehearse(session, steps, deploy=deploy)
        return
    _refuse(steps)
    rows: list[Resource] = []
    agents: list[Step] = []
    for step in steps:
        made = carry_out(session, step)
        rows.append(
            {
                "action": {"create": "created", "update": "updated"}.get(step.action, step.action),
                "kind": step.manifest.kind.word,
                "name": step.manifest.name,
                "id": made["id"],
            }
        )
        if step.manifest.kind is AGENT:
            agents.append(step)
    show_list(session, rows, COLUMNS)
    if deploy:
        _deploy(
            session, agents, changed=any(step.action != "unchanged" for step in steps), wait=wait
        )


def _deploy(session: Session, agents: list[Step], *, changed: bool, wait: bool) -> None:
    """Deploy Agents that something changed for, or that do not run."""
    for step in agents:
        running = step.there is not None and step.there.get("desiredRuntimeState") == "running"
        if not changed and running:
            continue
        revision = session.client.deploy(step.manifest.name)
        click.echo(f"Deploying {step.manifest.label}: {revision['id']}", err=True)
        if wait:
            follow(session, step.manifest.name, str(revision["id"]))


@click.command(cls=ResourceCommand)
@_FILES
@_REPLACE
@click.option("--exit-code", is_flag=True, help="Exit with 1 when there are differences.")
@click.pass_context
def diff(
    ctx: click.Context, paths: tuple[str, ...], *, update_secrets: bool, exit_code: bool
) -> None:
    """Show what `apply` would change."""
    session = session_of(ctx)
    steps = plan(session, read(paths), update_secrets=update_secrets)
    _show_plan(session, steps)
    if exit_code and any(step.action != "unchanged" for step in steps):
        ctx.exit(1)
