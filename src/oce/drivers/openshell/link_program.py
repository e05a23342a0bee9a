"""The first program of a Sandbox whose mounts were relocated: it links them into the Harness's HOME, then becomes the Harness.

The Driver sends this file's own text as the command, so it stands on the standard library alone. Arguments: the number of links, then
target and path of each, then the Harness's command. Something else at a path fails the start; a link of ours from an earlier start is fine.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

CONFLICT = 78
"""EX_CONFIG: a restart cannot change it."""


def link(target: str, path: str) -> None:
    """Make a link, or find exactly it. Raises OSError."""
    folder = path.rpartition("/")[0]
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib costs start time
    try:
        os.symlink(target, path)  # noqa: PTH211 - as above
    except FileExistsError:
        if os.readlink(path) != target:  # noqa: PTH115 - as above
            raise


def main(arguments: list[str]) -> NoReturn:
    """Link, then exec; exits with CONFLICT when a path is taken. Raises OSError when the command cannot be run."""
    count = int(arguments[0])
    pairs, command = arguments[1 : 1 + 2 * count], arguments[1 + 2 * count :]
    try:
        for target, path in zip(pairs[::2], pairs[1::2], strict=True):
            link(target, path)
    except OSError:
        sys.stderr.write("a path of the Harness's home is taken\n")
        sys.exit(CONFLICT)
    os.execvp(command[0], command)  # noqa: S606 - the Harness's own command, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
