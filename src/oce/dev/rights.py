"""What `occ doctor` shows: each right and program that one machine needs, whether it is held, how it was tried, how to get it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oce.dev.layout import LayoutError, find_codex
from oce.dev.postgres import PostgresError, find_binaries
from oce.sandboxd.confine.doctor import probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PATIENCE: Final = 20.0


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
        text = f"{mark:<8} {self.name:<30} {self.tried}"
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
    found.append(await _program("Codex binary", find_codex))
    found.append(await _program("PostgreSQL", lambda: find_binaries() / "postgres"))
    return tuple(found)


async def _program(name: str, find: Callable[[], Path]) -> Finding:
    """Find a program and let it say its version: a file of another architecture is there and does not run."""
    try:
        binary = find()
    except (LayoutError, PostgresError) as error:
        return Finding(
            name=name, held=False, required=True, tried="looked for it", remedy=str(error)
        )
    said = await _version(binary)
    return Finding(
        name=name,
        held=said is not None,
        required=True,
        tried=f"ran {binary} --version: {said}" if said else f"ran {binary} --version in vain",
        remedy="install it again; the file is there and does not run on this machine",
    )


async def _version(binary: Path) -> str | None:
    try:
        process = await asyncio.create_subprocess_exec(
            *(str(binary), "--version"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_PATIENCE):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    line = output.decode(errors="replace").strip().partition("\n")[0][:80]
    return line if process.returncode == 0 and line else None
