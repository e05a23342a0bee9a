"""The state directory: its layout, its private modes, and the kernel lock that keeps a second gateway out.

The lock is a `flock` on an open descriptor, so a dead holder never blocks anybody; the text in the file only names the holder
for people.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class AlreadyRunningError(Exception):
    """Another gateway holds this state directory; the sentence names it."""


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """Paths below one gateway's state directory (all directories 0700)."""

    root: Path

    @property
    def auth(self) -> Path:
        """Certificates, keys and the control plane's token."""
        return self.root / "auth"

    @property
    def database(self) -> Path:
        """SQLite file."""
        return self.root / "gateway.db"

    @property
    def sandboxes(self) -> Path:
        """One folder per Sandbox id: private workspace and provider files."""
        return self.root / "sandboxes"

    @property
    def place(self) -> Path:
        """Runtime folder of the place."""
        return self.root / "place"

    @property
    def egress(self) -> Path:
        """The egress process's folder: control socket and vault."""
        return self.root / "egress"

    @property
    def egress_socket(self) -> Path:
        """Control socket of the egress process."""
        return self.egress / "control.sock"

    @property
    def run(self) -> Path:
        """Unix sockets between the front door and the RPC server."""
        return self.root / "run"

    @property
    def lock(self) -> Path:
        """Lock file."""
        return self.root / "lock"

    def prepare(self) -> None:
        """Make every folder, private to this user; as root, Sandboxes' uids may pass through to their own folders."""
        passable = 0o711 if os.geteuid() == 0 else 0o700
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(passable)
        for folder in (self.sandboxes, self.place):
            folder.mkdir(exist_ok=True)
            folder.chmod(passable)
        for folder in (self.auth, self.egress, self.run):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)

    def make_sandbox(self, sandbox_id: str) -> None:
        """Make a Sandbox's folder and its private workspace; what is there stays."""
        folder = self.sandboxes / sandbox_id
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
        self.workspace(sandbox_id).mkdir(mode=0o700, exist_ok=True)

    def workspace(self, sandbox_id: str) -> Path:
        """Return the private writable `/sandbox` of a Sandbox."""
        return self.sandboxes / sandbox_id / "workspace"

    def provider_files(self, sandbox_id: str) -> Path:
        """Return what a Sandbox sees read-only as `/run/openshell/providers`."""
        return self.sandboxes / sandbox_id / "providers"


class Lock:
    """Held as long as the object lives and the process lives."""

    def __init__(self, path: Path, listen: str) -> None:
        """Take the lock. Raises `AlreadyRunningError`."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise AlreadyRunningError(_holder(path)) from error
        text = json.dumps(
            {
                "pid": os.getpid(),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
                "listen": listen,
            }
        )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)


def holder_of(path: Path) -> int | None:
    """Return the pid of the gateway that holds the lock at `path`, or None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return _described(path).get("pid") or None
    finally:
        os.close(descriptor)
    return None


def _described(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _holder(path: Path) -> str:
    found = _described(path)
    if not found:
        return (
            f"another sandboxd holds {path} and has not written its name yet; try again in a moment"
        )
    return (
        f"sandboxd process {found.get('pid')} holds {path.parent} since {found.get('since')}"
        f" (listening on {found.get('listen')}); stop it first or choose another --state-dir"
    )
