"""The first program of a Sandbox whose mounts were relocated: it links them into the Harness's HOME, then becomes the Harness.

The Driver sends this file's own text as the command, so it stands on the standard library alone. Arguments: the number of links, then
target and path of each, then the Harness's command. Something else at a path fails the start; a link of ours from an earlier start is fine.
"""

from __future__ import annotations

import os
import sys

CONFLICT = 78
"""EX_CONFIG: a restart cannot change it."""


def link(target: str, path: str) -> None:
    """Make a link, or find exactly it. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    try:
        os.symlink(target, path)
    except FileExistsError:
        if os.readlink(path) != target:
            raise


def main(arguments: list[str]) -> int:
    """Link, then exec; returns only when that fails."""
    count = int(arguments[0])
    pairs, command = arguments[1 : 1 + 2 * count], arguments[1 + 2 * count :]
    try:
        for target, path in zip(pairs[::2], pairs[1::2], strict=True):
            link(target, path)
    except OSError:
        sys.stderr.write("a path of the Harness's home is taken\n")
        return CONFLICT
    os.execvp(command[0], command)  # noqa: S606 - the Harness's own command, no shell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
