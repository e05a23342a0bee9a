"""A state directory: everything one single-machine installation keeps, where it lies, and who holds it.

The system's directory (`/var/lib/oce`, root) has fixed ports; every other one gets its own, derived from its path and kept in
`state.json`, so that two directories, or two people on one host, do not meet. A kernel lock says who runs it: it is released when its
holder dies, however it dies. Nothing here starts or stops a program.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oce.dev.files import write_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_DEFAULT_BASE: Final = 17_670
_FIRST_BASE, _LAST_BASE, _STRIDE = 20_000, 32_000, 8
SYSTEM_ROOT: Final = Path("/var/lib/oce")
_GRACE_SECONDS: Final = 0.25
_LONGEST_ROOT: Final = 107 - len("/sandboxd/egress/control.sock")
"""A unix socket's path has at most 107 bytes (unix(7)); this is the longest one below a state directory."""


class StateError(Exception):
    """The state directory cannot be used as asked; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports of one installation. 17670 is also OpenShell's own default."""

    sandboxd: int
    api: int
    gateway: int
    private: int
    model: int

    @classmethod
    def from_base(cls, base: int) -> Ports:
        """Return consecutive ports from `base`."""
        return cls(sandboxd=base, api=base + 1, gateway=base + 2, private=base + 3, model=base + 4)


def default_root() -> Path:
    """Return the default state directory: OCC_STATE_DIR, `/var/lib/oce` for root, else below XDG_STATE_HOME."""
    if named := os.environ.get("OCC_STATE_DIR"):
        return Path(named).absolute()
    if os.geteuid() == 0:
        return SYSTEM_ROOT
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "oce"


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """Paths below one root."""

    root: Path

    @property
    def ports_file(self) -> Path:
        """Where the ports are kept."""
        return self.root / "state.json"

    @property
    def postgres(self) -> Path:
        """The private PostgreSQL."""
        return self.root / "postgres"

    @property
    def sandboxd(self) -> Path:
        """State of sandboxd."""
        return self.root / "sandboxd"

    @property
    def agents(self) -> Path:
        """Workspaces of Agents; the mount source `agents` of sandboxd."""
        return self.root / "agents"

    @property
    def routes(self) -> Path:
        """Route documents of the Agent Gateway."""
        return self.root / "routes"

    @property
    def secrets(self) -> Path:
        """Encrypted Secret values."""
        return self.root / "secrets"

    @property
    def configurations(self) -> Path:
        """Configuration documents."""
        return self.root / "configurations"

    @property
    def runtime(self) -> Path:
        """Programs that other uids must be able to read."""
        return self.root / "runtime"

    @property
    def tls(self) -> Path:
        """The local CA and server certificates."""
        return self.root / "tls"

    @property
    def config(self) -> Path:
        """Configuration files of the programs, written at each start."""
        return self.root / "config"

    @property
    def logs(self) -> Path:
        """One log per program."""
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """Sockets, markers and pids."""
        return self.root / "run"

    @property
    def keys(self) -> Path:
        """The administrator's service key and internal tokens, 0600."""
        return self.root / "keys"

    @property
    def operator_file(self) -> Path:
        """The operator's own settings; never written by us."""
        return self.root / "operator.toml"

    def prepare(self) -> None:
        """Make the directories: the root may be entered by others, only `runtime` and `agents` may be. Raises StateError."""
        if len(os.fsencode(self.root)) > _LONGEST_ROOT:
            raise StateError(
                f"the state directory's path has {len(os.fsencode(self.root))} bytes, and unix sockets below it allow "
                f"{_LONGEST_ROOT} at most; choose a shorter one: occ up --state-dir DIRECTORY"
            )
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o711)
            for path in (self.sandboxd, self.agents, self.runtime):
                path.mkdir(exist_ok=True)
                path.chmod(0o711 if path != self.runtime else 0o755)
            for path in (
                self.routes,
                self.secrets,
                self.configurations,
                self.tls,
                self.config,
                self.logs,
                self.run,
                self.keys,
            ):
                path.mkdir(exist_ok=True)
                path.chmod(0o700)
        except OSError as error:
            raise StateError(
                f"the state directory {self.root} cannot be used: {error.strerror} ({error.filename}); "
                "choose one that you may write: occ up --state-dir DIRECTORY"
            ) from error

    def ports(self, base: int | None = None) -> Ports:
        """Return this directory's ports, choosing and keeping them on first use (or when `base` is given)."""
        if base is None and self.ports_file.exists():
            return self._kept_ports()
        ports = Ports.from_base(base if base is not None else self._own_base())
        write_private(self.ports_file, json.dumps({"version": 1, "ports": asdict(ports)}))
        return ports

    def _kept_ports(self) -> Ports:
        try:
            return Ports(**json.loads(self.ports_file.read_text(encoding="utf-8"))["ports"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{self.ports_file} cannot be read ({type(error).__name__}); `occ up --port-base NUMBER` writes it again"
            ) from error

    def _own_base(self) -> int:
        return _DEFAULT_BASE if self.root == SYSTEM_ROOT else next(_bases(self.root))


def _bases(root: Path) -> Iterator[int]:
    """Yield first ports for a directory, its own one first; all lie below the range that the kernel gives to outgoing connections."""
    slots = (_LAST_BASE - _FIRST_BASE) // _STRIDE
    number = int.from_bytes(hashlib.sha256(os.fsencode(root)).digest()[:4], "big")
    for step in range(slots):
        yield _FIRST_BASE + ((number + step) % slots) * _STRIDE


def free_ports(root: Path) -> Ports:
    """Return ports for a throw-away directory that nobody holds now. Raises StateError when there are none."""
    for base in _bases(root):
        ports = Ports.from_base(base)
        if all(_bindable(port) is None for port in asdict(ports).values()):
            return ports
    raise StateError("no five consecutive ports are free")


def _bindable(port: int) -> OSError | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error
    return None


def refuse_taken_ports(ports: Ports, names: tuple[str, ...]) -> None:
    """Raise StateError naming the first port that somebody else holds."""
    for name in names:
        port = getattr(ports, name)
        if (error := _bindable(port)) is not None:
            raise StateError(
                f"port {port} (for {name}) is in use by another process; stop it, or choose other ports: "
                "occ up --port-base NUMBER (or another --state-dir, which gets ports of its own)"
            ) from error


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a state directory; pid 0 when it has not written its name yet."""

    pid: int
    since: float

    def __str__(self) -> str:
        """Return it in words."""
        if not self.pid:
            return "a process that has not said its name yet"
        return f"process {self.pid} since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"


class Lock:
    """Exclusive use of a state directory, by `flock`: a dead holder never blocks anybody (failure case BR-39)."""

    def __init__(self, state: StateDirectory) -> None:
        self._path = state.run / "lock"
        self._descriptor: int | None = None

    def holder(self) -> Holder | None:
        """Return who holds the directory now, or None. Takes nothing and writes nothing."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _described(descriptor)
        else:
            return None
        finally:
            os.close(descriptor)

    def __enter__(self) -> Lock:  # noqa: PYI034 - not subclassed
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _take(descriptor)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps([os.getpid(), int(time.time())]).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _take(descriptor: int) -> None:
    """Take the lock; a reader holds it for an instant, so a first refusal is asked again. Raises StateError."""
    until = time.monotonic() + _GRACE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise StateError(
                    f"this state directory is in use by {_described(descriptor)}; "
                    "`occ status` shows it, `occ down` stops it"
                ) from None
            time.sleep(0.01)
        else:
            return


def _described(descriptor: int) -> Holder:
    try:
        pid, since = json.loads(os.pread(descriptor, 64, 0))
        return Holder(int(pid), float(since))
    except (ValueError, TypeError):
        return Holder(0, 0.0)
