"""Rows of Namespaces. A removed one stays as a tombstone, so that its name is never used again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.domain.resources import Namespace, NamespaceStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oce.store.database import Reader, Row, Tx

NAME_TAKEN: Final = "namespaces_name_unique"
EXISTING_TAKEN: Final = "namespaces_existing_unique"
_COLUMNS: Final = "id, name, existing_namespace, status, created_at"
_LIVE: Final = f"SELECT {_COLUMNS} FROM occ.namespaces WHERE deleted_at IS NULL"  # noqa: S608 - constants of this module
_BY_ID: Final = f"{_LIVE} AND id = %(id)s"
_BY_NAME: Final = f"{_LIVE} AND name = %(name)s"
_LOCK: Final = f"{_BY_ID} FOR NO KEY UPDATE"
_SHARE: Final = f"{_BY_ID} FOR SHARE"
_PAGE: Final = (
    f"{_LIVE} AND (%(id)s::text = '' OR (created_at, id) > (%(at)s::timestamptz, %(id)s))"
    " ORDER BY created_at, id LIMIT %(count)s"
)


def _namespace(row: Row) -> Namespace:
    return Namespace(
        id=row["id"],
        name=row["name"],
        status=NamespaceStatus(row["status"]),
        created_at=row["created_at"],
        existing_namespace=row["existing_namespace"],
    )


async def get(reader: Reader, namespace_id: str) -> Namespace | None:
    """Return a live Namespace."""
    row = await reader.one(_BY_ID, id=namespace_id)
    return _namespace(row) if row else None


async def find(reader: Reader, name: str) -> Namespace | None:
    """Return a live Namespace by name."""
    row = await reader.one(_BY_NAME, name=name)
    return _namespace(row) if row else None


async def lock(tx: Tx, namespace_id: str) -> Namespace | None:
    """Return a live Namespace and keep others from changing it; the first lock of every transaction that takes more than one."""
    row = await tx.one(_LOCK, id=namespace_id)
    return _namespace(row) if row else None


async def share(tx: Tx, namespace_id: str) -> Namespace | None:
    """Like `lock`, beside others that share: for writes to children, so that siblings do not wait for each other."""
    row = await tx.one(_SHARE, id=namespace_id)
    return _namespace(row) if row else None


async def page(reader: Reader, after: tuple[str, str], count: int) -> Sequence[Namespace]:
    """Return live Namespaces after (created_at, id), oldest first."""
    rows = await reader.all(_PAGE, at=after[0] or "-infinity", id=after[1], count=count)
    return [_namespace(row) for row in rows]


async def insert(tx: Tx, namespace: Namespace) -> None:
    """Record a Namespace. Raises ConstraintViolated(NAME_TAKEN or EXISTING_TAKEN)."""
    await tx.run(
        "INSERT INTO occ.namespaces (id, name, existing_namespace, status, created_at)"
        " VALUES (%(id)s, %(name)s, %(existing)s, %(status)s, %(at)s)",
        id=namespace.id,
        name=namespace.name,
        existing=namespace.existing_namespace,
        status=namespace.status,
        at=namespace.created_at,
    )


async def set_status(
    tx: Tx, namespace_id: str, status: NamespaceStatus, *, expected: NamespaceStatus
) -> bool:
    """Move a live Namespace from `expected` to `status`; False when it is elsewhere."""
    return (
        await tx.run(
            "UPDATE occ.namespaces SET status = %(status)s"
            " WHERE id = %(id)s AND status = %(expected)s AND deleted_at IS NULL",
            id=namespace_id,
            status=status,
            expected=expected,
        )
        == 1
    )


async def bury(tx: Tx, namespace_id: str) -> bool:
    """Turn a deleting Namespace into its tombstone and remove its IAM policy, keys and identities' grants; False when not deleting."""
    buried = await tx.run(
        "UPDATE occ.namespaces SET deleted_at = clock_timestamp()"
        " WHERE id = %(id)s AND status = 'deleting' AND deleted_at IS NULL",
        id=namespace_id,
    )
    if buried != 1:
        return False
    for table in ("iam_access_bindings", "iam_restrictions", "service_keys"):
        await tx.run(f"DELETE FROM occ.{table} WHERE namespace_id = %(id)s", id=namespace_id)  # noqa: S608 - names of the tuple above
    await tx.run(
        "DELETE FROM occ.iam_access_bindings b USING occ.iam_identities i"
        " WHERE i.namespace_id = %(id)s AND b.subject_kind = 'identity' AND b.subject_id = i.id",
        id=namespace_id,
    )
    await tx.run(
        "DELETE FROM occ.iam_access_bindings WHERE resource_kind = 'namespace' AND resource_id = %(id)s",
        id=namespace_id,
    )
    await tx.run(
        "DELETE FROM occ.iam_roles WHERE namespace_id = %(id)s AND NOT built_in", id=namespace_id
    )
    return True


async def contents(reader: Reader, namespace_id: str, limit: int = 16) -> Mapping[str, list[str]]:
    """Return what keeps a Namespace from being deleted: kind to at most `limit` ids; kinds without any are left out."""
    found: dict[str, list[str]] = {}
    for kind, table in (
        ("agent", "agents"),
        ("configuration", "configurations"),
        ("secret", "secrets"),
        ("credential_source", "credential_sources"),
    ):
        rows = await reader.all(
            f"SELECT id FROM occ.{table} WHERE namespace_id = %(id)s ORDER BY id LIMIT %(limit)s",  # noqa: S608 - names of the tuple above
            id=namespace_id,
            limit=limit,
        )
        if rows:
            found[kind] = [row["id"] for row in rows]
    return found
