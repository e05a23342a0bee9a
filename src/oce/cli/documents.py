"""YAML (and so JSON) in, YAML out. The only module of the command line that knows the format."""

from __future__ import annotations

from typing import Any

import click
import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def parse(text: str, path: str) -> list[dict[str, Any]]:
    """Return the objects of a YAML (several documents) or JSON text read from `path`. Raises click.ClickException that names the place."""
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


def dump_yaml(document: object) -> str:
    """Return a document as YAML in its own order."""
    return str(yaml.dump(document, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120))
