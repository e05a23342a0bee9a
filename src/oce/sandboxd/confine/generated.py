"""Small files that exist only inside a Sandbox: written on the host before it starts, shown read-only.

Files are grouped by the outermost directory that holds only generated files, which is one mount however many they are. A file in a
directory that has other content (`/etc`, a workspace) is mounted by itself. What changes while a Sandbox runs is not here: the gateway
mounts a folder of its own for provider files. `plan` is pure.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from oce.sandboxd.place import GeneratedFile

SHARED_DIRECTORIES = (
    *("/", "/etc", "/etc/ssl", "/run", "/opt", "/opt/oce", "/var"),
    *("/tmp", "/var/tmp"),  # noqa: S108 - paths inside a Sandbox
)
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/proc", "/dev")


class ImpossibleFileError(ValueError):
    """A generated file's target cannot exist inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`directories`: mounted directory inside -> directory of the store; `files`: singly mounted file -> file of the store.

    Both on the right are relative to the Sandbox's store of generated files.
    """

    directories: Mapping[str, str]
    files: Mapping[str, str]

    def place_of(self, target: str) -> str | None:
        """Return where a target of a mounted directory lies in the store, or None."""
        for inside, stored in self.directories.items():
            if target.startswith(inside + "/"):
                return f"{stored}/{target[len(inside) + 1 :]}"
        return None


def checked_target(target: str) -> PurePosixPath:
    """Return an absolute, plain path that may hold a generated file. Raises ImpossibleFileError."""
    path = PurePosixPath(target)
    if not path.is_absolute() or ".." in path.parts or str(path) != target or "\0" in target:
        raise ImpossibleFileError(f"{target!r} is not a plain absolute path")
    if any(path.is_relative_to(system) for system in _SYSTEM):
        raise ImpossibleFileError(f"{target} lies in a system directory")
    return path


def plan(targets: Sequence[str], mount_targets: Sequence[str]) -> Layout:
    """Group the targets. Raises ImpossibleFileError."""
    paths = [checked_target(target) for target in targets]

    def shared(directory: PurePosixPath) -> bool:
        return str(directory) in SHARED_DIRECTORIES or any(
            directory.is_relative_to(mount) or PurePosixPath(mount).is_relative_to(directory)
            for mount in mount_targets
        )

    parents = {path.parent for path in paths if not shared(path.parent)}
    outermost = sorted(p for p in parents if not any(q in p.parents for q in parents))
    single = [p for p in paths if not any(p.is_relative_to(top) for top in outermost)]
    return Layout(
        directories={str(top): f"d{n}" for n, top in enumerate(outermost)},
        files={str(path): f"f{n}" for n, path in enumerate(single)},
    )


class GeneratedStore:
    """The host side of the generated files of one Sandbox.

    As root the files belong to root and to the group of the Sandbox's uid, so that they are readable by that Sandbox alone.
    """

    def __init__(self, folder: Path, layout: Layout, group: int | None) -> None:
        self._folder = folder
        self._layout = layout
        self._group = group

    def create(self, files: Sequence[GeneratedFile]) -> None:
        """Write all files."""
        self._make_directory(self._folder)
        for stored in self._layout.directories.values():
            self._make_directory(self._folder / stored)
        for file in files:
            stored_file = self._layout.place_of(file.target) or self._layout.files[file.target]
            self._write(self._folder / stored_file, file.content)

    def _write(self, path: Path, content: bytes) -> None:
        missing = [p for p in path.parents if p.is_relative_to(self._folder) and not p.exists()]
        for parent in reversed(missing):
            self._make_directory(parent)
        fresh = path.with_name(f".{path.name}.new")
        descriptor = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if self._group is not None:
                os.fchown(file.fileno(), 0, self._group)
            os.fchmod(file.fileno(), 0o440)
        fresh.replace(path)

    def _make_directory(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        if self._group is not None:
            os.chown(path, 0, self._group)
        path.chmod(0o750)
