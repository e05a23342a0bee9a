"""Waiting for the Agent's initial workspace files: no Harness runs before their completion marker is there (mission document 003).

The control plane writes the files through the Sandbox's own door while this program waits; it may take a pass or two. Without the
variable there is nothing to wait for.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.harness.codex.children import Children

SETUP_ENV = "OCE_WORKSPACE_SETUP"
MARKER = ".oce-workspace-setup.json"
_LIMIT = 16_384
_POLL_SECONDS = 0.05


def initialised(environ: Mapping[str, str], workspace: str) -> bool:
    """Tell whether the workspace carries the marker of exactly this setup."""
    wanted = environ.get(SETUP_ENV)
    if not wanted:
        return True
    try:
        handle = os.open(f"{workspace}/{MARKER}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with os.fdopen(handle, "rb") as stream:
        try:
            marker = json.loads(stream.read(_LIMIT))
        except ValueError:
            return False
    return isinstance(marker, dict) and marker.get("id") == wanted


def await_workspace(workspace: str, children: Children) -> None:
    """Wait for the marker, or until the program is told to stop."""
    while not initialised(os.environ, workspace):
        if children.sleep(_POLL_SECONDS):
            return
