"""Where a Sandbox runs: the small interface between lifecycle decisions and the machine.

The gateway decides admission, policy, credentials and restarts; a *place* only starts, observes, reaches into and stops the
confined processes. The one place today is this machine (`confine`); the interface stays small because the next one is a Pod.

A place holds no secret, decides no policy and knows no gRPC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path


class PlaceError(Exception):
    """The machine did not do what was asked.

    PlaceError
    ├── MissingRightError   a kernel right or program is missing; names it and the remedy
    ├── LaunchFailedError   the confined launcher ended before it confirmed its confinement
    └── NotRunningError     nothing of that Sandbox runs here
    """


class MissingRightError(PlaceError):
    """A kernel right or a program that confinement needs is missing: nothing weaker is started instead."""

    def __init__(self, right: str, remedy: str) -> None:
        super().__init__(f"missing right: {right}. {remedy}")
        self.right = right
        self.remedy = remedy


class LaunchFailedError(PlaceError):
    """The launcher ended, or did not confirm its confinement in time."""


class NotRunningError(PlaceError):
    """The Sandbox has no live process here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host directory or file shown inside the Sandbox; `target` is absolute inside.

    `private`: a read-only directory of the gateway's own that nobody on the host but this Sandbox may enter.
    """

    source: Path
    target: str
    read_only: bool
    private: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedFile:
    """A small read-only file that exists only inside the Sandbox (CA bundle, provider files)."""

    target: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one Sandbox. `None` means no limit of that kind was asked for."""

    memory_bytes: int | None = None
    processes: int = 512
    cpu_fraction: float | None = None
    open_files: int = 4096
    temporary_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything needed to start one Sandbox's main process.

    `sandbox_id` is the Sandbox's UUID; `uid_key` groups Sandboxes that share files and therefore a host uid (root mode only).
    `environment` is complete: nothing of the host's environment is added. `workdir` is absolute inside. An empty `command` starts
    no main process: the Sandbox stays up for `exec` until it is stopped ("scratch"). A non-empty `read_write_paths` narrows writing
    from all writable mounts and temporary directories to those paths; a path of either list that cannot be kept is a LaunchFailedError.
    """

    sandbox_id: str
    instance_id: str
    uid_key: str
    command: Sequence[str]
    environment: Mapping[str, str]
    workdir: str
    mounts: Sequence[Mount]
    files: Sequence[GeneratedFile] = ()
    read_only_paths: Sequence[str] = ()
    read_write_paths: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressDescriptors:
    """Sockets made inside the Sandbox's network namespace; whoever holds them accepts its connections.

    The receiver owns the descriptors and closes them. `tcp` maps (family, port) to a listening socket: families AF_INET and
    AF_INET6, ports 443, 80, 53 and 1 (catch-all, where the original destination is SO_ORIGINAL_DST). `udp` maps family to the bound
    port-53 socket. `diag` is a NETLINK_SOCK_DIAG socket of the namespace; `proc` a directory descriptor of the Sandbox's /proc.
    """

    tcp: Mapping[tuple[int, int], socket.socket]
    udp: Mapping[int, socket.socket]
    diag: socket.socket
    proc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How the main process ended: its status, or 128 + signal. `None`: it ended and nobody knows how (the keeper died)."""

    code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One command run beside the main process under the same confinement."""

    command: Sequence[str]
    workdir: str
    environment: Mapping[str, str]
    stdin: bytes = b""
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """A piece of output; `stream` is 1 (stdout) or 2 (stderr)."""

    stream: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ExecExit:
    """The command ended; 124 after a timeout, 128 + n after signal n. Always the last event."""

    code: int


class RunningSandbox(Protocol):
    """A live Sandbox, started or adopted."""

    @property
    def sandbox_id(self) -> str:
        """UUID of the Sandbox."""

    @property
    def instance_id(self) -> str:
        """Identity of this run of the main process."""

    @property
    def proc_id(self) -> str:
        """Host pid and start time of the keeper as `pid:starttime`, for diagnosis."""

    async def egress_descriptors(self) -> EgressDescriptors:
        """Return fresh duplicates of the namespace's listeners; may be called again after an egress restart."""

    async def connect(self, port: int) -> socket.socket:
        """Return a non-blocking TCP socket connected to 127.0.0.1:`port` inside. Raises ConnectionError, NotRunningError."""

    def exec(self, request: ExecRequest) -> AsyncIterator[ExecOutput | ExecExit]:
        """Run a command inside; closing the iterator kills its process group."""

    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield (stream, line) of the main process as it comes; bounded buffer, oldest lines are dropped."""

    async def wait(self) -> ExitStatus:
        """Wait until the main process ended and everything inside is gone."""

    async def stop(self, grace_seconds: float) -> ExitStatus:
        """SIGTERM the main process, then kill the pid namespace after the grace; returns when nothing of it is left."""


class Place(Protocol):
    """Where Sandboxes run."""

    async def check(self) -> None:
        """Try the whole recipe once. Raises MissingRightError."""

    async def start(self, launch: Launch) -> RunningSandbox:
        """Start; returns when confinement is confirmed from inside. Raises PlaceError; then nothing is left over."""

    async def adopt(self, sandbox_id: str) -> RunningSandbox | None:
        """Return a Sandbox that an earlier gateway process started and that is proven to be ours, or None."""

    async def adoptable(self) -> Sequence[str]:
        """Return the ids of all Sandboxes that still run here, known to the caller or not."""

    async def discard(self, sandbox_id: str) -> None:
        """Kill whatever is left of that Sandbox and remove its runtime directory and cgroups; absent is fine."""

    def last_exit(self, sandbox_id: str) -> ExitStatus | None:
        """Return how a Sandbox ended while no gateway watched; None: no record. Gone after `discard`."""

    def shown(self) -> Mapping[str, str]:
        """Return in-Sandbox path prefix to host path for what the place itself shows (system folders, interpreter)."""

    async def close(self) -> None:
        """Let go without stopping any Sandbox."""
