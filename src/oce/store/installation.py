"""The singleton Installation row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.domain.resources import Installation

if TYPE_CHECKING:
    from oce.store.database import Reader, Tx


async def find(reader: Reader) -> Installation | None:
    """Return the Installation, or None before bootstrap."""
    row = await reader.one("SELECT id, name, created_at FROM occ.installation")
    return Installation(**row) if row else None


async def lock_for_bootstrap(tx: Tx) -> None:
    """Serialize concurrent bootstraps until this transaction ends."""
    await tx.one("SELECT pg_advisory_xact_lock(%(key)s) AS locked", key=0x6F636502)


async def insert(tx: Tx, installation: Installation) -> None:
    """Record the Installation. Raises ConstraintViolated(installation_singleton)."""
    await tx.run(
        "INSERT INTO occ.installation (id, name, created_at) VALUES (%(id)s, %(name)s, %(at)s)",
        id=installation.id,
        name=installation.name,
        at=installation.created_at,
    )
