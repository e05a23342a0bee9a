"""Lay the programs that run inside Sandboxes where every uid can read them, and say where they are.

Codex's binary is shown to Sandboxes straight from its wheel when other uids can read it there, else from a hard link or copy below the
state directory's `runtime` folder (ours, 0755). The Harness programs are installed there too. Nothing is downloaded here.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oce import harness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.dev.state import StateDirectory

CODEX_TARGET: Final = "/opt/oce/codex"
HARNESS_TARGET: Final = "/opt/oce/harness"
_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*")
_UNKNOWN_VERSION: Final = "0.0.0-unknown"


class LayoutError(Exception):
    """A program that Sandboxes need is not installed; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Host folders shown read-only inside every Sandbox, and the Harness command there."""

    codex: Path
    codex_version: str
    harness: Path
    harness_command: tuple[str, ...]


def find_codex() -> Path:
    """Return the Codex binary: the one that OCC_CODEX_BINARY names, else the wheel's. Raises LayoutError."""
    if named := os.environ.get("OCC_CODEX_BINARY"):
        binary = Path(named).absolute()
        if not binary.is_file() or not os.access(binary, os.X_OK):
            raise LayoutError(
                f"OCC_CODEX_BINARY names no executable file: {binary}; unset it to use the installed Codex"
            )
        return binary
    spec = find_spec("codex_cli_bin")
    if spec is None or spec.origin is None:
        raise LayoutError("the Codex binary is missing: pip install 'openclaw-enterprise[codex]'")
    return Path(spec.origin).parent / "bin" / "codex"


def install_programs(state: StateDirectory, interpreter: str) -> Programs:
    """Install what Sandboxes run. `interpreter` is the Python inside the Sandbox. Raises LayoutError, OSError."""
    binary = find_codex()
    if os.environ.get("OCC_CODEX_BINARY"):
        # A folder that somebody named may hold more than Codex, and that is nothing to show to Sandboxes.
        codex = _lay({Path("bin/codex"): binary}, state.runtime / "codex-named")
    elif readable_by_everyone(binary):
        codex = binary.parent.parent
    else:
        wheel = binary.parent.parent
        files = {
            path.relative_to(wheel): path
            for path in wheel.rglob("*")
            if path.is_file() and path.suffix not in {".py", ".pyc"}
        }
        codex = _lay(files, state.runtime / "codex")
    target = state.runtime / "harness"
    target.mkdir(exist_ok=True, mode=0o755)
    target.chmod(0o755)
    installed = harness.install(target)
    inside = f"{HARNESS_TARGET}/{installed.relative_to(target)}"
    return Programs(
        codex=codex,
        codex_version=codex_version(binary),
        harness=target,
        harness_command=(interpreter, "-I", "-S", inside),
    )


def codex_version(binary: Path) -> str:
    """Return the version that revisions freeze: the wheel's, or what a named binary says of itself."""
    if not os.environ.get("OCC_CODEX_BINARY"):
        return version("openai-codex-cli-bin")
    try:
        said = subprocess.run(  # noqa: S603 - the operator named this program
            [binary, "--version"], check=False, capture_output=True, text=True, timeout=10
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    found = _VERSION.search(said)
    return found[0] if found else _UNKNOWN_VERSION


def readable_by_everyone(path: Path) -> bool:
    """Tell whether an unrelated uid can reach and read a file."""
    resolved = path.resolve()
    return all(parent.stat().st_mode & 0o001 for parent in resolved.parents) and bool(
        resolved.stat().st_mode & 0o004
    )


def _lay(files: Mapping[Path, Path], target: Path) -> Path:
    """Put files below `target`, 0755 and ours alone to change; one that is there already stays."""
    for relative, source in files.items():
        place, real = target / relative, source.resolve()
        if _identity(place) == _identity(real):
            continue
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        fresh = place.with_name(f".{place.name}.new")
        fresh.unlink(missing_ok=True)
        try:
            _link(real, fresh)
        except OSError:
            shutil.copyfile(real, fresh)
            fresh.chmod(0o755)
            details = real.stat()
            os.utime(fresh, ns=(details.st_atime_ns, details.st_mtime_ns))
        fresh.replace(place)
    return target


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        details = path.stat()
    except OSError:
        return None
    return details.st_size, details.st_mtime_ns


def _link(source: Path, target: Path) -> None:
    """Link instead of copying 200 MB, where the file's owner and mode are already right. Raises OSError."""
    details = source.stat()
    if details.st_uid != os.geteuid() or details.st_mode & 0o777 != 0o755:  # noqa: PLR2004 - a mode
        raise PermissionError(errno.EPERM, "the file is not ours alone")
    os.link(source, target)
