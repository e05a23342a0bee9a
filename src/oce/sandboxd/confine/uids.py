"""Host uids for Sandboxes when the gateway runs as root: one per `uid_key`, kept for ever, never given twice.

A Sandbox's outer user namespace belongs to its uid, and whoever has that uid may enter it; a uid that is used again would open
one tenant's namespace and files to another. So a key keeps its uid and the counter only grows.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIRST_UID = 300_000
LAST_UID = 2_000_000_000


class UidAllocator:
    """Allocations in one JSON file, replaced as a whole and flushed before a uid is used.

    Several processes may use one file (a gateway and `occ doctor`): each allocation is made under a file lock on fresh content.
    """

    def __init__(self, file: Path, first: int = FIRST_UID) -> None:
        self._file = file
        self._first = first
        self._known: dict[str, int] = {}

    def uid_of(self, key: str) -> int:
        """Return the key's uid, allocating it on first use. Raises OSError when it cannot be recorded."""
        known = self._known.get(key)
        if known is None:
            with self._locked():
                known = self._known[key] = self._allocate(key)
        return known

    def _allocate(self, key: str) -> int:
        following, uids = self._read()
        if key in uids:
            return uids[key]
        if following > LAST_UID:
            raise OSError("no host uid is left for another Sandbox")
        self._write(following + 1, uids | {key: following})
        return following

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(
            self._file.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> tuple[int, dict[str, int]]:
        if not self._file.exists():
            return self._first, {}
        stored = json.loads(self._file.read_text())
        uids = {str(key): int(uid) for key, uid in stored["keys"].items()}
        return max(self._first, int(stored["next"])), uids

    def _write(self, following: int, uids: dict[str, int]) -> None:
        fresh = self._file.with_suffix(".new")
        descriptor = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"next": following, "keys": uids}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)
