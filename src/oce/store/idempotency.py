"""Idempotency keys: one request of one principal takes effect once.

The row is written in the transaction of the effect, so that a key without its effect cannot exist. Two requests at once meet in the
primary key: the second waits and then finds the first's answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oce.store.database import Reader, Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """Who used which key for what; `scope` is the Namespace id or `-`."""

    principal_id: str
    operation: str
    scope: str
    key: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Replay:
    """An earlier use of the key: what it made, and whether the request was the same."""

    resource_id: str
    same: bool


_FIND = (
    "SELECT resource_id, fingerprint FROM occ.idempotency_keys WHERE principal_id = %(principal)s"
    " AND operation = %(operation)s AND scope = %(scope)s AND key = %(key)s"
)


async def find(reader: Reader, use: KeyUse) -> Replay | None:
    """Return the earlier use of this key, if there was one."""
    row = await reader.one(
        _FIND,
        principal=use.principal_id,
        operation=use.operation,
        scope=use.scope,
        key=use.key,
    )
    if row is None:
        return None
    return Replay(row["resource_id"], bytes(row["fingerprint"]) == use.fingerprint)


async def claim(tx: Tx, use: KeyUse, resource_id: str) -> Replay | None:
    """Take the key for a new resource; returns the earlier use instead when there was one."""
    taken = await tx.run(
        "INSERT INTO occ.idempotency_keys (principal_id, operation, scope, key, fingerprint, resource_id)"
        " VALUES (%(principal)s, %(operation)s, %(scope)s, %(key)s, %(fingerprint)s, %(resource)s)"
        " ON CONFLICT DO NOTHING",
        principal=use.principal_id,
        operation=use.operation,
        scope=use.scope,
        key=use.key,
        fingerprint=use.fingerprint,
        resource=resource_id,
    )
    return None if taken else await find(tx, use)
