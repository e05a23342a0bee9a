"""`occ up | down | status | doctor | demo`: what a person types to run one machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from oce.client.context import Contexts, home
from oce.dev import demonstration, purge, rights
from oce.dev.daemon import FAILURES, prepare, sentence, until_stopped
from oce.dev.machine import Machine, MachinePlan, Step
from oce.dev.postgres import Postgres, PostgresPlan
from oce.dev.programs import alive
from oce.dev.state import Lock, StateDirectory, default_root
from oce.dev.survey import ComponentStatus, survey

_STOP_SECONDS: Final = 90.0
_STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where everything is kept (default: OCC_STATE_DIR, /var/lib/oce for root, else ~/.local/state/oce).",
)
_CONTEXT = click.option(
    "--context",
    "context_name",
    default="local",
    show_default=True,
    help="Name of the context that other commands find.",
)


def _root(state_dir: Path | None) -> Path:
    return (state_dir or default_root()).absolute()


@click.command()
@_STATE_DIR
@_CONTEXT
@click.option(
    "--port-base",
    type=click.IntRange(1024, 65_000),
    help="First of five consecutive loopback ports; kept for next time.",
)
@click.option("--detach", is_flag=True, help="Return when everything serves.")
def up(state_dir: Path | None, context_name: str, port_base: int | None, *, detach: bool) -> None:
    """Start the control plane on this machine and keep it running."""
    root = _root(state_dir)
    if detach:
        _detached(root, context_name, port_base)
        return
    try:
        plan = prepare(root, port_base, context_name)
        asyncio.run(_foreground(plan))
    except* FAILURES as group:
        raise click.ClickException(sentence(group)) from None


async def _foreground(plan: MachinePlan) -> None:
    stop = asyncio.Event()
    waiting = asyncio.ensure_future(until_stopped(stop))
    try:
        async with Machine(plan, report=_print_step) as machine:
            _print_ready(machine.context.url, machine.context.gateway_url, plan.state.root)
            while not waiting.done():
                await _watch(machine, waiting)
            click.echo("stopping; data stays")
    finally:
        waiting.cancel()


async def _watch(machine: Machine, waiting: asyncio.Future[None]) -> None:
    """Print a line when a program's state changes; a live table would hide the log of a long night."""
    known = {state.program.name: (state.ready, state.restarts) for state in machine.keeper.states()}
    while not waiting.done():
        await asyncio.wait({waiting}, timeout=0.5)
        for state in machine.keeper.states():
            now = (state.ready, state.restarts)
            if known.get(state.program.name) != now:
                known[state.program.name] = now
                what = "serves" if state.ready else f"ended with {state.last_exit}; restarting"
                click.echo(
                    f"{time.strftime('%H:%M:%S')}  {state.program.name:<14} {what} (restarts: {state.restarts})"
                )


def _print_step(step: Step) -> None:
    click.echo(f"  {step.name:<14} {step.milliseconds:7.0f} ms")


def _print_ready(url: str, gateway: str, root: Path) -> None:
    click.echo(f"\nThe control plane serves at {url}, Agents at {gateway}.")
    click.echo(f"State: {root}. Next: occ agent init hello > hello.yaml")


def _detached(root: Path, context_name: str, port_base: int | None) -> None:
    command = [
        sys.executable,
        "-m",
        "oce.dev.daemon",
        "--state-dir",
        str(root),
        "--context",
        context_name,
    ]
    if port_base is not None:
        command += ["--port-base", str(port_base)]
    process = subprocess.Popen(  # noqa: S603 - our own program
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    if process.stdout is None:
        raise click.ClickException("the background process has no output")
    for line in process.stdout:
        document: dict[str, Any] = json.loads(line)
        if "step" in document:
            _print_step(Step(document["step"], document["milliseconds"]))
        elif "error" in document:
            process.wait()
            raise click.ClickException(document["error"])
        elif "ready" in document:
            _print_ready(document["context"]["url"], document["context"]["gateway_url"], root)
            return
    raise click.ClickException(
        f"the background process ended with {process.wait()} before it was ready; its logs are in {root / 'logs'}"
    )


@click.command()
@_STATE_DIR
@_CONTEXT
@click.option(
    "--purge",
    "remove",
    is_flag=True,
    help="Also remove the state directory: every Agent, Secret and workspace.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def down(state_dir: Path | None, context_name: str, *, remove: bool, yes: bool) -> None:
    """Stop everything; data stays unless --purge is given."""
    state = StateDirectory(_root(state_dir))
    if not state.run.exists():
        raise click.ClickException(f"there is nothing at {state.root}; `occ up` makes it")
    if remove and not yes:
        click.confirm(
            f"Remove {state.root} with every Agent, Secret and workspace in it?", abort=True
        )
    holder = Lock(state).holder()
    if holder is not None:
        _stop_holder(holder, state)
    try:
        with Lock(state):
            database = Postgres(PostgresPlan(root=state.postgres, runtime=state.runtime))
            left = asyncio.run(purge.stop_leftovers(state, database))
    except FAILURES as error:
        raise click.ClickException(str(error)) from None
    click.echo("stopped" if holder is not None or left else "nothing was running")
    if remove:
        purge.remove(state)
        Contexts(home(os.environ)).remove(context_name)
        click.echo(f"removed {state.root}")
    else:
        click.echo(f"data stays in {state.root}; `occ up` brings every Agent back that was serving")


def _stop_holder(holder: int, state: StateDirectory) -> None:
    if holder <= 0:
        raise click.ClickException(
            "another process holds the state directory and does not say which; stop it first"
        )
    os.kill(holder, signal.SIGTERM)
    end = time.monotonic() + _STOP_SECONDS
    while alive(holder) and Lock(state).holder() is not None:
        if time.monotonic() > end:
            raise click.ClickException(
                f"process {holder} did not stop within {_STOP_SECONDS:.0f} s"
            )
        time.sleep(0.05)


@click.command()
@_STATE_DIR
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def status(state_dir: Path | None, output: str) -> None:
    """Show what runs, each line with the evidence it rests on."""
    state = StateDirectory(_root(state_dir))
    if not state.ports_file.exists():
        raise click.ClickException(f"there is nothing at {state.root}; `occ up` makes it")
    found = asyncio.run(survey(state))
    if output == "json":
        click.echo(
            json.dumps(
                [
                    {"component": c.component, "serving": c.serving, "evidence": c.evidence}
                    for c in found
                ],
                indent=2,
            )
        )
    else:
        _print_survey(found)
    if not all(component.serving for component in found):
        sys.exit(1)


def _print_survey(found: tuple[ComponentStatus, ...]) -> None:
    for component in found:
        click.echo(
            f"{component.component:<14} {'serving' if component.serving else 'DOWN':<8} {component.evidence}"
        )


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def doctor(output: str) -> None:
    """Try every right that confinement needs, once, and say how to get what is missing."""
    found = asyncio.run(rights.examine())
    if output == "json":
        click.echo(json.dumps([finding.document() for finding in found], indent=2))
    else:
        for finding in found:
            click.echo(finding.line())
    if any(finding.required and not finding.held for finding in found):
        click.echo(
            "\nSandboxes cannot start on this machine; nothing weaker is started instead.", err=True
        )
        sys.exit(1)


@click.command()
@click.option(
    "--keep", is_flag=True, help="Keep the state directory afterwards (for a look around)."
)
def demo(*, keep: bool) -> None:
    """Show a real Codex agent answering from inside a Sandbox, in a throw-away state directory."""
    sys.exit(demonstration.run(keep=keep))
