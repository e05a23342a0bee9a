"""Rows of credential sources and the Secrets they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.domain.resources import CredentialSource, SourceState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from oce.store.database import Reader, Row, Tx

NAME_TAKEN: Final = "credential_sources_name_unique"
_ALL: Final = (
    "SELECT s.id, s.namespace_id, s.name, s.type, s.config, s.driver_id, s.state, s.created_at, s.effect_at,"
    " COALESCE((SELECT jsonb_object_agg(f.field, f.secret_id) FROM occ.credential_source_secrets f"
    " WHERE f.credential_source_id = s.id), '{}'::jsonb) AS secrets"
    " FROM occ.credential_sources s WHERE s.namespace_id = %(namespace_id)s"
)
_BY_ID: Final = f"{_ALL} AND s.id = %(id)s"
_BY_NAME: Final = f"{_ALL} AND s.name = %(name)s"
_MANY: Final = f"{_ALL} AND s.id = ANY(%(ids)s)"
_PAGE: Final = (
    f"{_ALL} AND (%(id)s::text = '' OR (s.created_at, s.id) > (%(at)s::timestamptz, %(id)s))"
    " ORDER BY s.created_at, s.id LIMIT %(count)s"
)


def _source(row: Row) -> CredentialSource:
    return CredentialSource(
        id=row["id"],
        namespace_id=row["namespace_id"],
        name=row["name"],
        type=row["type"],
        config=row["config"],
        secrets=row["secrets"],
        driver_id=row["driver_id"],
        state=SourceState(row["state"]),
        created_at=row["created_at"],
    )


async def get(reader: Reader, namespace_id: str, source_id: str) -> CredentialSource | None:
    """Return a source."""
    row = await reader.one(_BY_ID, namespace_id=namespace_id, id=source_id)
    return _source(row) if row else None


async def find(reader: Reader, namespace_id: str, name: str) -> CredentialSource | None:
    """Return a source by name."""
    row = await reader.one(_BY_NAME, namespace_id=namespace_id, name=name)
    return _source(row) if row else None


async def many(
    reader: Reader, namespace_id: str, source_ids: Sequence[str]
) -> Sequence[CredentialSource]:
    """Return the named sources in the order of the ids; missing ones are left out."""
    rows = await reader.all(_MANY, namespace_id=namespace_id, ids=list(source_ids))
    found = {row["id"]: _source(row) for row in rows}
    return [found[source_id] for source_id in source_ids if source_id in found]


async def lock(
    tx: Tx, namespace_id: str, source_id: str
) -> tuple[CredentialSource, datetime | None] | None:
    """Return a source and when its last unanswered effect was sent, and keep references from appearing meanwhile."""
    row = await tx.one(f"{_BY_ID} FOR UPDATE OF s", namespace_id=namespace_id, id=source_id)
    return (_source(row), row["effect_at"]) if row else None


async def hold(tx: Tx, namespace_id: str, source_id: str) -> CredentialSource | None:
    """Return a source and keep it from being deleted until this transaction, which refers to it, ends."""
    row = await tx.one(f"{_BY_ID} FOR KEY SHARE OF s", namespace_id=namespace_id, id=source_id)
    return _source(row) if row else None


async def page(
    reader: Reader, namespace_id: str, after: tuple[str, str], count: int
) -> Sequence[CredentialSource]:
    """Return sources after (created_at, id), oldest first."""
    rows = await reader.all(
        _PAGE, namespace_id=namespace_id, at=after[0] or "-infinity", id=after[1], count=count
    )
    return [_source(row) for row in rows]


async def insert(tx: Tx, source: CredentialSource) -> None:
    """Record a source before its gateway hears of it. Raises ConstraintViolated(NAME_TAKEN)."""
    await tx.run(
        "INSERT INTO occ.credential_sources (id, namespace_id, name, type, config, driver_id, state, created_at, effect_at)"
        " VALUES (%(id)s, %(namespace_id)s, %(name)s, %(type)s, %(config)s, %(driver_id)s, %(state)s, %(at)s, %(at)s)",
        id=source.id,
        namespace_id=source.namespace_id,
        name=source.name,
        type=source.type,
        config=dict(source.config),
        driver_id=source.driver_id,
        state=source.state,
        at=source.created_at,
    )
    await _insert_secrets(tx, source.namespace_id, source.id, source.secrets)


async def replace_secrets(tx: Tx, source: CredentialSource, secrets: Mapping[str, str]) -> None:
    """Name other Secrets."""
    await tx.run(
        "DELETE FROM occ.credential_source_secrets WHERE credential_source_id = %(id)s",
        id=source.id,
    )
    await _insert_secrets(tx, source.namespace_id, source.id, secrets)


async def _insert_secrets(
    tx: Tx, namespace_id: str, source_id: str, secrets: Mapping[str, str]
) -> None:
    for field, secret_id in secrets.items():
        await tx.run(
            "INSERT INTO occ.credential_source_secrets (credential_source_id, field, namespace_id, secret_id)"
            " VALUES (%(source)s, %(field)s, %(namespace)s, %(secret)s)",
            source=source_id,
            field=field,
            namespace=namespace_id,
            secret=secret_id,
        )


async def set_state(
    tx: Tx, source_id: str, state: SourceState, *, expected: Sequence[SourceState]
) -> bool:
    """Move a source to `state`; False when it is in none of `expected`."""
    return (
        await tx.run(
            "UPDATE occ.credential_sources SET state = %(state)s"
            " WHERE id = %(id)s AND state = ANY(%(expected)s)",
            id=source_id,
            state=state,
            expected=[str(one) for one in expected],
        )
        == 1
    )


async def touch(tx: Tx, source_id: str, at: datetime | None) -> None:
    """Record that an effect is about to be sent to the gateway; None once every sent one was answered."""
    await tx.run(
        "UPDATE occ.credential_sources SET effect_at = %(at)s WHERE id = %(id)s",
        id=source_id,
        at=at,
    )


async def remove(tx: Tx, source_id: str) -> bool:
    """Delete the record. Raises ConstraintViolated while a draft names it."""
    return await tx.run("DELETE FROM occ.credential_sources WHERE id = %(id)s", id=source_id) == 1


async def consumers(reader: Reader, source_id: str, limit: int = 16) -> list[str]:
    """Return ids of Agents whose draft, active revision or pending deployment names this source."""
    rows = await reader.all(
        "SELECT agent_id FROM ("
        " SELECT agent_id FROM occ.agent_credential_sources WHERE credential_source_id = %(id)s"
        " UNION SELECT id FROM occ.agents WHERE harness_auth_source_id = %(id)s"
        " UNION SELECT v.agent_id FROM occ.revision_references r"
        " JOIN occ.revisions_in_use v ON v.id = r.revision_id"
        " WHERE r.kind = 'credential_source' AND r.resource_id = %(id)s"
        ") AS found ORDER BY agent_id LIMIT %(limit)s",
        id=source_id,
        limit=limit,
    )
    return [row["agent_id"] for row in rows]
