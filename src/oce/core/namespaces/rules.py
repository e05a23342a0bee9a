"""Rules of Namespaces, pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.core.errors import MESSAGE_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def not_empty_message(contents: Mapping[str, Sequence[str]]) -> str:
    """Name the remaining kinds and as many ids as fit in 256 characters, one id per kind in turn (reference/control-plane.md §2.4)."""
    shown: dict[str, list[str]] = {kind: [] for kind in contents}

    def render() -> str:
        parts = [f"{kind} {', '.join(ids)}" if ids else kind for kind, ids in shown.items()]
        return f"The Namespace still holds: {'; '.join(parts)}."

    for index in range(max((len(ids) for ids in contents.values()), default=0)):
        for kind, ids in contents.items():
            if index >= len(ids):
                continue
            shown[kind].append(ids[index])
            if len(render()) > MESSAGE_MAX:
                shown[kind].pop()
                return render()
    return render()
