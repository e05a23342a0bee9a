"""Watching a deployment: one line per step on standard error as it happens, then the verdict."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from oce.cli.output import Column, printable
from oce.client.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from oce.cli.session import Session

DEPLOYMENT_COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "deploymentId"),
    ("AGENT", "agentId"),
    ("STATUS", "status"),
    ("ERROR", "error.code"),
    ("LAST ATTEMPT", "progress.lastAttempt.code"),
)
_RECONNECTS: Final = 30
_WAIT_SECONDS: Final = 900.0
_TERMINAL: Final = frozenset({"succeeded", "failed"})


class DeploymentFailed(click.ClickException):
    """The deployment ended without success; shown with the catalogue's sentence and hint."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.hint = str(error.get("hint", ""))

    def show(self, file: Any = None) -> None:  # noqa: ANN401, ARG002 # click's signature
        """Print to standard error."""
        click.echo(f"Error: {self.message}", err=True)
        if self.hint:
            click.echo(f"Hint: {self.hint}", err=True)


def _say(text: str) -> None:
    click.echo(printable(text), err=True)


def _describe(data: dict[str, Any]) -> str:
    took = f" ({data['durationMs'] / 1000:.2f} s)" if data.get("durationMs") is not None else ""
    code = f" {data['code']}" if data.get("code") else ""
    outcome = "" if data.get("outcome") in {None, "", "success"} else f": {data['outcome']}"
    return f"{data['step']}{outcome}{code}{took}"


def follow(session: Session, agent: str, revision: str) -> dict[str, Any]:
    """Print the steps of a deployment until it is over and return its view. Raises DeploymentFailed.

    A broken stream is taken up again where it stopped.
    """
    started = time.monotonic()
    seen = ""
    told = ""
    for attempt in range(_RECONNECTS):
        try:
            for event in session.client.deployment_events(agent, revision, seen):
                seen = event.id or seen
                elapsed = time.monotonic() - started
                if event.name == "step":
                    _say(f"{elapsed:7.2f} s  {_describe(event.data)}")
                elif event.name == "deployment":
                    if event.data["status"] in _TERMINAL:
                        return _verdict(event.data, elapsed)
                    told = _tell(event.data, told, elapsed)
                elif event.name == "error":
                    raise DeploymentFailed(event.data)
        except Unreachable:
            if attempt + 1 == _RECONNECTS:
                raise
        time.sleep(min(1.0, 0.1 * 2**attempt))
    raise Unreachable("The deployment's events end before the deployment does.")


def until(look: Callable[[], bool], what: str) -> None:
    """Wait until `look()` is true, asking again with a growing pause. Raises click.ClickException after 15 minutes."""
    deadline = time.monotonic() + _WAIT_SECONDS
    pause = 0.05
    while not look():
        if time.monotonic() > deadline:
            raise click.ClickException(f"{what} did not happen within {_WAIT_SECONDS:.0f} s.")
        time.sleep(pause)
        pause = min(1.0, pause * 1.5)


def _tell(view: dict[str, Any], told: str, elapsed: float) -> str:
    """Say what the last attempt met, once."""
    last = (view.get("progress") or {}).get("lastAttempt")
    text = f"{view['status']}: {last['code']}: {last['message']}" if last else str(view["status"])
    if text != told:
        _say(f"{elapsed:7.2f} s  {text}")
    return text


def _verdict(view: dict[str, Any], elapsed: float) -> dict[str, Any]:
    _say(f"{elapsed:7.2f} s  {view['status']}")
    if view["status"] == "failed":
        raise DeploymentFailed(view["error"] or {"code": "UNKNOWN_FAILURE", "message": ""})
    return view
