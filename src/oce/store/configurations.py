"""Rows of Configurations: everything but the document, which the Configuration driver keeps by (id, generation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from oce.store.database import Reader, Row, Tx

NAME_TAKEN: Final = "configurations_name_unique"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationRecord:
    """A Configuration without its document. `writing`: the first generation may not be stored yet."""

    id: str
    namespace_id: str
    name: str | None
    kind: Literal["agent"]
    generation: int
    reserved_generation: int
    state: Literal["writing", "ready", "deleting"]
    secret_bindings: Mapping[str, str]
    created_at: datetime


_COLUMNS: Final = "id, namespace_id, name, kind, generation, reserved_generation, state, secret_bindings, created_at"
_ALL: Final = f"SELECT {_COLUMNS} FROM occ.configurations WHERE namespace_id = %(namespace_id)s"  # noqa: S608 - constants of this module
_BY_ID: Final = f"{_ALL} AND id = %(id)s"
_BY_NAME: Final = f"{_ALL} AND name = %(name)s"
_PAGE: Final = (
    f"{_ALL} AND (%(id)s::text = '' OR (created_at, id) > (%(at)s::timestamptz, %(id)s))"
    " ORDER BY created_at, id LIMIT %(count)s"
)


def _record(row: Row) -> ConfigurationRecord:
    return ConfigurationRecord(**row)


async def get(
    reader: Reader, namespace_id: str, configuration_id: str
) -> ConfigurationRecord | None:
    """Return a record."""
    row = await reader.one(_BY_ID, namespace_id=namespace_id, id=configuration_id)
    return _record(row) if row else None


async def find(reader: Reader, namespace_id: str, name: str) -> ConfigurationRecord | None:
    """Return a record by name."""
    row = await reader.one(_BY_NAME, namespace_id=namespace_id, name=name)
    return _record(row) if row else None


async def lock(tx: Tx, namespace_id: str, configuration_id: str) -> ConfigurationRecord | None:
    """Return a record and keep others from changing it."""
    row = await tx.one(f"{_BY_ID} FOR UPDATE", namespace_id=namespace_id, id=configuration_id)
    return _record(row) if row else None


async def hold(tx: Tx, namespace_id: str, configuration_id: str) -> ConfigurationRecord | None:
    """Return a record and keep it from being deleted until this transaction, which refers to it, ends."""
    row = await tx.one(f"{_BY_ID} FOR KEY SHARE", namespace_id=namespace_id, id=configuration_id)
    return _record(row) if row else None


async def page(
    reader: Reader, namespace_id: str, after: tuple[str, str], count: int
) -> Sequence[ConfigurationRecord]:
    """Return records after (created_at, id), oldest first."""
    rows = await reader.all(
        _PAGE, namespace_id=namespace_id, at=after[0] or "-infinity", id=after[1], count=count
    )
    return [_record(row) for row in rows]


async def insert_writing(tx: Tx, record: ConfigurationRecord) -> None:
    """Record generation 1 before its document is stored. Raises ConstraintViolated(NAME_TAKEN)."""
    await tx.run(
        "INSERT INTO occ.configurations"
        " (id, namespace_id, name, kind, generation, reserved_generation, state, secret_bindings, created_at)"
        " VALUES (%(id)s, %(namespace_id)s, %(name)s, %(kind)s, 1, 1, 'writing', %(bindings)s, %(at)s)",
        id=record.id,
        namespace_id=record.namespace_id,
        name=record.name,
        kind=record.kind,
        bindings=dict(record.secret_bindings),
        at=record.created_at,
    )
    await _replace_secrets(tx, record.namespace_id, record.id, record.secret_bindings)


async def reserve(tx: Tx, configuration_id: str) -> int:
    """Take the next generation number for a document that is about to be stored; numbers are never handed out twice."""
    row = await tx.one(
        "UPDATE occ.configurations SET reserved_generation = reserved_generation + 1"
        " WHERE id = %(id)s RETURNING reserved_generation",
        id=configuration_id,
    )
    if row is None:
        raise LookupError(configuration_id)
    return int(row["reserved_generation"])


async def publish(
    tx: Tx,
    record: ConfigurationRecord,
    *,
    generation: int,
    secret_bindings: Mapping[str, str],
) -> bool:
    """Make a stored generation the current one; False when the current one is not `record.generation` any more."""
    changed = await tx.run(
        "UPDATE occ.configurations SET generation = %(new)s, state = 'ready', secret_bindings = %(bindings)s"
        " WHERE id = %(id)s AND generation = %(expected)s AND state <> 'deleting'",
        id=record.id,
        new=generation,
        expected=record.generation,
        bindings=dict(secret_bindings),
    )
    if changed == 1:
        await _replace_secrets(tx, record.namespace_id, record.id, secret_bindings)
    return changed == 1


async def set_deleting(tx: Tx, configuration_id: str) -> None:
    """Record that the documents are about to be forgotten."""
    await tx.run(
        "UPDATE occ.configurations SET state = 'deleting' WHERE id = %(id)s", id=configuration_id
    )


async def remove(tx: Tx, configuration_id: str) -> bool:
    """Delete the record of a Configuration in `deleting`."""
    return (
        await tx.run(
            "DELETE FROM occ.configurations WHERE id = %(id)s AND state = 'deleting'",
            id=configuration_id,
        )
        == 1
    )


async def used_by(reader: Reader, configuration_id: str, limit: int = 16) -> list[str]:
    """Return ids of Agents whose draft names this Configuration."""
    rows = await reader.all(
        "SELECT id FROM occ.agents WHERE configuration_id = %(id)s ORDER BY id LIMIT %(limit)s",
        id=configuration_id,
        limit=limit,
    )
    return [row["id"] for row in rows]


async def _replace_secrets(
    tx: Tx, namespace_id: str, configuration_id: str, bindings: Mapping[str, str]
) -> None:
    await tx.run(
        "DELETE FROM occ.configuration_secrets WHERE configuration_id = %(id)s",
        id=configuration_id,
    )
    for environment, secret_id in bindings.items():
        await tx.run(
            "INSERT INTO occ.configuration_secrets (configuration_id, environment, namespace_id, secret_id)"
            " VALUES (%(configuration)s, %(environment)s, %(namespace)s, %(secret)s)",
            configuration=configuration_id,
            environment=environment,
            namespace=namespace_id,
            secret=secret_id,
        )
