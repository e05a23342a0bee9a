"""What every command shares: the options for reaching the control plane, the client they make, and the output format.

The options may stand before or after the command's words: `occ -o json agent list` and `occ agent list -o json` mean the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Final

import click

from oce.client.api import Client
from oce.client.context import Context, Contexts, home, select, timeout_seconds
from oce.client.turns import Turns

FORMATS: Final = ("table", "json", "yaml")


@dataclass(slots=True)
class Session:
    """The choices of one invocation."""

    overrides: dict[str, str | None] = field(default_factory=dict)
    timeout: float | None = None
    output: str = "table"
    _context: Context | None = None
    _client: Client | None = None

    @property
    def contexts(self) -> Contexts:
        """The contexts of the person who runs the command."""
        return Contexts(home(os.environ))

    @property
    def context(self) -> Context:
        """The selected context. Raises ContextError."""
        if self._context is None:
            self._context = select(self.contexts, os.environ, self.overrides)
        return self._context

    @property
    def client(self) -> Client:
        """The client of the selected context. Raises ContextError."""
        if self._client is None:
            self._client = Client(self.context, timeout=timeout_seconds(os.environ, self.timeout))
        return self._client

    def turns(self) -> Turns:
        """Return the Agent Gateway's client. Raises ContextError."""
        return Turns(self.context, timeout=timeout_seconds(os.environ, self.timeout))

    def close(self) -> None:
        """Close what was opened."""
        if self._client is not None:
            self._client.close()


def session_of(ctx: click.Context) -> Session:
    """Return the invocation's session, making it on first use."""
    return ctx.ensure_object(Session)


def _set(name: str) -> Any:  # noqa: ANN401 # a click callback
    def keep(ctx: click.Context, _param: click.Parameter, value: Any) -> None:  # noqa: ANN401 # what click parsed
        if value is None:
            return
        session = session_of(ctx)
        if name == "output":
            session.output = value
        elif name == "timeout":
            session.timeout = value
        else:
            session.overrides[name] = value

    return keep


def _option(*names: str, key: str, **settings: Any) -> click.Option:  # noqa: ANN401 # click's own parameters
    return click.Option(names, callback=_set(key), expose_value=False, **settings)


def output_option(formats: tuple[str, ...] = FORMATS) -> click.Option:
    """Return `-o`."""
    return _option(
        "-o",
        "--output",
        key="output",
        type=click.Choice(formats),
        help="How to print the result.",
    )


def namespace_option() -> click.Option:
    """Return `-n`."""
    return _option(
        "-n", "--namespace", key="namespace", metavar="NAME", help="Namespace, by name or id."
    )


def connection_options() -> list[click.Parameter]:
    """Return the options that say where the control plane is."""
    return [
        _option("--context", key="context", metavar="NAME", help="Context to use."),
        _option("--url", key="url", metavar="URL", help="Origin of the API."),
        _option(
            "--service-key-file",
            key="key_file",
            metavar="PATH",
            help="File that holds the service key.",
        ),
        _option(
            "--ca-bundle",
            key="ca_file",
            metavar="PATH",
            help="CA certificates to believe instead of the system's.",
        ),
        _option(
            "--timeout-seconds",
            key="timeout",
            type=click.FloatRange(min=0, min_open=True),
            help="How long one request may take. [30]",
        ),
        namespace_option(),
        output_option(),
    ]


class ResourceCommand(click.Command):
    """A command that talks to the control plane: it takes `-o` and `-n` itself too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 # click's own parameters
        super().__init__(*args, **kwargs)
        self.params.extend((namespace_option(), output_option()))


class ResourceGroup(click.Group):
    """A group of such commands."""

    command_class = ResourceCommand
