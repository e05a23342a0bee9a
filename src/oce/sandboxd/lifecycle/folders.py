"""Host folders of one Sandbox: the provider files it sees, and their removal. Blocking; call it in a thread."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from oce.sandboxd.state.keys import write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from oce.sandboxd.lifecycle.providers import ProviderFile


def write_files(root: Path, files: Sequence[ProviderFile]) -> None:
    """Make `root` hold exactly these files; each is replaced atomically, so a reader inside never sees half a file."""
    # As root the place opens it to the Sandbox's uid when it starts the Sandbox; that must survive a later change of files.
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = {file.path for file in files}
    for file in files:
        path = root / file.path
        for parent in reversed(path.relative_to(root).parents[:-1]):
            folder = root / parent
            folder.mkdir(mode=0o755, exist_ok=True)
            folder.chmod(0o755)
        if not path.exists() or path.read_bytes() != file.content:
            write_private(path, file.content, 0o444)
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif str(path.relative_to(root)) not in wanted:
            path.unlink()


def remove(folder: Path) -> None:
    """Remove a Sandbox's folders, also those whose modes the workload closed; absent is fine."""

    def reopen(function: Callable[..., object], path: str, _error: object) -> None:
        if not os.path.lexists(path):
            return
        os.chmod(os.path.dirname(path), 0o700)  # noqa: PTH101, PTH120 - shutil speaks in strings
        if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 - the same
            os.chmod(path, 0o700)  # noqa: PTH101 - the same
            shutil.rmtree(path, onerror=reopen)
        else:
            function(path)

    if folder.exists():
        shutil.rmtree(folder, onerror=reopen)
