"""Commands that are imported when they are used.

`occ --help` must be quick and a broken or missing room must not take the others with it, so the tree is a table of words, import
paths and help lines; a module is imported only when its command is named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


def load(path: str) -> Any:  # noqa: ANN401 # whatever the module calls by that name
    """Import `module:name`. Raises ImportError and AttributeError."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class LazyGroup(click.Group):
    """A group whose commands are `{word: (import path, help line)}`."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 # click's own parameters
        table: Mapping[str, tuple[str, str]] | None = None,
        **kwargs: Any,  # noqa: ANN401 # click's own parameters
    ) -> None:
        super().__init__(*args, **kwargs)
        self._table = dict(table or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the words in the order of the table."""
        return [*self._table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; what cannot be imported becomes a command that says so."""
        if cmd_name not in self._table:
            return super().get_command(ctx, cmd_name)
        path, _help = self._table[cmd_name]
        try:
            command = load(path)
        except (ImportError, AttributeError) as error:
            return _missing(cmd_name, error)
        assert isinstance(command, click.Command)  # noqa: S101 # the table names commands
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command by the word of the table, whatever the loaded object calls itself."""
        word, command, rest = super().resolve_command(ctx, args)
        return (args[0] if args and args[0] in self._table else word), command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, importing nothing."""
        rows = [(word, text) for word, (_path, text) in self._table.items()]
        for word in super().list_commands(ctx):
            command = super().get_command(ctx, word)
            rows.append((word, command.get_short_help_str() if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _missing(word: str, error: Exception) -> click.Command:
    sentence = f"`occ {word}` is not part of this installation ({type(error).__name__}: {error})."

    def refuse(**_given: object) -> None:
        raise click.ClickException(sentence)

    return click.Command(
        word,
        callback=refuse,
        help=sentence,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
