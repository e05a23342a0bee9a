"""Work rows: enqueueing them, and reading them for status. Claiming and publishing belong to the worker (`store.queue`).

A key names one intention. Enqueueing it again is harmless; enqueueing it for another target is a conflict. The NOTIFY travels with
the commit, so that no worker is woken for work that does not exist.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oce.domain.resources import Json
    from oce.store.database import Reader, Row, Tx

WORK_CHANNEL: Final = "occ_work"
"""NOTIFY channel of enqueued work; the payload is the work's key."""
WorkState = Literal["queued", "claimed", "succeeded", "failed_permanent"]
_COLUMNS: Final = (
    "idempotency_key, work_kind, namespace_id, agent_id, revision_id, actor_id, namespace_target, agent_target,"
    " state, available_at, attempt_count, claim_token, lease_expires_at, completed_at, reason_code, result_data,"
    " created_at, updated_at"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One row of `controller_work`."""

    idempotency_key: str
    work_kind: Literal["lifecycle", "provisioning"]
    namespace_id: str
    agent_id: str | None
    revision_id: str | None
    actor_id: str
    namespace_target: Literal["ready", "deleted"] | None
    agent_target: Literal["stopped", "deleted", "credentials_withdrawn"] | None
    state: WorkState
    available_at: datetime
    attempt_count: int
    claim_token: uuid.UUID | None
    lease_expires_at: datetime | None
    completed_at: datetime | None
    reason_code: str | None
    result_data: Json | None
    created_at: datetime
    updated_at: datetime


class WorkConflict(Exception):  # noqa: N818 - names the state of the key
    """The key exists for another owner, actor or target."""


def of_row(row: Row) -> Work:
    """Read a row that holds every column."""
    return Work(**row)


def reconcile_key(revision_id: str) -> str:
    """Return the key of a deployment."""
    return f"agent_revision:{revision_id}:reconcile"


def operation_key(kind: Literal["agent", "namespace"], resource_id: str, verb: str) -> str:
    """Return a fresh key of one request (`stop`, `delete`, `ensure`), so that a later request starts with its own deadline."""
    return f"{kind}:{resource_id}:{verb}:{uuid.uuid4()}"


async def enqueue(
    tx: Tx,
    *,
    key: str,
    namespace_id: str,
    actor_id: str,
    agent_id: str | None = None,
    revision_id: str | None = None,
    namespace_target: Literal["ready", "deleted"] | None = None,
    agent_target: Literal["stopped", "deleted"] | None = None,
) -> None:
    """Queue work and wake a worker when this transaction commits. Raises WorkConflict."""
    values = {
        "key": key,
        "namespace": namespace_id,
        "agent": agent_id,
        "revision": revision_id,
        "actor": actor_id,
        "namespace_target": namespace_target,
        "agent_target": agent_target,
    }
    inserted = await tx.run(
        "INSERT INTO occ.controller_work"
        " (idempotency_key, namespace_id, agent_id, revision_id, actor_id, namespace_target, agent_target)"
        " VALUES (%(key)s, %(namespace)s, %(agent)s, %(revision)s, %(actor)s, %(namespace_target)s, %(agent_target)s)"
        " ON CONFLICT (idempotency_key) DO NOTHING",
        **values,
    )
    if inserted == 0:
        same = await tx.one(
            "SELECT 1 AS same FROM occ.controller_work WHERE idempotency_key = %(key)s"
            " AND namespace_id = %(namespace)s AND actor_id = %(actor)s"
            " AND agent_id IS NOT DISTINCT FROM %(agent)s AND revision_id IS NOT DISTINCT FROM %(revision)s"
            " AND namespace_target IS NOT DISTINCT FROM %(namespace_target)s"
            " AND agent_target IS NOT DISTINCT FROM %(agent_target)s",
            **values,
        )
        if same is None:
            raise WorkConflict(key)
    await tx.one("SELECT pg_notify(%(channel)s, %(key)s) AS sent", channel=WORK_CHANNEL, key=key)


async def newest_for_agent(
    reader: Reader, agent_id: str, target: Literal["stopped", "deleted"]
) -> Work | None:
    """Return the newest stop or deletion of an Agent."""
    row = await reader.one(
        f"SELECT {_COLUMNS} FROM occ.controller_work WHERE agent_id = %(id)s AND agent_target = %(target)s"  # noqa: S608 - constants of this module
        " ORDER BY created_at DESC, idempotency_key DESC LIMIT 1",
        id=agent_id,
        target=target,
    )
    return of_row(row) if row else None


async def newest_for_namespace(
    reader: Reader, namespace_id: str, target: Literal["ready", "deleted"]
) -> Work | None:
    """Return the newest provisioning or deletion of a Namespace."""
    row = await reader.one(
        f"SELECT {_COLUMNS} FROM occ.controller_work"  # noqa: S608 - constants of this module
        " WHERE namespace_id = %(id)s AND agent_id IS NULL AND namespace_target = %(target)s"
        " ORDER BY created_at DESC, idempotency_key DESC LIMIT 1",
        id=namespace_id,
        target=target,
    )
    return of_row(row) if row else None


async def unfinished_for_agent(reader: Reader, agent_id: str) -> Sequence[Work]:
    """Return the queued and claimed work of an Agent, oldest first."""
    rows = await reader.all(
        f"SELECT {_COLUMNS} FROM occ.controller_work"  # noqa: S608 - constants of this module
        " WHERE agent_id = %(id)s AND state IN ('queued', 'claimed') ORDER BY created_at, idempotency_key",
        id=agent_id,
    )
    return [of_row(row) for row in rows]


async def status(reader: Reader, key: str) -> tuple[Work, bool] | None:
    """Return a work row and whether its lease is alive by the database's clock."""
    row = await reader.one(
        f"SELECT {_COLUMNS}, COALESCE(lease_expires_at > clock_timestamp(), false) AS live"  # noqa: S608 - constants of this module
        " FROM occ.controller_work WHERE idempotency_key = %(key)s",
        key=key,
    )
    if row is None:
        return None
    live = bool(row.pop("live"))
    return of_row(row), live
