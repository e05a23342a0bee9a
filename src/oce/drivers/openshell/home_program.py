"""The first program of a Sandbox whose Harness's HOME has to be prepared: it links mounts, makes private directories, then becomes the Harness.

The Driver sends this file's own text as the command, so it stands on the standard library alone. Arguments: the number of links and target
and path of each, the number of directories and each of them, then the Harness's command. Something else at a path fails the start; what
an earlier start made is fine.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

CONFLICT = 78
"""EX_CONFIG: a restart cannot change it."""


class Taken(Exception):  # noqa: N818 - what a path is, not a malfunction
    """Something else is at a path."""


def link(target: str, path: str) -> None:
    """Make a link, or find exactly it. Raises OSError."""
    folder = path.rpartition("/")[0]
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib costs start time
    try:
        os.symlink(target, path)  # noqa: PTH211 - as above
    except FileExistsError:
        if os.readlink(path) != target:  # noqa: PTH115 - as above
            raise


def private_directory(path: str) -> None:
    """Make a directory that its owner alone may use, or find it and make it so. Raises OSError, Taken for anything else there."""
    os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib costs start time
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            raise Taken(path)
        if stat.S_IMODE(status.st_mode) != 0o700:  # noqa: PLR2004 - owner-only
            os.fchmod(handle, 0o700)
    finally:
        os.close(handle)


def _take(arguments: list[str], size: int) -> tuple[list[str], list[str]]:
    """Split a counted list of groups of `size` off the front."""
    end = 1 + size * int(arguments[0])
    return arguments[1:end], arguments[end:]


def main(arguments: list[str]) -> NoReturn:
    """Prepare, then exec; exits with CONFLICT when a path is taken. Raises OSError when the command cannot be run."""
    pairs, rest = _take(arguments, 2)
    directories, command = _take(rest, 1)
    try:
        for target, path in zip(pairs[::2], pairs[1::2], strict=True):
            link(target, path)
        for path in directories:
            private_directory(path)
    except (OSError, Taken):
        sys.stderr.write("a path of the Harness's home is taken\n")
        sys.exit(CONFLICT)
    os.execvp(command[0], command)  # noqa: S606 - the Harness's own command, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
