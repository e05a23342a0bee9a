"""Start a process of ours that is no part of this process's life: a session of its own, its output in a private log."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def detached(
    command: Sequence[str],
    log: Path,
    *,
    piped: bool = True,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start it; `piped` gives it a pipe as standard input, else there is nothing to read. Raises OSError."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(  # noqa: S603 - our own programs
            command,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
    finally:
        os.close(output)
