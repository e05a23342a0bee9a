"""Initial workspace files: private initialisation of a running Sandbox (mission document 003).

Presence of `validate_workspace_setup` declares it. The document goes over the stdin of one ExecSandbox and nowhere else; the program
that reads it is `workspace_program`, sent as text. It runs only in a READY Sandbox, which a pass waits for briefly, and again on every
pass, where its marker makes it a no-op. The Harness learns the setup's id through its environment and starts only when the marker is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import DriverRefusal, WorkspaceSetupRefused
from oce.domain.failures import Tempo
from oce.drivers.openshell import workspace_program
from oce.drivers.openshell.observation import phase_name
from oce.drivers.openshell.settings import HARNESS_HOME, KubernetesPlace, Settings

if TYPE_CHECKING:
    from oce.domain.clock import Clock
    from oce.domain.resources import Harness, Json
    from oce.domain.secret import SecretText
    from oce.drivers.openshell.records import SandboxRecord
    from oce.drivers.openshell.rendering import Rendering
    from oce.drivers.openshell.wire import Gateway

TIMEOUT_SECONDS: Final = 300
_STARTING: Final = frozenset(("PROVISIONING", "STARTING"))
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.32
_WAIT: Final = 2.0
"""Seconds a pass waits in place for a Sandbox that starts."""
PROGRAM: Final = Path(workspace_program.__file__).read_text(encoding="utf-8")


def validate(settings: Settings, harness: Harness, configuration: Json) -> None:
    """Refuse initial files that could not land in the Agent's workspace. Pure. Raises WorkspaceSetupRefused."""
    if harness.mode != "dedicated":
        raise WorkspaceSetupRefused("only dedicated Harnesses have a workspace of their own")
    place = settings.place
    if isinstance(place, KubernetesPlace) and place.data_mount.read_only:
        raise WorkspaceSetupRefused("the workspace mount is read-only")
    agents = configuration.get("agents") if isinstance(configuration, dict) else None
    defaults = agents.get("defaults") if isinstance(agents, dict) else None
    workspace = defaults.get("workspace") if isinstance(defaults, dict) else None
    if workspace not in {None, settings.data_mount_path}:
        raise WorkspaceSetupRefused("the Configuration names another workspace")


async def initialise(
    gateway: Gateway,
    settings: Settings,
    wanted: Rendering,
    record: SandboxRecord,
    payload: SecretText,
    *,
    python: str,
    clock: Clock,
) -> bool:
    """Initialise a READY Sandbox; False when it is not READY soon and a later pass has to. `python` runs the program.

    Every failure is one sentence without content. Raises WorkspaceSetupRefused, DriverRefusal, GatewayFailure.
    """
    if not await _ready(gateway, wanted, record, clock):
        return False
    code = await gateway.exec_sandbox(
        wanted.workspace,
        wanted.sandbox,
        (python, "-I", "-S", "-c", PROGRAM),
        environment={"HOME": HARNESS_HOME, "OPENCLAW_WORKSPACE_DIR": settings.data_mount_path},
        stdin=payload,
        timeout_seconds=TIMEOUT_SECONDS,
    )
    if code == workspace_program.REFUSED:
        raise WorkspaceSetupRefused("the workspace belongs to another setup")
    if code != workspace_program.DONE:
        raise DriverRefusal(
            "DEPENDENCY_UNAVAILABLE", Tempo.RETRY, "the workspace could not be initialised"
        )
    return True


async def _ready(gateway: Gateway, wanted: Rendering, record: SandboxRecord, clock: Clock) -> bool:
    """Wait briefly for a Sandbox that starts; its phase as it was read counts first."""
    deadline = clock.monotonic() + _WAIT
    pause = _FIRST_PAUSE
    phase = phase_name(record.phase)
    while phase in _STARTING and clock.monotonic() + pause <= deadline:
        await clock.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        found = await gateway.get_sandbox(wanted.workspace, wanted.sandbox)
        phase = "" if found is None else phase_name(found.phase)
    return phase == "READY"
