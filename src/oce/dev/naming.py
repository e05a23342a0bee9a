"""The name of the context that a machine writes, when nobody gave one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oce.client.errors import ContextError

if TYPE_CHECKING:
    from oce.client.context import Context, Contexts

DEFAULT: Final = "local"


def context_of(contexts: Contexts, root: Path) -> str | None:
    """Return the name of the context that this state directory wrote earlier."""
    for name in contexts.names():
        found = _read(contexts, name)
        if found is not None and found.state_dir == str(root):
            return name
    return None


def context_name(contexts: Contexts, root: Path) -> str:
    """Return the name written earlier, else `local` if nobody has it, else a name after the directory: another machine keeps its own."""
    earlier = context_of(contexts, root)
    if earlier is not None:
        return earlier
    taken = {name for name in contexts.names() if _in_use(_read(contexts, name))}
    base = re.sub(r"[^a-z0-9._-]+", "-", root.name.lower()).strip("-._")[:48] or DEFAULT
    numbered = (f"{base}-{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (DEFAULT, base, *numbered) if name not in taken)


def _in_use(found: Context | None) -> bool:
    """Tell whether a name is taken: a context of a machine that is gone may be written over."""
    return found is None or not found.state_dir or Path(found.state_dir).is_dir()


def _read(contexts: Contexts, name: str) -> Context | None:
    try:
        return contexts.load(name)
    except ContextError:
        return None
