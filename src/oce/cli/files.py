"""Reading what people wrote: a file or standard input; secret values come from there and never from an argument.

Parsing YAML costs a tenth of a short command's time, so the parser is imported when a document is read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import click

from oce.cli.lazy import load


def read_text(path: str) -> str:
    """Return the text of a file, or of standard input for `-`. Raises click.ClickException."""
    try:
        if path == "-":
            return sys.stdin.read()
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or type(error).__name__).lower()
        raise click.ClickException(f"{path} cannot be read: {reason}.") from None


def read_documents(path: str) -> list[dict[str, Any]]:
    """Return the objects of a YAML (several documents) or JSON file. Raises click.ClickException that names the place."""
    parse = load("oce.cli.documents:parse")
    return cast("list[dict[str, Any]]", parse(read_text(path), path))


def read_document(path: str) -> dict[str, Any]:
    """Return the only object of a file. Raises click.ClickException."""
    documents = read_documents(path)
    if len(documents) != 1:
        raise click.ClickException(f"{path} holds {len(documents)} documents; one is wanted.")
    return documents[0]


def read_value(path: str) -> str:
    """Return a secret value; one line break at its end is not part of it."""
    value = read_text(path)
    return value.removesuffix("\n").removesuffix("\r")
