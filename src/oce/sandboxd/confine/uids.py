"""Host uids for Sandboxes when the gateway runs as root: one per `uid_key`, kept for ever, never given twice.

A Sandbox's outer user namespace belongs to its uid, and whoever has that uid may enter it; a uid that is used again would open
one tenant's namespace and files to another. So a key keeps its uid and the counter only grows.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FIRST_UID = 300_000
LAST_UID = 2_000_000_000


class UidAllocator:
    """Allocations in one JSON file, replaced as a whole and flushed before a uid is used. One process at a time."""

    def __init__(self, file: Path, first: int = FIRST_UID) -> None:
        self._file = file
        self._next = first
        self._by_key: dict[str, int] = {}
        if file.exists():
            stored = json.loads(file.read_text())
            self._next = max(first, int(stored["next"]))
            self._by_key = {str(key): int(uid) for key, uid in stored["keys"].items()}

    def uid_of(self, key: str) -> int:
        """Return the key's uid, allocating it on first use. Raises OSError when it cannot be recorded."""
        known = self._by_key.get(key)
        if known is not None:
            return known
        uid = self._next
        if uid > LAST_UID:
            raise OSError("no host uid is left for another Sandbox")
        self._write(uid + 1, self._by_key | {key: uid})
        self._next = uid + 1
        self._by_key[key] = uid
        return uid

    def _write(self, following: int, keys: dict[str, int]) -> None:
        fresh = self._file.with_suffix(".new")
        descriptor = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"next": following, "keys": keys}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)
