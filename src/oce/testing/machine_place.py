"""A `MachinePlace` in a temporary directory, for tests: real Sandboxes, and a check that nothing is left of them.

Standard library only, so that the same scenarios can be run as an ordinary user by an interpreter that knows no test framework
(`run_as_ordinary_user`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import oce
from oce.sandboxd.confine import programs
from oce.sandboxd.confine.config import ConfineConfig
from oce.sandboxd.confine.control_groups import ControlGroups
from oce.sandboxd.confine.machine import MachinePlace
from oce.sandboxd.place import ExecExit, ExecOutput, ExecRequest, Launch, Mount

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from oce.sandboxd.confine.running import MachineSandbox

ORDINARY_UID = 64_321
"""A uid that owns nothing."""
PATH = "/usr/local/bin:/usr/bin:/bin"
WORKSPACE = "/sandbox"


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command printed and how it ended."""

    code: int
    stdout: str
    stderr: str


@dataclass(slots=True)
class Kit:
    """A place in a temporary folder with short ways to start and to run."""

    place: MachinePlace
    folder: Path
    config: ConfineConfig
    started: list[str] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        """Host directory that the Sandboxes of this kit see as /sandbox."""
        return self.folder / "workspace"

    def launch(self, command: Sequence[str], **changes: Any) -> Launch:  # noqa: ANN401 - fields of Launch
        """Return a launch with a fresh id, a workspace and a PATH."""
        settings: dict[str, Any] = {
            "sandbox_id": str(uuid4()),
            "instance_id": str(uuid4()),
            "uid_key": "tests",
            "command": list(command),
            "environment": {"PATH": PATH},
            "workdir": WORKSPACE,
            "mounts": (Mount(source=self.workspace, target=WORKSPACE, read_only=False),),
        }
        return Launch(**(settings | changes))

    async def start(self, command: Sequence[str], **changes: Any) -> MachineSandbox:  # noqa: ANN401 - fields of Launch
        """Start; the kit discards it at its end."""
        launch = self.launch(command, **changes)
        self.started.append(launch.sandbox_id)
        return await self.place.start(launch)

    async def python(self) -> str:
        """Return the path of the interpreter that every Sandbox has."""
        return (await asyncio.to_thread(programs.install, self.config)).python.inside


async def run_inside(
    sandbox: MachineSandbox,
    command: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout_seconds: float | None = 30.0,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command inside and collect what it prints."""
    request = ExecRequest(
        command=list(command),
        workdir=WORKSPACE,
        environment={"PATH": PATH} if environment is None else environment,
        stdin=stdin,
        timeout_seconds=timeout_seconds,
    )
    streams = {1: b"", 2: b""}
    code = -1
    async for event in sandbox.exec(request):
        if isinstance(event, ExecOutput):
            streams[event.stream] += event.data
        elif isinstance(event, ExecExit):
            code = event.code
    return Finished(code, streams[1].decode(errors="replace"), streams[2].decode(errors="replace"))


@asynccontextmanager
async def temporary_place(**settings: Any) -> AsyncIterator[Kit]:  # noqa: ANN401 - fields of ConfineConfig
    """Yield a kit; afterwards discard what it started and insist that nothing is left."""
    folder = await asyncio.to_thread(_folder)
    config = ConfineConfig(runtime_dir=folder / "run", state_dir=folder / "state", **settings)
    kit = Kit(MachinePlace(config), folder, config)
    try:
        yield kit
        for sandbox_id in kit.started:
            await kit.place.discard(sandbox_id)
        if config.runtime_dir.exists():
            left = [*config.runtime_dir.iterdir()]
            assert not left, f"left over: {left}"
        groups = ControlGroups.of_this_machine()
        assert not [g for i in kit.started for g in groups.groups_of(i)]
    finally:
        for sandbox_id in kit.started:
            await kit.place.discard(sandbox_id)
        await kit.place.close()
        await asyncio.to_thread(shutil.rmtree, folder)


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="oce-place-"))
    folder.chmod(0o755)
    return folder


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll a condition up to a deadline. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is a state of the kernel
            await asyncio.sleep(0.01)


def processes_with(marker: str) -> list[int]:
    """Return the pids of all live processes of this machine whose command line holds `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if marker.encode() in command and state not in "ZX":
                found.append(int(entry.name))
    return found


def run_as_ordinary_user(script: Path, scenario: str) -> subprocess.CompletedProcess[str]:
    """Run one scenario of a script (see `serve_scenarios`) as a uid without any right. Needs root and setpriv."""
    with tempfile.TemporaryDirectory(prefix="oce-user-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        installed = programs.install(
            ConfineConfig(runtime_dir=folder / "run", state_dir=folder / "root")
        )
        _copy_sources(folder / "src")
        shutil.copyfile(script, folder / script.name)
        (folder / script.name).chmod(0o644)
        home = folder / "home"
        home.mkdir(mode=0o700)
        os.chown(home, ORDINARY_UID, ORDINARY_UID)
        user = str(ORDINARY_UID)
        return subprocess.run(  # noqa: S603 - our own script
            [
                *("/usr/bin/setpriv", "--reuid", user, "--regid", user, "--clear-groups"),
                *(str(installed.python.host), str(folder / script.name), scenario),
            ],
            env={
                "PYTHONPATH": str(folder / "src"),
                "TMPDIR": str(home),
                "PATH": PATH,
                "OCE_TEST_BWRAP": str(installed.bwrap),
                "OCE_TEST_PYTHON": str(installed.python.host),
            },
            cwd="/",
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


def _copy_sources(target: Path) -> None:
    source = Path(next(iter(oce.__path__)))
    for part in ("sandboxd", "testing"):
        shutil.copytree(
            source / part, target / "oce" / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    (target / "oce" / "__init__.py").touch()
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def serve_scenarios(scenarios: Mapping[str, Callable[[Kit], Awaitable[None]]]) -> None:
    """Run the scenario that the command line names, in a temporary place; the main function of a scenario script."""

    async def run() -> None:
        settings = {
            "bwrap": Path(os.environ["OCE_TEST_BWRAP"]),
            "python": Path(os.environ["OCE_TEST_PYTHON"]),
        }
        async with temporary_place(**settings) as kit:
            await scenarios[sys.argv[1]](kit)

    asyncio.run(run())
