"""`occ agent policy`: what an Agent may reach; what it is denied, and the rule that would allow it.

The draft's additions stand in the Agent's Configuration. `set` changes them, `apply` puts them in force on what runs, a deploy takes
them along. What the provider suggests and what a workload caused is shown without control characters and never acted on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from oce.cli.files import read_document
from oce.cli.lazy import load
from oce.cli.output import Column, printable, show, show_list
from oce.cli.resources import DRY_RUN, NAME, group
from oce.cli.session import session_of

if TYPE_CHECKING:
    from oce.cli.session import Session
    from oce.client.api import Resource

policy = group("policy", "What an Agent may reach beside the operator's defaults.")

RULE_COLUMNS: Final[tuple[Column, ...]] = (
    ("ORIGIN", "origin"),
    ("RULE", "name"),
    (
        "PROGRAMS",
        lambda rule: ", ".join(str(one.get("path")) for one in _objects(rule, "binaries")),
    ),
    ("REACHES", lambda rule: "; ".join(_endpoint(one) for one in _objects(rule, "endpoints"))),
)
DRAFT_COLUMNS: Final[tuple[Column, ...]] = (
    ("CONFIGURATION", "configurationId"),
    ("GENERATION", "generation"),
    ("RULES", lambda draft: ", ".join(_name(rule) for rule in draft["additions"])),
)
APPLICATION_COLUMNS: Final[tuple[Column, ...]] = (
    ("OPERATION", "operationId"),
    ("STATE", "state"),
    ("REVISION", "revisionId"),
    ("POLICY VERSION", "observation.policyVersion"),
    ("LOADED", "observation.loadState"),
    ("MATCHES", "observation.matches"),
)
RECOMMENDATION_COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("STATE", "state"),
    ("PROGRAM", "binary"),
    ("HOST", "host"),
    ("PORT", "port"),
    ("SEEN", "observations"),
    ("REASON (UNTRUSTED)", "reason"),
)
_IF_GENERATION = click.option(
    "--if-generation",
    type=click.IntRange(1),
    help="Only if the Configuration still has this generation.",
)


def _name(rule: object) -> str:
    """Return a rule's name; a draft that was written as a Configuration may hold anything in a rule's place."""
    return str(rule.get("name")) if isinstance(rule, dict) else "(not a rule)"


def _row(origin: str, rule: object) -> Resource:
    return {**(rule if isinstance(rule, dict) else {}), "origin": origin, "name": _name(rule)}


def _objects(rule: Resource, member: str) -> list[dict[str, Any]]:
    found = rule.get(member)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _endpoint(endpoint: dict[str, Any]) -> str:
    listed = endpoint.get("ports")
    ports = ",".join(str(port) for port in (listed if isinstance(listed, list) else [listed]))
    protocol = str(endpoint.get("protocol", "tcp"))
    words = (
        f"{endpoint.get('host')}:{ports}{endpoint.get('path', '')}",
        "" if protocol == "tcp" else protocol,
        str(endpoint.get("access", "")),
        "uninspected" if endpoint.get("tls") == "skip" else "",
        "audit only" if endpoint.get("enforcement") == "audit" else "",
    )
    return " ".join(word for word in words if word)


@policy.command()
@NAME
@click.pass_context
def get(ctx: click.Context, name: str) -> None:
    """Show the draft, what is in force, and what the provider says just now. Exit code 1 when they disagree."""
    session = session_of(ctx)
    found = session.client.read(session.client.policy_path(name))
    live = found["live"]
    seen = live.get("observation")
    agrees = seen is None or (seen["matches"] and seen["loadState"] == "loaded")
    if session.output != "table":
        show(session, found, ())
    else:
        _tell(session, found, agrees=agrees)
    if not agrees:
        ctx.exit(1)


def _tell(session: Session, found: Resource, *, agrees: bool) -> None:
    in_force, draft, live = found["inForce"], found["draft"], found["live"]
    rows: list[Resource] = []
    if in_force is not None:
        rows += [_row("default", rule) for rule in in_force["defaults"] or ()]
        rows += [_row(in_force["origin"], rule) for rule in in_force["additions"] or ()]
    if found["draftApplied"] is not True:
        rows += [_row("draft", rule) for rule in draft["additions"]]
    if rows:
        show_list(session, rows, RULE_COLUMNS)
    else:
        click.echo("No rules: the Sandbox reaches what its credential sources bring, nothing else.")
    where = f"Draft: Configuration {draft['configurationId']}, generation {draft['generation']}."
    if in_force is None:
        click.echo(f"{where} Nothing is deployed.")
        return
    applied = "It is in force." if found["draftApplied"] else "It is not in force: apply or deploy."
    click.echo(f"{where} {applied}")
    if live["status"] != "observed":
        click.echo(f"In force by our records; not observed: {live.get('reason')}.")
    elif agrees:
        click.echo(f"Observed: policy version {live['observation']['policyVersion']}, loaded.")
    else:
        state = live["observation"]["loadState"]
        click.echo(f"Observed: not what our records say ({state}).", err=True)
    if "unconfirmedOperationId" in in_force:
        click.echo(
            f"Operation {in_force['unconfirmedOperationId']} was sent; its outcome is not known. Apply again.",
            err=True,
        )


def _rules(path: str) -> list[Any]:
    """Return the rules of a file: `additions: [...]`, or one rule. Raises click.ClickException."""
    document = read_document(path)
    if "endpoints" in document:
        return [document]
    if set(document) != {"additions"} or not isinstance(document["additions"], list):
        raise click.ClickException(
            f"{path}: a rule, or `additions` with a list of rules, is wanted."
        )
    return document["additions"]


@policy.command("set")
@NAME
@click.option("-f", "--file", "path", metavar="PATH", help="All rules; `-` reads standard input.")
@click.option("--add", "added", metavar="PATH", help="Add the rules of this file to the draft.")
@click.option(
    "--remove", "removed", multiple=True, metavar="RULE", help="Take a rule out, by name."
)
@click.option("--clear", is_flag=True, help="Remove every addition.")
@_IF_GENERATION
@DRY_RUN
@click.pass_context
def set_(  # the options of one command
    ctx: click.Context,
    name: str,
    path: str | None,
    added: str | None,
    removed: tuple[str, ...],
    if_generation: int | None,
    *,
    clear: bool,
    dry_run: bool,
) -> None:
    """Change the draft's rules; what runs is untouched until `apply` or a deploy.

    \b
    A rule:
      name: example
      binaries: [{path: /usr/bin/python3.11}]
      endpoints: [{host: example.com, ports: [443], protocol: rest, access: read_only}]
    """  # noqa: D301 - click's mark is the backspace character
    edits = added is not None or bool(removed)
    if [path is not None, edits, clear].count(True) != 1:
        raise click.UsageError("Give --file, or --add and --remove, or --clear.")
    session = session_of(ctx)
    generation = if_generation
    wanted: list[Any] = [] if path is None else _rules(path)
    if edits:
        draft = session.client.read(session.client.policy_path(name))["draft"]
        generation = generation or int(draft["generation"])
        wanted = _edited(draft["additions"], [] if added is None else _rules(added), removed)
    changed = session.client.set_policy(name, wanted, generation=generation, dry_run=dry_run)
    if dry_run:
        click.echo("The rules would be accepted. Nothing was changed.")
        return
    show(session, changed, DRAFT_COLUMNS)
    click.echo(f"To put it in force: occ agent policy apply {name}", err=True)


def _edited(present: list[Any], added: list[Any], removed: tuple[str, ...]) -> list[Any]:
    """Return the rules without the removed and with the added ones; an added rule replaces the one of its name."""
    names = {_name(rule) for rule in present}
    missing = [one for one in removed if one not in names]
    if missing:
        raise click.ClickException(f"The draft has no rule {', '.join(missing)}.")
    gone = {*removed, *(_name(rule) for rule in added)}
    return [rule for rule in present if _name(rule) not in gone] + added


@policy.command()
@NAME
@_IF_GENERATION
@DRY_RUN
@click.pass_context
def apply(ctx: click.Context, name: str, if_generation: int | None, *, dry_run: bool) -> None:
    """Put the draft's rules in force on the running revision. Exit code 1 until they are seen loaded and active."""
    session = session_of(ctx)
    done = session.client.apply_policy(name, generation=if_generation, dry_run=dry_run)
    if dry_run:
        click.echo("The rules would be sent. Nothing was changed.")
        return
    show(session, done, APPLICATION_COLUMNS)
    if done["state"] != "confirmed":
        click.echo("Accepted, and not seen in force yet: repeat the command to look.", err=True)
        ctx.exit(1)


@policy.command()
@NAME
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True)
@click.pass_context
def recommendations(ctx: click.Context, name: str, limit: int) -> None:
    """Show what the provider suggests. Untrusted: a workload can provoke suggestions; none is applied by itself."""
    session = session_of(ctx)
    path = f"{session.client.policy_path(name)}/recommendations"
    found = session.client.read(path, limit=str(limit))
    if session.output != "table":
        show(session, found, ())
    else:
        show_list(session, found["recommendations"], RECOMMENDATION_COLUMNS)


@policy.command()
@NAME
@click.option("--binary", required=True, metavar="PATH", help="The program, links followed.")
@click.option("--host", required=True)
@click.option("--port", type=click.IntRange(1, 65535), default=443, show_default=True)
@click.option("--method", help="An HTTP method; without one the connection alone is judged.")
@click.option("--path", help="With --method: the path of the request.  [/]")
@click.option("--draft", is_flag=True, help="Judge the draft instead of what is in force.")
@click.option("--addition", is_flag=True, help="Print the rule alone, for `policy set --add -`.")
@click.pass_context
def explain(  # the options of one command
    ctx: click.Context,
    name: str,
    binary: str,
    host: str,
    port: int,
    method: str | None,
    path: str | None,
    *,
    draft: bool,
    addition: bool,
) -> None:
    """Say whether a program may reach a place, by which rule, and what would allow it. Exit code 1 when it may not."""
    session = session_of(ctx)
    found = session.client.read(
        f"{session.client.policy_path(name)}/explain",
        binary=binary,
        host=host,
        port=str(port),
        method=method,
        path=path,
        basis="draft" if draft else None,
    )
    if addition:
        if "addition" not in found:
            raise click.ClickException(str(found.get("note") or "It is allowed already."))
        click.echo(_yaml(found["addition"]), nl=False)
        return
    if session.output != "table":
        show(session, found, ())
    else:
        _say(name, found)
    if not found["allowed"]:
        ctx.exit(1)


def _say(name: str, found: Resource) -> None:
    click.echo(printable(str(found["sentence"])))
    if found.get("note"):
        click.echo(printable(str(found["note"])))
    if "addition" not in found:
        return
    click.echo("This rule would allow it:\n")
    click.echo("  " + _yaml(found["addition"]).rstrip().replace("\n", "\n  ") + "\n")
    click.echo("Save it, then:")
    click.echo(f"  occ agent policy set {name} --add FILE && occ agent policy apply {name}")


def _yaml(rule: object) -> str:
    return str(load("oce.cli.documents:dump_yaml")(rule))
