"""Rows of service keys: an id and the SHA-256 of the secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.domain.resources import ServiceKey

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oce.store.database import Reader, Row, Tx

_COLUMNS: Final = (
    "id, service_principal_id, namespace_id, name, created_at, expires_at, last_used_at"
)


def _key(row: Row) -> ServiceKey:
    return ServiceKey(
        id=row["id"],
        service_principal_id=row["service_principal_id"],
        namespace_id=row["namespace_id"],
        name=row["name"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        last_used_at=row["last_used_at"],
    )


async def insert(tx: Tx, key: ServiceKey, secret_sha256: bytes) -> None:
    """Record a key."""
    await tx.run(
        "INSERT INTO occ.service_keys (id, service_principal_id, namespace_id, name, secret_sha256, created_at, expires_at)"
        " VALUES (%(id)s, %(principal)s, %(namespace)s, %(name)s, %(secret)s, %(at)s, %(expires)s)",
        id=key.id,
        principal=key.service_principal_id,
        namespace=key.namespace_id,
        name=key.name,
        secret=secret_sha256,
        at=key.created_at,
        expires=key.expires_at,
    )


async def verifier(reader: Reader, key_id: str) -> tuple[ServiceKey, bytes, str | None] | None:
    """Return a key, its digest and the Namespace of its principal; None when unknown or owned by an Agent's principal."""
    row = await reader.one(
        "SELECT k.id, k.service_principal_id, k.namespace_id, k.name, k.created_at, k.expires_at, k.last_used_at,"
        " k.secret_sha256, i.namespace_id AS principal_namespace_id"
        " FROM occ.service_keys k JOIN occ.iam_identities i ON i.id = k.service_principal_id"
        " WHERE k.id = %(id)s AND i.kind = 'service_principal' AND i.agent_id IS NULL",
        id=key_id,
    )
    if row is None:
        return None
    return _key(row), bytes(row["secret_sha256"]), row["principal_namespace_id"]


async def touch(tx: Tx, key_id: str, at: datetime) -> None:
    """Record that a key was used."""
    await tx.run(
        "UPDATE occ.service_keys SET last_used_at = %(at)s WHERE id = %(id)s", id=key_id, at=at
    )


async def get(reader: Reader, key_id: str) -> ServiceKey | None:
    """Return a key without its digest."""
    row = await reader.one(
        f"SELECT {_COLUMNS} FROM occ.service_keys WHERE id = %(id)s",  # noqa: S608 - constants of this module
        id=key_id,
    )
    return _key(row) if row else None


async def page(reader: Reader, after: tuple[str, str], count: int) -> Sequence[ServiceKey]:
    """Return keys after (created_at, id), oldest first."""
    rows = await reader.all(
        f"SELECT {_COLUMNS} FROM occ.service_keys"  # noqa: S608 - constants of this module
        " WHERE (%(id)s::text = '' OR (created_at, id) > (%(at)s::timestamptz, %(id)s))"
        " ORDER BY created_at, id LIMIT %(count)s",
        at=after[0] or "-infinity",
        id=after[1],
        count=count,
    )
    return [_key(row) for row in rows]


async def remove(tx: Tx, key_id: str) -> bool:
    """Delete a key, so that no concurrent verification can bring it back."""
    return await tx.run("DELETE FROM occ.service_keys WHERE id = %(id)s", id=key_id) == 1
