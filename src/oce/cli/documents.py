"""Files that people write: YAML or JSON in, YAML out; and secret values from a file or standard input, never from an argument."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read_text(path: str) -> str:
    """Return the text of a file, or of standard input for `-`. Raises click.ClickException."""
    try:
        if path == "-":
            return sys.stdin.read()
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path} cannot be read: {_reason(error)}.") from None


def read_documents(path: str) -> list[dict[str, Any]]:
    """Return the objects of a YAML (several documents) or JSON file. Raises click.ClickException that names the place."""
    text = read_text(path)
    try:
        documents = [
            item for item in yaml.load_all(text, Loader=_LOADER) if item is not None
        ]  # a safe loader, in C where there is one
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise click.ClickException(f"{path}{where}: {error.problem or 'not YAML'}.") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise click.ClickException(f"{path} is neither YAML nor JSON.") from None
    for number, item in enumerate(documents, 1):
        if not isinstance(item, dict):
            raise click.ClickException(f"{path}: document {number} is not an object.")
    return documents


def read_document(path: str) -> dict[str, Any]:
    """Return the only object of a file."""
    documents = read_documents(path)
    if len(documents) != 1:
        raise click.ClickException(f"{path} holds {len(documents)} documents; one is wanted.")
    return documents[0]


def read_value(path: str) -> str:
    """Return a secret value; one line break at its end is not part of it."""
    value = read_text(path)
    return value.removesuffix("\n").removesuffix("\r")


def dump_yaml(document: object) -> str:
    """Return a document as YAML in its own order."""
    return str(yaml.dump(document, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120))


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or type(error).__name__).lower()
