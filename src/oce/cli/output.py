"""Printing results: a plain table for people, JSON or YAML for programs.

A table is drawn here in a dozen lines instead of by a library, whose import alone would cost more time than the request.
"""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any

import click

from oce.cli.lazy import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oce.cli.session import Session

Column = tuple[str, "str | Callable[[dict[str, Any]], object]"]
"""Heading, and the member (dots go inside) or a function of the resource."""


def value_of(item: dict[str, Any], source: str | Callable[[dict[str, Any]], object]) -> str:
    """Return one cell; what is not set is `-`."""
    found: object = item
    if callable(source):
        found = source(item)
    else:
        for part in source.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    if found is None or found in ("", [], {}):
        return "-"
    if isinstance(found, bool):
        return "yes" if found else "no"
    return printable(str(found))


def printable(text: str) -> str:
    """Replace what could move a terminal's cursor."""
    return "".join(
        character if character == "\t" or unicodedata.category(character)[0] != "C" else "?"
        for character in text
    )


def table(items: Iterable[dict[str, Any]], columns: Sequence[Column]) -> str:
    """Return the rows as aligned text under their headings."""
    rows = [[heading for heading, _ in columns]]
    rows += [[value_of(item, source) for _, source in columns] for item in items]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _structured(document: object, output: str) -> str:
    if output == "yaml":
        return str(load("oce.cli.documents:dump_yaml")(document)).rstrip()
    return json.dumps(document, indent=2, ensure_ascii=False)


def show_list(session: Session, items: Iterable[dict[str, Any]], columns: Sequence[Column]) -> None:
    """Print a list."""
    found = list(items)
    if session.output != "table":
        click.echo(_structured(found, session.output))
    elif found:
        click.echo(table(found, columns))
    else:
        click.echo("No resources found.")


def show(session: Session, item: dict[str, Any], columns: Sequence[Column]) -> None:
    """Print one resource."""
    if session.output != "table":
        click.echo(_structured(item, session.output))
    else:
        click.echo(table([item], columns))


def show_deleted(session: Session, kind: str, identifier: str, verb: str = "Deleted") -> None:
    """Say what was deleted."""
    if session.output == "table":
        click.echo(f"{verb} {kind} {identifier}.")
    else:
        click.echo(
            _structured({verb.lower(): True, "kind": kind, "id": identifier}, session.output)
        )
