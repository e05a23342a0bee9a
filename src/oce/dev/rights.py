"""What `occ doctor` shows: each right and program that one machine needs, whether it is held, how it was tried, how to get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oce.dev.layout import LayoutError, find_codex
from oce.dev.postgres import PostgresError, find_binaries
from oce.sandboxd.confine.doctor import probe

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    name: str
    held: bool
    required: bool
    tried: str
    remedy: str

    def line(self) -> str:
        """Return the line for people."""
        mark = "ok" if self.held else ("MISSING" if self.required else "absent")
        text = f"{mark:<8} {self.name:<28} {self.tried}"
        return text if self.held else f"{text}\n{'':<9}{self.remedy}"

    def document(self) -> dict[str, object]:
        """Return the line for machines."""
        return {
            "name": self.name,
            "held": self.held,
            "required": self.required,
            "tried": self.tried,
            "remedy": self.remedy,
        }


async def examine() -> tuple[Finding, ...]:
    """Try everything once."""
    rights = await probe()
    found = [
        Finding(name=r.name, held=r.held, required=r.required, tried=r.how_tried, remedy=r.remedy)
        for r in rights
    ]
    found.append(_program("Codex binary", lambda: str(find_codex())))
    found.append(_program("PostgreSQL", lambda: str(find_binaries())))
    return tuple(found)


def _program(name: str, find: Callable[[], str]) -> Finding:
    try:
        where = find()
    except (LayoutError, PostgresError) as error:
        return Finding(
            name=name, held=False, required=True, tried="looked for it", remedy=str(error)
        )
    return Finding(name=name, held=True, required=True, tried=f"found {where}", remedy="")
