"""The order of a start, from the environment to a serving app-server or a held failure."""

from __future__ import annotations

import os
import time

from oce.harness.codex import log
from oce.harness.codex.appserver import supervise
from oce.harness.codex.children import Children
from oce.harness.codex.environment import Listener, Unpublishable, read_listener, read_settings
from oce.harness.codex.failure import HeldFailure
from oce.harness.codex.held import hold
from oce.harness.codex.login import log_in, prepare_home
from oce.harness.codex.probe import prove_model
from oce.harness.codex.workspace import await_workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oce.harness.codex.environment import Settings

EX_CONFIG = 78
EX_TEMPORARY = 75


def main() -> int:
    """Run the Harness until SIGTERM.

    Returns 0 after a stop; 78 when port or digest are unusable (nothing can be published); 75 when the disk refused, which the Sandbox's
    restart policy tries again.
    """
    started = time.monotonic()
    os.umask(0o077)
    children = Children()
    try:
        listener = read_listener(os.environ)
    except Unpublishable as error:
        log.event("runtime.environment_refused", variable=str(error))
        return EX_CONFIG
    try:
        _start(listener, children, started)
    except HeldFailure as failure:
        hold(failure, listener, children)
    except OSError as error:
        log.event("runtime.start_interrupted", errno=error.errno)
        return EX_TEMPORARY
    return 0


def _start(listener: Listener, children: Children, started: float) -> None:
    settings = read_settings(os.environ, listener)
    prepare_home(settings)
    log.phase("environment", started)
    for name, stage in (
        ("workspace-setup", _workspace),
        ("login", log_in),
        ("model-probe", prove_model),
    ):
        began = time.monotonic()
        stage(settings, children)
        if children.stopping():
            return
        log.phase(name, began)
    supervise(settings, children, started)


def _workspace(settings: Settings, children: Children) -> None:
    await_workspace(settings.workspace, children)
