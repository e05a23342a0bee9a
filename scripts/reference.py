# ruff: noqa: INP001 - a program of the repository, not a package
"""Write the generated parts of the reference pages from the code that they describe.

A page under `docs/reference/` is written by hand; what a table of the code says stands between two comment lines and is written here:

    <!-- generated: NAME -->  …  <!-- end of NAME -->

`python scripts/reference.py` writes every page again and says which changed; `--check` writes nothing and fails when one is not
current. `tests/architecture/test_docs.py` checks the same. It decides nothing about the product and starts nothing.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from unittest.mock import Mock

import click

from oce.api.app import create_app
from oce.cli.main import occ
from oce.core.access.rules import BINDABLE, BUILT_IN, SUPPORTED, permissions_of
from oce.core.configurations.schema import KEYS
from oce.domain.failures import CATALOGUE, SUCCESS_REASONS, Tempo
from oce.sandboxd.api.gateway import Gateway
from oce.sandboxd.api.server import methods_of
from oce.sandboxd.api.stubs import SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oce.domain.failures import Failure

ROOT: Final = Path(__file__).resolve().parent.parent
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_SHARED_OPTIONS: Final = frozenset({"namespace", "output"})


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join((_row(*head), _row(*("---" for _ in head)), *(_row(*row) for row in rows)))


def configuration_keys() -> str:
    """Return the keys of a Configuration in the schema's order."""
    rows = []
    for key in KEYS:
        values: str = key.kind
        if key.choices:
            values = ", ".join(f"`{choice}`" for choice in key.choices)
        elif key.pattern:
            values = f"`{key.pattern}`"
        default = key.default and (key.default if "`" in key.default else f"`{key.default}`")
        rows.append((f"`{key.path}`", values, default or "-", key.meaning, key.honoured_by))
    return _table(("Key", "Value", "When left out", "Meaning", "Honoured by"), rows)


def _failure(row: Failure, cells: tuple[str, ...]) -> tuple[str, ...]:
    anchor = row.docs.partition("#")[2]
    return (f'<a id="{anchor}"></a>`{row.code}`', *cells, row.message, row.hint or "-")


def _tempos(row: Failure) -> str:
    return ", ".join(tempo for tempo in Tempo if tempo in row.tempos)


def failures_api() -> str:
    """Return the codes that HTTP answers carry."""
    rows = [_failure(row, (str(row.http),)) for row in CATALOGUE.values() if row.http is not None]
    return _table(("Code", "HTTP", "Sentence", "What to do"), rows)


def failures_work() -> str:
    """Return the codes of work and deployments; one that HTTP answers too has its anchor in the other table."""
    rows = []
    for row in CATALOGUE.values():
        if row.tempos:
            code, *rest = _failure(row, (_tempos(row),))
            rows.append((f"`{row.code}`" if row.http is not None else code, *rest))
    return _table(("Code", "Tempo", "Sentence", "What to do"), rows)


def success_reasons() -> str:
    """Return the reasons of succeeded work."""
    return ", ".join(f"`{reason}`" for reason in sorted(SUCCESS_REASONS)) + "."


def sandboxd_coverage() -> str:
    """Return every RPC of the service, and whether sandboxd answers it."""
    parts = dict.fromkeys((part.name for part in fields(Gateway)), Mock())
    implemented = methods_of(Gateway(**parts))
    rows = []
    for method in SERVICE.methods:
        found = implemented.get(method.name)
        kind = type(found).__name__.lower() if found is not None else "-"
        answer = "implemented" if found is not None else "`UNIMPLEMENTED`"
        rows.append((f"`{method.name}`", answer, kind))
    done = sum(1 for row in rows if row[1] == "implemented")
    table = _table(("RPC", "Answer", "Kind"), rows)
    return f"{done} of {len(rows)} RPCs of `{SERVICE.full_name}` are implemented.\n\n{table}"


def _commands(
    command: click.Command, words: tuple[str, ...], ctx: click.Context
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    for word in command.list_commands(ctx):
        inner = command.get_command(ctx, word)
        if inner is not None:
            yield from _commands(inner, (*words, word), click.Context(inner, ctx, word))


def _usage(words: tuple[str, ...], command: click.Command) -> str:
    arguments = [
        param.make_metavar(click.Context(command))
        for param in command.params
        if isinstance(param, click.Argument)
    ]
    return f"`{' '.join(('occ', *words, *arguments))}`"


def _options(command: click.Command) -> str:
    names = []
    for param in command.params:
        if isinstance(param, click.Option) and param.name not in _SHARED_OPTIONS:
            longest = max(param.opts, key=len)
            names.append(f"**`{longest}`**" if param.required else f"`{longest}`")
    return " ".join(names) or "-"


def commands() -> str:
    """Return every command with its arguments, its own options and its first help line."""
    root = click.Context(occ, info_name="occ")
    rows = []
    for words, command in _commands(occ, (), root):
        text = inspect.cleandoc(command.help or "").partition("\n")[0]
        rows.append((_usage(words, command), text, _options(command)))
    return _table(("Command", "What it does", "Own options"), rows)


def global_options() -> str:
    """Return the options that every command line may carry."""
    rows = [
        (" ".join(f"`{name}`" for name in param.opts), param.help or "")
        for param in occ.params
        if isinstance(param, click.Option)
    ]
    return _table(("Option", "Meaning"), rows)


def routes() -> str:
    """Return the public routes from the OpenAPI document."""
    document: dict[str, Any] = create_app(cast("Any", None)).openapi()
    rows = []
    for path, operations in document["paths"].items():
        for method in _METHODS:
            operation = operations.get(method)
            if operation is None:
                continue
            text = str(operation.get("description", operation.get("summary", "")))
            good = sorted(code for code in operation["responses"] if code.startswith("2"))
            # 200 beside another success is the answer to a dry run.
            rows.append((f"`{method.upper()}`", f"`{path}`", good[-1], text.partition("\n")[0]))
    return _table(("Method", "Path", "Success", "What it does"), rows)


def roles() -> str:
    """Return which built-in role has which action on which kind."""
    bindable = [role for role in BUILT_IN.values() if role.id in BINDABLE]
    granted = {role.id: permissions_of(role) for role in bindable}
    rows = [
        (
            f"`{kind}:{action}`",
            *("yes" if (action, kind) in granted[role.id] else "-" for role in bindable),
        )
        for kind, actions in SUPPORTED.items()
        for action in actions
    ]
    return _table(("Permission", *(f"`{role.name}`" for role in bindable)), rows)


BLOCKS: Final[dict[str, tuple[str, Callable[[], str]]]] = {
    "configuration-keys": ("docs/reference/configuration.md", configuration_keys),
    "failures-api": ("docs/reference/failures.md", failures_api),
    "failures-work": ("docs/reference/failures.md", failures_work),
    "success-reasons": ("docs/reference/failures.md", success_reasons),
    "rpcs": ("docs/reference/sandboxd-coverage.md", sandboxd_coverage),
    "commands": ("docs/reference/cli.md", commands),
    "global-options": ("docs/reference/cli.md", global_options),
    "routes": ("docs/reference/api.md", routes),
    "roles": ("docs/howto/give-somebody-a-role.md", roles),
}
"""Name of a block to the page that holds it and the function that writes it."""


def replaced(page: str, name: str, text: str) -> str:
    """Return a page with one block written anew. Raises ValueError when the page lacks its marks."""
    pattern = re.compile(
        rf"(<!-- generated: {re.escape(name)} -->\n).*?(\n<!-- end of {re.escape(name)} -->)",
        re.DOTALL,
    )
    found, count = pattern.subn(lambda match: f"{match[1]}{text}{match[2]}", page)
    if count != 1:
        raise ValueError(f"the block {name} stands {count} times in its page")
    return found


def render() -> dict[Path, str]:
    """Return every page that has generated blocks, as it should read."""
    pages: dict[Path, str] = {}
    for name, (path, make) in BLOCKS.items():
        page = ROOT / path
        pages[page] = replaced(pages.get(page) or page.read_text("utf-8"), name, make())
    return pages


def main() -> int:
    """Write or check. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when a page is not current"
    )
    given = parser.parse_args()
    stale = [page for page, text in render().items() if page.read_text("utf-8") != text]
    for page in stale:
        if not given.check:
            page.write_text(render()[page], "utf-8")
        sys.stdout.write(f"{'stale' if given.check else 'written'}: {page.relative_to(ROOT)}\n")
    return 1 if given.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
