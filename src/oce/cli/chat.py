"""`occ agent chat`: a conversation in the terminal. The thread is kept per Agent, so that the next call goes on with it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from oce.cli.output import printable
from oce.cli.resources import NAME
from oce.cli.session import session_of
from oce.client.api import AGENT
from oce.client.context import write_private
from oce.client.errors import ClientError, TurnFailed

if TYPE_CHECKING:
    from pathlib import Path

    from oce.cli.session import Session


class Conversation:
    """Turns with one Agent on one thread."""

    def __init__(self, session: Session, name: str, thread: str | None, *, new: bool) -> None:
        found = session.client.get(AGENT, name)
        self._session = session
        self._namespace = str(found["namespaceId"])
        self._agent = str(found["id"])
        self._file: Path = session.contexts.folder / "threads" / session.context.name / self._agent
        self.thread = thread or (None if new else self._kept())

    def _kept(self) -> str | None:
        try:
            return self._file.read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def say(self, text: str) -> None:
        """Send one turn and print what comes. Raises TurnFailed, Refused, Unreachable."""
        turns = self._session.turns()
        structured = self._session.output != "table"
        fresh_line = True
        try:
            for event in turns.run(self._namespace, self._agent, text, self.thread):
                if event.name == "thread":
                    self._keep(str(event.data["threadId"]))
                if structured:
                    click.echo(json.dumps({"event": event.name, **event.data}))
                else:
                    fresh_line = _print(event.name, event.data, fresh_line=fresh_line)
        finally:
            turns.close()
            if not fresh_line:
                click.echo()

    def _keep(self, thread: str) -> None:
        if thread != self.thread or not self._file.exists():
            self.thread = thread
            write_private(self._file, thread + "\n")


def _clean(text: str) -> str:
    """Keep line breaks of an answer and nothing else that could move the cursor."""
    return "\n".join(printable(line) for line in text.replace("\r\n", "\n").split("\n"))


def _tool(data: dict[str, Any]) -> str:
    """Return a tool event in one line: the command when it begins, then how it ended."""
    command = _clean(str(data.get("command", "tool"))).replace("\n", " ")
    status = str(data.get("status", ""))
    if status == "inProgress":
        return f"$ {command}"
    code = "" if data.get("exitCode") is None else f", exit code {data['exitCode']}"
    return f"[{command}: {_clean(status)}{code}]"


def _print(name: str, data: dict[str, Any], *, fresh_line: bool) -> bool:
    """Print one event and tell whether the cursor stands at the start of a line."""
    if name == "delta":
        text = _clean(str(data.get("text", "")))
        click.echo(text, nl=False)
        sys.stdout.flush()
        return text.endswith("\n") if text else fresh_line
    if name == "tool":
        if not fresh_line:
            click.echo()
        click.echo(_tool(data), err=True)
        return True
    return fresh_line


@click.command()
@NAME
@click.argument("message", required=False)
@click.option("--thread", metavar="ID", help="Go on with this thread.")
@click.option("--new", is_flag=True, help="Begin a new thread.")
@click.pass_context
def chat(
    ctx: click.Context, name: str, message: str | None, thread: str | None, *, new: bool
) -> None:
    """Talk to an Agent: one MESSAGE, or line by line until end of input.

    The conversation goes on where it was; --new begins another. `-` reads one message from standard input.
    """
    if thread and new:
        raise click.UsageError("Give either --thread or --new.")
    session = session_of(ctx)
    conversation = Conversation(session, name, thread, new=new)
    if message is not None:
        conversation.say(sys.stdin.read() if message == "-" else message)
        return
    _talk(conversation, name)


def _talk(conversation: Conversation, name: str) -> None:
    interactive = sys.stdin.isatty()
    if interactive:
        click.echo(f"Talking to {name}. End with Ctrl-D.", err=True)
    while True:
        if interactive:
            click.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        if not line.strip():
            continue
        try:
            conversation.say(line.strip())
        except TurnFailed as error:
            if not interactive:
                raise
            _told(error)


def _told(error: ClientError) -> None:
    code = f"{error.code}: " if isinstance(error, TurnFailed) else ""
    click.echo(f"Error: {code}{error}", err=True)
    if error.hint:
        click.echo(f"Hint: {error.hint}", err=True)
