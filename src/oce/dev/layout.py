"""Lay the programs that run inside Sandboxes where every uid can read them, and say where they are.

Codex's binary is shown to Sandboxes straight from its wheel when other uids can read it there, else from a hard link or copy below the
state directory's `runtime` folder (root-owned, 0755). The Harness programs are installed there too. Nothing is downloaded here.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oce import harness

if TYPE_CHECKING:
    from oce.dev.state import StateDirectory

CODEX_TARGET: Final = "/opt/oce/codex"
HARNESS_TARGET: Final = "/opt/oce/harness"


class LayoutError(Exception):
    """A program that Sandboxes need is not installed; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Host folders shown read-only inside every Sandbox, and the Harness command there."""

    codex: Path
    harness: Path
    harness_command: tuple[str, ...]


def find_codex() -> Path:
    """Return the folder that holds `bin/codex`. OCC_CODEX_BINARY names another binary. Raises LayoutError."""
    if named := os.environ.get("OCC_CODEX_BINARY"):
        binary = Path(named).absolute()
        if not os.access(binary, os.X_OK):
            raise LayoutError(f"OCC_CODEX_BINARY names no executable: {binary}")
        return binary.parent.parent if binary.parent.name == "bin" else binary.parent
    spec = find_spec("codex_cli_bin")
    if spec is None or spec.origin is None:
        raise LayoutError("the Codex binary is missing: pip install 'openclaw-enterprise[codex]'")
    return Path(spec.origin).parent


def install_programs(state: StateDirectory, interpreter: str) -> Programs:
    """Install what Sandboxes run. `interpreter` is the Python inside the Sandbox. Raises LayoutError, OSError."""
    codex = find_codex()
    binary = codex / "bin" / "codex"
    if not binary.exists():
        binary = next(iter(codex.glob("codex")), binary)
    if not readable_by_everyone(binary) or binary.parent.name != "bin":
        codex = _copy_codex(binary, state.runtime / "codex")
    target = state.runtime / "harness"
    target.mkdir(exist_ok=True, mode=0o755)
    target.chmod(0o755)
    installed = harness.install(target)
    inside = f"{HARNESS_TARGET}/{installed.relative_to(target)}"
    return Programs(codex=codex, harness=target, harness_command=(interpreter, "-I", "-S", inside))


def readable_by_everyone(path: Path) -> bool:
    """Tell whether an unrelated uid can reach and read a file."""
    resolved = path.resolve()
    return all(parent.stat().st_mode & 0o001 for parent in resolved.parents) and bool(
        resolved.stat().st_mode & 0o004
    )


def _copy_codex(binary: Path, target: Path) -> Path:
    copy = target / "bin" / "codex"
    source = binary.resolve()
    if (
        copy.exists()
        and copy.stat().st_size == source.stat().st_size
        and copy.stat().st_mtime_ns >= source.stat().st_mtime_ns
    ):
        return target
    copy.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    copy.unlink(missing_ok=True)
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)
    copy.chmod(0o755)
    return target
