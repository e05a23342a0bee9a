"""`occ up`: start the supervisor and show what it says.

The supervisor is always a process of its own (`oce.dev.daemon`). In the foreground it is attached: it stops when this command ends, however
it ends. On a terminal a table shows the programs as they are; elsewhere each change is a line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Protocol

import click

from oce.dev.commands.options import STATE_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FIRST_PORT, _LAST_PORT = 1024, 65_000


class View(Protocol):
    """Shows what a supervisor says while it is attached."""

    def __enter__(self) -> object:
        """Begin to show."""

    def __exit__(self, *_: object) -> None:
        """Leave the screen as it is."""

    def programs(self, found: list[dict[str, Any]]) -> None:
        """Show the programs' states."""


@click.command()
@STATE_DIR
@click.option(
    "--context",
    "context_name",
    help="Name of the context that other commands find (default: the one it had, else `local`).",
)
@click.option(
    "--port-base",
    type=click.IntRange(_FIRST_PORT, _LAST_PORT),
    help="First of five consecutive loopback ports; kept for next time.",
)
@click.option("--detach", is_flag=True, help="Return when everything serves.")
def up(state_dir: Path, context_name: str | None, port_base: int | None, *, detach: bool) -> None:
    """Start the control plane on this machine and keep it running.

    In the foreground Ctrl-C stops it. Data stays where it is, and the next `occ up` brings every Agent back that was serving.
    """
    process = _supervisor(state_dir, context_name, port_base, attached=not detach)
    said = _lines(process)
    _show_start(said, process, state_dir)
    if not detach:
        _stay(process, said, state_dir)


def _supervisor(
    root: Path, context: str | None, port_base: int | None, *, attached: bool
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "oce.dev.daemon", "--state-dir", str(root)]
    if context is not None:
        command += ["--context", context]
    if port_base is not None:
        command += ["--port-base", str(port_base)]
    if attached:
        command.append("--attached")
    return subprocess.Popen(  # noqa: S603 - our own program
        command,
        stdin=subprocess.PIPE if attached else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )


def _lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield what the supervisor says. Ctrl-C asks it to stop and goes on listening."""
    stream: IO[str] = process.stdout  # type: ignore[assignment] # it was asked for
    while True:
        try:
            line = stream.readline()
        except KeyboardInterrupt:
            click.echo("\nstopping; data stays", err=True)
            process.send_signal(signal.SIGTERM)
            continue
        if not line:
            return
        yield json.loads(line)


def _show_start(said: Iterator[dict[str, Any]], process: subprocess.Popen[str], root: Path) -> None:
    began = time.monotonic()
    for document in said:
        if "step" in document:
            click.echo(f"  {document['step']:<14} {document['milliseconds']:7.0f} ms")
        elif "error" in document:
            process.wait()
            raise click.ClickException(document["error"])
        elif "stopped" in document:
            process.wait()
            raise click.exceptions.Abort
        elif "ready" in document:
            context = document["context"]
            click.echo(
                f"\nReady after {time.monotonic() - began:.1f} s. The control plane serves at {context['url']}, "
                f"Agents at {context['gateway_url']}."
            )
            click.echo(f"State: {root}. Context: {context['name']}.")
            click.echo("Next: occ agent init hello -f hello.yaml")
            return
    raise click.ClickException(_silent_end(process, root))


def _silent_end(process: subprocess.Popen[str], root: Path) -> str:
    return (
        f"the supervisor ended with {process.wait()} and no word; its log is {root / 'logs' / 'supervisor.log'}. "
        "`occ down` stops what it may have left"
    )


def _stay(process: subprocess.Popen[str], said: Iterator[dict[str, Any]], root: Path) -> None:
    _watch_signals(process)
    click.echo("Ctrl-C stops it.")
    stopped = False
    view = _view()
    with contextlib.suppress(BrokenPipeError), view:
        for document in said:
            if "programs" in document:
                view.programs(document["programs"])
            elif "error" in document:
                raise click.ClickException(document["error"])
            stopped |= "stopped" in document
    if not stopped:
        raise click.ClickException(_silent_end(process, root))
    process.wait()
    click.echo(f"stopped; data stays in {root}")


def _watch_signals(process: subprocess.Popen[str]) -> None:
    """Stop at SIGINT, SIGTERM and SIGHUP.

    A shell without job control starts `occ up &` with SIGINT ignored, yet stopping at it is what this command promises. An ignored SIGHUP is
    the wish of who typed `nohup`, and stays.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: process.send_signal(signal.SIGTERM))


def _view() -> View:
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        # Loading rich takes 100 ms and only a terminal shows it.
        table: View = importlib.import_module("oce.dev.commands.table").Table()
        return table
    return Lines()


class Lines:
    """One line per change, with the time: for logs and pipes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bool, int]] = {}

    def __enter__(self) -> object:
        """Nothing to prepare."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to restore."""

    def programs(self, found: list[dict[str, Any]]) -> None:
        """Print what changed."""
        for one in found:
            now = (one["ready"], one["restarts"])
            before = self._known.get(one["name"], (True, 0))
            self._known[one["name"]] = now
            if now != before:
                click.echo(f"{time.strftime('%H:%M:%S')}  {one['name']:<14} {_told(one)}")


def _told(one: dict[str, Any]) -> str:
    if one["ready"]:
        return f"serves (process {one['pid']}, restarts: {one['restarts']})"
    if one["pid"] is not None:
        return f"starts (process {one['pid']})"
    return f"ended {one['lastExit']}; starting it again; its log: {one['log']}"
