"""Rows of Secrets: metadata and the Secret driver's locator, never a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.domain.resources import Secret, SecretLocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.store.database import Reader, Row, Tx

NAME_TAKEN: Final = "secrets_name_unique"
_COLUMNS: Final = (
    "id, namespace_id, name, driver_id, state, backend_namespace_name, backend_name, backend_key,"
    " backend_uid, created_at"
)
_ALL: Final = f"SELECT {_COLUMNS} FROM occ.secrets WHERE namespace_id = %(namespace_id)s"  # noqa: S608 - constants of this module
_BY_ID: Final = f"{_ALL} AND id = %(id)s"
_BY_NAME: Final = f"{_ALL} AND name = %(name)s"
_PAGE: Final = (
    f"{_ALL} AND (%(id)s::text = '' OR (created_at, id) > (%(at)s::timestamptz, %(id)s))"
    " ORDER BY created_at, id LIMIT %(count)s"
)


def _secret(row: Row) -> Secret:
    return Secret(
        id=row["id"],
        namespace_id=row["namespace_id"],
        name=row["name"],
        locator=SecretLocator(
            driver_id=row["driver_id"],
            namespace_name=row["backend_namespace_name"] or "",
            name=row["backend_name"] or "",
            key=row["backend_key"] or "",
            uid=row["backend_uid"] or "",
        ),
        created_at=row["created_at"],
        state=row["state"],
    )


async def get(reader: Reader, namespace_id: str, secret_id: str) -> Secret | None:
    """Return a Secret's record."""
    row = await reader.one(_BY_ID, namespace_id=namespace_id, id=secret_id)
    return _secret(row) if row else None


async def find(reader: Reader, namespace_id: str, name: str) -> Secret | None:
    """Return a Secret's record by name."""
    row = await reader.one(_BY_NAME, namespace_id=namespace_id, name=name)
    return _secret(row) if row else None


async def lock(tx: Tx, namespace_id: str, secret_id: str) -> Secret | None:
    """Return a Secret's record and keep references from appearing meanwhile."""
    row = await tx.one(f"{_BY_ID} FOR UPDATE", namespace_id=namespace_id, id=secret_id)
    return _secret(row) if row else None


async def hold(tx: Tx, namespace_id: str, secret_id: str) -> Secret | None:
    """Return a Secret's record and keep it from being deleted until this transaction, which refers to it, ends."""
    row = await tx.one(f"{_BY_ID} FOR KEY SHARE", namespace_id=namespace_id, id=secret_id)
    return _secret(row) if row else None


async def page(
    reader: Reader, namespace_id: str, after: tuple[str, str], count: int
) -> Sequence[Secret]:
    """Return Secrets after (created_at, id), oldest first."""
    rows = await reader.all(
        _PAGE, namespace_id=namespace_id, at=after[0] or "-infinity", id=after[1], count=count
    )
    return [_secret(row) for row in rows]


async def insert_writing(tx: Tx, secret: Secret) -> None:
    """Record a Secret whose value is about to be stored. Raises ConstraintViolated(NAME_TAKEN)."""
    await tx.run(
        "INSERT INTO occ.secrets (id, namespace_id, name, driver_id, state, created_at)"
        " VALUES (%(id)s, %(namespace_id)s, %(name)s, %(driver_id)s, 'writing', %(at)s)",
        id=secret.id,
        namespace_id=secret.namespace_id,
        name=secret.name,
        driver_id=secret.locator.driver_id,
        at=secret.created_at,
    )


async def set_ready(tx: Tx, secret_id: str, locator: SecretLocator) -> bool:
    """Record where the value is; False when the record is being deleted or gone."""
    return (
        await tx.run(
            "UPDATE occ.secrets SET state = 'ready', backend_namespace_name = %(namespace)s,"
            " backend_name = %(name)s, backend_key = %(key)s, backend_uid = %(uid)s"
            " WHERE id = %(id)s AND state <> 'deleting'",
            id=secret_id,
            namespace=locator.namespace_name,
            name=locator.name,
            key=locator.key,
            uid=locator.uid,
        )
        == 1
    )


async def set_deleting(tx: Tx, secret_id: str) -> None:
    """Record that the value is about to be forgotten."""
    await tx.run("UPDATE occ.secrets SET state = 'deleting' WHERE id = %(id)s", id=secret_id)


async def remove(tx: Tx, secret_id: str) -> bool:
    """Delete the record of a Secret in `deleting`."""
    return (
        await tx.run(
            "DELETE FROM occ.secrets WHERE id = %(id)s AND state = 'deleting'", id=secret_id
        )
        == 1
    )


async def consumers(reader: Reader, secret_id: str, limit: int = 51) -> list[tuple[str, str]]:
    """Return (kind, id) of what names this Secret: configurations, credential sources, drafts and revisions in use (as `agent`)."""
    rows = await reader.all(
        "SELECT kind, id FROM ("
        " SELECT 'configuration' AS kind, configuration_id AS id FROM occ.configuration_secrets"
        " WHERE secret_id = %(id)s"
        " UNION SELECT 'credential_source', credential_source_id FROM occ.credential_source_secrets"
        " WHERE secret_id = %(id)s"
        " UNION SELECT 'agent', id FROM occ.agents WHERE harness_auth_secret_id = %(id)s"
        " UNION SELECT 'agent', v.agent_id FROM occ.revision_references r"
        " JOIN occ.revisions_in_use v ON v.id = r.revision_id"
        " WHERE r.kind = 'secret' AND r.resource_id = %(id)s"
        ") AS found ORDER BY kind, id LIMIT %(limit)s",
        id=secret_id,
        limit=limit,
    )
    return [(row["kind"], row["id"]) for row in rows]
