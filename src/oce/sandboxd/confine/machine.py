"""The machine as a place: prepares a Sandbox's directories, uid, limits and view, has it started, finds it again later.

It implements `oce.sandboxd.place.Place`. All decisions (what to start, when to restart, what the network may) are the gateway's.
Every start is all or nothing: what fails leaves no process, directory, socket or control group.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import stat
import subprocess
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from oce.sandboxd.confine import channel, generated, programs, view, wire
from oce.sandboxd.confine.control_groups import ControlGroups
from oce.sandboxd.confine.piped_command import check_command, memory_file
from oce.sandboxd.confine.running import (
    MachineSandbox,
    kill_recorded_keeper,
    recorded_exit,
    recorded_keeper,
)
from oce.sandboxd.confine.uids import UidAllocator
from oce.sandboxd.place import (
    Launch,
    LaunchFailedError,
    Limits,
    Mount,
    NotRunningError,
    PlaceError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from oce.sandboxd.confine.config import ConfineConfig
    from oce.sandboxd.confine.programs import Programs
    from oce.sandboxd.place import ExitStatus

_END_SECONDS = 5.0
_ANSWER_SECONDS = 2.0
_POLL_SECONDS = 0.005
_CHECK_WORKDIR = "/tmp"  # noqa: S108 - inside the Sandbox


class MachinePlace:
    """Sandboxes on this machine.

    The constructor only remembers. Programs are installed and the spawner is started at the first use, from any thread state:
    the spawner is a fresh single-threaded process and lives until `close`, or until this process ends.
    """

    def __init__(self, config: ConfineConfig) -> None:
        self._config = config
        self._root = os.geteuid() == 0
        self._programs: Programs | None = None
        self._uids: UidAllocator | None = None
        self._groups = ControlGroups({})
        self._spawner: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._preparing = asyncio.Lock()
        self._live: dict[str, MachineSandbox] = {}
        self._starting: set[str] = set()

    # ---- Place

    async def check(self) -> None:
        """Try the whole recipe once. Raises MissingRightError, LaunchFailedError."""
        await self.try_recipe()

    async def try_recipe(self) -> str:
        """Start a Sandbox with `true` and remove it; return why other ports are not redirected (empty: they are)."""
        sandbox_id = f"check-{uuid.uuid4()}"
        launch = Launch(
            sandbox_id=sandbox_id,
            instance_id=sandbox_id,
            uid_key="check",
            command=["true"],
            environment={},
            workdir=_CHECK_WORKDIR,
            mounts=(),
            limits=Limits(memory_bytes=256 * 1024 * 1024, processes=64, cpu_fraction=1.0),
        )
        try:
            sandbox = await self.start(launch)
            status = await sandbox.wait()
        finally:
            await self.discard(sandbox_id)
        if status.code != 0:
            raise LaunchFailedError(f"`true` ended with {status.code} inside a Sandbox")
        return sandbox.no_redirect

    async def start(self, launch: Launch) -> MachineSandbox:
        """Start a Sandbox. Raises ValueError for an impossible command, PlaceError; then nothing is left over."""
        if launch.command:
            check_command(launch.command, launch.environment, launch.workdir)
        directory = self._directory(launch.sandbox_id)
        await self._prepare()
        if launch.sandbox_id in self._starting or recorded_keeper(directory) is not None:
            raise LaunchFailedError(f"Sandbox {launch.sandbox_id} runs already")
        self._starting.add(launch.sandbox_id)
        try:
            await self.discard(launch.sandbox_id)
            return await self._start(launch, directory)
        except BaseException:
            await asyncio.shield(self.discard(launch.sandbox_id))
            raise
        finally:
            self._starting.discard(launch.sandbox_id)

    async def adopt(self, sandbox_id: str) -> MachineSandbox | None:
        """Return a running Sandbox whose keeper is proven by boot, pid, start time and the socket's own peer; else None."""
        await self._prepare()
        held = self._live.get(sandbox_id)
        if held is not None:
            return held
        directory = self._directory(sandbox_id)
        pid = recorded_keeper(directory)
        if pid is None:
            return None
        try:
            connection = channel.connect_in(directory, wire.SOCKET_NAME)
        except OSError:
            return None
        if channel.peer_pid(connection) != pid:
            connection.close()
            return None
        sandbox = self._hold(sandbox_id, directory, connection)
        try:
            await sandbox.take_over()
        except NotRunningError:
            self._forget(sandbox_id)
            sandbox.let_go()
            return None
        return sandbox

    async def adoptable(self) -> Sequence[str]:
        """Return the ids of all Sandboxes that still run here."""
        await self._prepare()
        return [name for name in self._recorded() if recorded_keeper(self._directory(name))]

    async def discard(self, sandbox_id: str) -> None:
        """Kill what is left of a Sandbox and remove its directory and control groups; absent is fine."""
        directory = self._directory(sandbox_id)
        sandbox = self._live.pop(sandbox_id, None)
        await _end_keeper(directory)
        if sandbox is not None:
            sandbox.let_go(ended=True)
        await _poll(
            lambda: self._groups.remove(sandbox_id),
            f"a process of Sandbox {sandbox_id} does not leave its control group",
        )
        shutil.rmtree(directory, ignore_errors=True)

    async def close(self) -> None:
        """Let go of all Sandboxes, which run on, and end the spawner."""
        for sandbox in list(self._live.values()):
            sandbox.let_go()
        self._live.clear()
        if self._spawner is not None:
            process, requests = self._spawner
            self._spawner = None
            requests.close()
            await asyncio.to_thread(process.wait)

    def shown(self) -> Mapping[str, str]:
        """Return in-Sandbox path prefix to host path for the system folders and, once a Sandbox was started, the interpreter."""
        result = {path: path for path, _ in view.system_roots(self._config.system_paths)}
        if self._programs is not None and self._programs.python.prefix is not None:
            python = self._programs.python
            result[python.inside_prefix] = str(python.prefix)
        return result

    def last_exit(self, sandbox_id: str) -> ExitStatus | None:
        """Return how a Sandbox ended while no gateway watched; None: no record. Gone after `discard`."""
        return recorded_exit(self._directory(sandbox_id))

    # ---- beyond the protocol

    async def leftovers(self) -> Sequence[str]:
        """Return the ids of all Sandboxes of which something is left here, running or not, for the gateway to discard."""
        await self._prepare()
        return self._recorded()

    # ---- preparation

    async def _prepare(self) -> Programs:
        async with self._preparing:
            if self._programs is None:
                self._programs = await asyncio.to_thread(self._install)
            return self._programs

    def _install(self) -> Programs:
        runtime, state = self._config.runtime_dir, self._config.state_dir
        for folder in (runtime, state):
            folder.mkdir(parents=True, exist_ok=True)
        runtime.chmod(0o711 if self._root else 0o700)
        if self._root:
            programs.require_reachable(runtime)
            self._uids = UidAllocator(state / "uids.json", self._config.first_uid)
            self._groups = ControlGroups.of_this_machine()
        return programs.install(self._config)

    def _directory(self, sandbox_id: str) -> Path:
        if not sandbox_id or not all(c.isalnum() or c in "-_" for c in sandbox_id):
            raise ValueError(f"{sandbox_id!r} is no Sandbox id")
        return self._config.runtime_dir / sandbox_id

    def _recorded(self) -> list[str]:
        return sorted(entry.name for entry in self._config.runtime_dir.iterdir() if entry.is_dir())

    def _ask_spawner(self, installed: Programs, descriptors: list[int]) -> None:
        """Send one request, starting the spawner when there is none, or again when it died."""
        for fresh in (False, True):
            if self._spawner is None or fresh:
                self._start_spawner(installed)
            if self._spawner is not None:
                with suppress(BrokenPipeError, ConnectionResetError):
                    socket.send_fds(self._spawner[1], [b"keep"], descriptors)
                    return
        raise LaunchFailedError("the spawner does not take requests")

    def _start_spawner(self, installed: Programs) -> None:
        if self._spawner is not None:
            process, requests = self._spawner
            requests.close()
            process.kill()
            process.wait()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [*installed.command("spawner", inside=False), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        self._spawner = (process, ours)

    # ---- one start

    async def _start(self, launch: Launch, directory: Path) -> MachineSandbox:
        installed = await self._prepare()
        uid = self._uids.uid_of(launch.uid_key) if self._uids is not None else None
        for mount in launch.mounts:
            _prepare_mount(mount, uid)
        layout = _layout(launch)
        _make_directory(directory, launch, layout, uid)
        plan = view.build(
            launch,
            installed,
            layout,
            store=directory / "files",
            etc=directory / "etc",
            system_paths=self._config.system_paths,
        )
        groups = self._create_groups(launch)
        config = memory_file(self._keeper_config(launch, installed, directory, plan, uid))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._ask_spawner(installed, [config, theirs.fileno(), *groups])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for descriptor in (config, *groups):
                os.close(descriptor)
        sandbox = self._hold(launch.sandbox_id, directory, ours)
        await sandbox.confined(self._config.start_seconds)
        return sandbox

    def _create_groups(self, launch: Launch) -> list[int]:
        try:
            return self._groups.create(launch.sandbox_id, launch.limits)
        except OSError as error:
            raise LaunchFailedError(f"control groups: {error}") from error

    def _keeper_config(
        self,
        launch: Launch,
        installed: Programs,
        directory: Path,
        plan: view.View,
        uid: int | None,
    ) -> dict[str, object]:
        limits = launch.limits
        rlimits = [
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, limits.open_files),
            (resource.RLIMIT_NPROC, limits.processes),
        ]
        main = {
            "argv": list(launch.command),
            "environment": dict(launch.environment),
            "workdir": launch.workdir,
        }
        return {
            "directory": str(directory),
            "instance": launch.instance_id,
            "uid": uid,
            "nft": str(installed.nft) if installed.nft else None,
            "options": plan.options,
            "command": [
                *(str(installed.bwrap), "--args", str(wire.ARGUMENTS_DESCRIPTOR), "--"),
                *installed.command("launcher", inside=True),
                str(wire.LAUNCHER_DESCRIPTOR),
            ],
            "confine": [plan.rules, rlimits, not self._root, launch.workdir],
            "main": main if launch.command else None,
        }

    def _hold(self, sandbox_id: str, directory: Path, connection: socket.socket) -> MachineSandbox:
        sandbox = MachineSandbox(
            sandbox_id=sandbox_id,
            directory=directory,
            channel=connection,
            on_end=self._forget,
        )
        self._live[sandbox_id] = sandbox
        return sandbox

    def _forget(self, sandbox_id: str) -> None:
        self._live.pop(sandbox_id, None)
        self._groups.remove(sandbox_id)


def _layout(launch: Launch) -> generated.Layout:
    try:
        return generated.plan([f.target for f in launch.files], [m.target for m in launch.mounts])
    except generated.ImpossibleFileError as error:
        raise LaunchFailedError(str(error)) from error


def _make_directory(
    directory: Path, launch: Launch, layout: generated.Layout, uid: int | None
) -> None:
    """Make the runtime directory: root's and passable for the Sandbox's uid (as root), or private (as an ordinary user)."""
    directory.mkdir()
    directory.chmod(0o711 if uid is not None else 0o700)
    etc = directory / "etc"
    etc.mkdir()
    etc.chmod(0o755)
    for name, text in view.ETC_FILES.items():
        (etc / name).write_text(text)
        (etc / name).chmod(0o444)
    generated.GeneratedStore(directory / "files", layout, uid).create(launch.files)


def _prepare_mount(mount: Mount, uid: int | None) -> None:
    """Make a writable source and give it to the Sandbox's uid; never take one from another Sandbox."""
    source = mount.source
    if not source.is_absolute() or not mount.target.startswith("/") or ".." in mount.target:
        raise LaunchFailedError(f"mount {source} at {mount.target}: not a plain absolute path")
    if mount.read_only:
        if not source.exists():
            raise LaunchFailedError(f"mount source {source} does not exist")
    else:
        source.mkdir(parents=True, exist_ok=True, mode=0o700)
    if uid is None:
        return
    try:
        programs.require_reachable(source.parent)
    except PlaceError as error:
        raise LaunchFailedError(f"mount source {source} cannot be reached: {error}") from error
    if not mount.read_only:
        _give(source, uid)
    elif mount.private:
        _admit_only(source, uid)


def _admit_only(source: Path, uid: int) -> None:
    """Let only a Sandbox's uid (and root) enter one of root's own directories."""
    descriptor = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(descriptor, -1, uid)
        os.fchmod(descriptor, 0o750)
    finally:
        os.close(descriptor)


def _give(source: Path, uid: int) -> None:
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid == uid:
            return
        if found.st_uid != 0 or not stat.S_ISDIR(found.st_mode):
            raise LaunchFailedError(f"mount source {source} belongs to uid {found.st_uid}")
        os.fchown(descriptor, uid, uid)
    finally:
        os.close(descriptor)


async def _end_keeper(directory: Path) -> None:
    """Have the keeper end everything, which it does not leave before all is reaped; kill a keeper that does not answer."""
    if recorded_keeper(directory) is None:
        return
    with suppress(OSError, NotRunningError, TimeoutError):
        connection = channel.KeeperChannel(
            channel.connect_in(directory, wire.SOCKET_NAME), lambda _: None, lambda: None
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await connection.request("stop", grace=0)
                while recorded_keeper(directory) is not None:  # noqa: ASYNC110 - a state of the kernel
                    await asyncio.sleep(_POLL_SECONDS)
        finally:
            connection.close()
    kill_recorded_keeper(directory)
    await _poll(lambda: recorded_keeper(directory) is None, f"the keeper of {directory} stays")


async def _poll(done: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise PlaceError(otherwise)
        await asyncio.sleep(_POLL_SECONDS)
