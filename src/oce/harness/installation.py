"""Laying the Harness programs into a folder from which a Sandbox runs them.

The copy is precompiled and free of this distribution's other rooms, so that the program starts in milliseconds, on any Python ≥ 3.11
that sits in the Sandbox, with a read-only mount and under a uid that is not the installer's. Another Python version than the installer's
ignores the compiled files and pays some milliseconds more.

This is the only module of the room that does not run inside a Sandbox.
"""

from __future__ import annotations

import os
import py_compile
import shutil
from pathlib import Path

_PROGRAM = "codex"
_MAIN = '''"""Start the Codex Harness."""

import sys

sys.path.insert(0, __file__.rpartition("/")[0])

from oce.harness.codex.main import main  # noqa: E402 - the path must be there first

sys.exit(main())
'''


def install(target_dir: Path) -> Path:
    """Lay the Codex Harness into ``target_dir`` and return the file that starts it: ``target_dir/codex/__main__.py``.

    The Sandbox runs ``["/usr/bin/python3", "-I", "-S", "<returned path as seen inside>"]``. Folders are 0755 and files 0644 whatever
    the umask. An earlier copy is replaced in one rename; a Sandbox that has it open keeps it. Raises OSError.
    """
    final = target_dir / _PROGRAM
    fresh = target_dir / f".{_PROGRAM}.{os.getpid()}.new"
    stale = target_dir / f".{_PROGRAM}.{os.getpid()}.old"
    target_dir.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(fresh, ignore_errors=True)
    _lay(fresh)
    if final.exists():
        final.rename(stale)
    fresh.rename(final)
    shutil.rmtree(stale, ignore_errors=True)
    target_dir.chmod(0o755)
    return final / "__main__.py"


def _lay(root: Path) -> None:
    package = root / "oce" / "harness" / _PROGRAM
    package.mkdir(parents=True)
    for source in sorted((Path(__file__).parent / _PROGRAM).glob("*.py")):
        shutil.copyfile(source, package / source.name)
    for empty in (root / "oce", root / "oce" / "harness"):
        (empty / "__init__.py").write_text("")
    (root / "__main__.py").write_text(_MAIN)
    for module in (root / "oce").rglob("*.py"):
        py_compile.compile(
            str(module),
            doraise=True,
            dfile=str(module.relative_to(root)),
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    root.chmod(0o755)
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
