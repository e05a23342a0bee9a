"""The gateway's records in one SQLite file: one `objects` table, the request ledger beside it.

One writer thread runs every write as one transaction, so that a mutation's effect and its ledger receipt commit together or
not at all and the event loop never waits for the disk. Reads use a second connection on the loop's thread. The write-ahead log
is synchronised at each commit: what was deleted does not come back after a power cut.

No credential value is ever stored here (design invariant 7).
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
  kind TEXT NOT NULL, id TEXT NOT NULL, workspace TEXT NOT NULL, parent TEXT NOT NULL, name TEXT NOT NULL,
  payload BLOB NOT NULL, status BLOB NOT NULL, facts TEXT NOT NULL, version INTEGER NOT NULL, created REAL NOT NULL,
  PRIMARY KEY (kind, id), UNIQUE (kind, workspace, parent, name)
) STRICT;
CREATE TABLE IF NOT EXISTS requests (
  key TEXT PRIMARY KEY, caller TEXT NOT NULL, method TEXT NOT NULL, fingerprint BLOB NOT NULL, state TEXT NOT NULL,
  receipt BLOB NOT NULL, admitted REAL NOT NULL, completed REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
"""


class Kind(StrEnum):
    """What an object row holds."""

    WORKSPACE = "workspace"
    SANDBOX = "sandbox"
    PROVIDER = "provider"
    PROFILE = "profile"
    SERVICE = "service"
    POLICY = "policy"
    TEMPLATE = "template"
    SUGGESTION = "suggestion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One object. `payload` is the serialized message of the wire without its status; `facts` are the gateway's own words.

    `parent` is the owning Sandbox's id for services, policy revisions and decided suggestions, else empty. `version` is the wire's resource
    version; writes of status and facts leave it alone, so that they never break a caller's compare-and-swap.
    """

    kind: Kind
    id: str
    workspace: str
    name: str
    parent: str = ""
    payload: bytes = b""
    status: bytes = b""
    facts: dict[str, Any] = field(default_factory=dict)
    version: int = 1
    created: float = 0.0


_COLUMNS = "kind, id, workspace, parent, name, payload, status, facts, version, created"


def _record(row: tuple[Any, ...]) -> Record:
    kind, id_, workspace, parent, name, payload, status, facts, version, created = row
    return Record(
        kind=Kind(kind),
        id=id_,
        workspace=workspace,
        parent=parent,
        name=name,
        payload=payload,
        status=status,
        facts=json.loads(facts),
        version=version,
        created=created,
    )


class Reader:
    """Queries over one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def _one(self, where: str, values: tuple[object, ...]) -> Record | None:
        row = self.connection.execute(
            f"SELECT {_COLUMNS} FROM objects WHERE {where}",  # noqa: S608 - `where` is one of this class's literals
            values,
        ).fetchone()
        return None if row is None else _record(row)

    def named(self, kind: Kind, workspace: str, name: str, parent: str = "") -> Record | None:
        """Return the object of that name, or None."""
        return self._one(
            "kind=? AND workspace=? AND parent=? AND name=?", (kind, workspace, parent, name)
        )

    def by_id(self, kind: Kind, id_: str) -> Record | None:
        """Return the object of that id, or None."""
        return self._one("kind=? AND id=?", (kind, id_))

    def page(
        self,
        kind: Kind,
        *,
        workspace: str | None = None,
        parent: str | None = None,
        after: tuple[str, str, str] = ("", "", ""),
        limit: int = -1,
    ) -> Sequence[Record]:
        """Return objects ordered by (workspace, parent, name), strictly after a position."""
        where, values = ["kind=?", "(workspace, parent, name) > (?, ?, ?)"], [kind, *after]
        if workspace is not None:
            where.append("workspace=?")
            values.append(workspace)
        if parent is not None:
            where.append("parent=?")
            values.append(parent)
        rows = self.connection.execute(
            f"SELECT {_COLUMNS} FROM objects WHERE {' AND '.join(where)} "  # noqa: S608 - literals only
            "ORDER BY workspace, parent, name LIMIT ?",
            (*values, limit),
        )
        return [_record(row) for row in rows]


class Transaction(Reader):
    """A write transaction; everything in it commits together."""

    def insert(self, record: Record) -> None:
        """Add an object. Raises `sqlite3.IntegrityError` when the name is taken."""
        self.connection.execute(
            f"INSERT INTO objects ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?)",  # noqa: S608 - a literal
            (
                record.kind,
                record.id,
                record.workspace,
                record.parent,
                record.name,
                record.payload,
                record.status,
                json.dumps(record.facts),
                record.version,
                record.created,
            ),
        )

    def update(self, record: Record, *, bump: bool) -> Record:
        """Replace payload, status and facts; `bump` raises the resource version (a change of what was asked for)."""
        changed = replace(record, version=record.version + 1) if bump else record
        self.connection.execute(
            "UPDATE objects SET payload=?, status=?, facts=?, version=? WHERE kind=? AND id=?",
            (
                changed.payload,
                changed.status,
                json.dumps(changed.facts),
                changed.version,
                changed.kind,
                changed.id,
            ),
        )
        return changed

    def delete(self, record: Record) -> None:
        """Remove an object and what belongs to it."""
        self.connection.execute(
            "DELETE FROM objects WHERE (kind=? AND id=?) OR parent=?",
            (record.kind, record.id, record.id),
        )

    def next(self, counter: str) -> int:
        """Return the next value of a counter that never goes back."""
        row = self.connection.execute(
            "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
            (counter,),
        ).fetchone()
        return int(row[0])


class Store:
    """The file, its writer thread and its reading connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        # Made first with its mode, which the write-ahead log's files inherit.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._writer.execute("PRAGMA journal_mode=WAL")
        self._writer.execute("PRAGMA synchronous=FULL")
        self._writer.executescript(_SCHEMA)
        reading = sqlite3.connect(path, isolation_level=None)
        reading.execute("PRAGMA query_only=ON")
        self.read = Reader(reading)

    def _run(self, work: Callable[[Transaction], T]) -> T:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            result = work(Transaction(self._writer))
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise
        return result

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` as one transaction in the writer thread; its exception rolls everything back.

        A cancelled caller does not cancel the transaction.
        """
        return await asyncio.shield(
            asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)
        )

    def close(self) -> None:
        """Finish the running transaction and close both connections."""
        self._thread.shutdown(wait=True)
        self._writer.close()
        self.read.connection.close()
