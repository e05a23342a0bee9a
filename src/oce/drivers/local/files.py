"""Writing small files so that a crash never leaves half of one, and locking without leftovers.

A lock is the kernel's (`flock`): it ends with its process, so a dead holder never blocks anybody. Everything here blocks; callers run it
in a thread.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700


def make_private(directory: Path) -> None:
    """Create a 0700 directory and its parents; an existing one is left as it is."""
    directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)


def write_atomic(path: Path, content: bytes, mode: int = PRIVATE_FILE) -> None:
    """Replace `path` with `content`: a reader sees the old bytes or the new ones, also after a power cut. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, path)  # noqa: PTH105 # both names are plain strings or paths; os.replace takes either
    except BaseException:
        _forget(temporary)
        raise
    sync_directory(path.parent)


def create_exclusive(path: Path, content: bytes) -> bool:
    """Write `path` unless it exists; a concurrent writer never sees an incomplete file. Return whether we made it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    finally:
        _forget(temporary)
    sync_directory(path.parent)
    return True


def remove_file(path: Path) -> None:
    """Delete a file; absent is fine."""
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        sync_directory(path.parent)


def remove_tree(directory: Path) -> None:
    """Delete a directory that a workload could write; absent is fine.

    A workload may have taken permissions away from its own directories; they are given back on the way. Links are never followed.
    """

    def retry(function: Callable[..., object], path: str, error: tuple[object, ...]) -> None:
        if isinstance(error[1], FileNotFoundError):
            return
        if not isinstance(error[1], PermissionError):
            raise error[1]  # type: ignore[misc] # the second of an exc_info triple is the exception
        for entry in (os.path.dirname(path), path):  # noqa: PTH120 # rmtree hands out strings
            if stat.S_ISDIR(os.lstat(entry).st_mode):
                os.chmod(entry, PRIVATE_DIRECTORY)  # noqa: PTH101 # as above
        if function in {os.open, os.scandir, os.listdir}:
            shutil.rmtree(path)
        else:
            function(path)

    if directory.is_dir():
        shutil.rmtree(directory, onerror=retry)


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the kernel's lock on a (created) file; it ends with the process whatever happens."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _forget(name: str) -> None:
    try:
        os.unlink(name)  # noqa: PTH108 # mkstemp hands out a string
    except FileNotFoundError:
        return
