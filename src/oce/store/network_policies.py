"""Rows of live network policy changes: what was sent to which revision's Sandbox, and what is known of the outcome.

A row is written before the provider hears of the operation. `sent` means that the outcome is not known yet; only a confirmed
row says what is in force.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from oce.domain.resources import Json
    from oce.store.database import Reader, Row, Tx

State = Literal["sent", "confirmed", "refused", "superseded"]
_ALL: Final = (
    "SELECT id, agent_id, revision_id, actor_id, configuration_id, configuration_generation, snapshot, state, requested_at,"
    " completed_at FROM occ.network_policy_applications"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One operation; `snapshot` is the complete candidate, `configuration_generation` where its additions come from."""

    id: str
    agent_id: str
    revision_id: str
    actor_id: str
    configuration_id: str
    configuration_generation: int
    snapshot: Json
    state: State
    requested_at: datetime
    completed_at: datetime | None = None


def _application(row: Row | None) -> Application | None:
    return Application(**row) if row else None


async def get(reader: Reader, agent_id: str, operation_id: str) -> Application | None:
    """Return an operation of that Agent."""
    row = await reader.one(
        f"{_ALL} WHERE agent_id = %(agent)s AND id = %(id)s", agent=agent_id, id=operation_id
    )
    return _application(row)


async def newest(reader: Reader, revision_id: str, state: State) -> Application | None:
    """Return the newest operation of a revision in that state."""
    row = await reader.one(
        f"{_ALL} WHERE revision_id = %(revision)s AND state = %(state)s"
        " ORDER BY requested_at DESC, id DESC LIMIT 1",
        revision=revision_id,
        state=state,
    )
    return _application(row)


async def insert(tx: Tx, application: Application) -> None:
    """Record an operation that is about to be sent; earlier ones of unknown outcome are superseded by it."""
    await tx.run(
        "UPDATE occ.network_policy_applications SET state = 'superseded', completed_at = clock_timestamp()"
        " WHERE revision_id = %(revision)s AND state = 'sent'",
        revision=application.revision_id,
    )
    await tx.run(
        "INSERT INTO occ.network_policy_applications (id, agent_id, revision_id, actor_id, configuration_id,"
        " configuration_generation, snapshot, state, requested_at) VALUES (%(id)s, %(agent)s, %(revision)s, %(actor)s,"
        " %(configuration)s, %(generation)s, %(snapshot)s, 'sent', %(at)s)",
        id=application.id,
        agent=application.agent_id,
        revision=application.revision_id,
        actor=application.actor_id,
        configuration=application.configuration_id,
        generation=application.configuration_generation,
        snapshot=application.snapshot,
        at=application.requested_at,
    )


async def finish(tx: Tx, operation_id: str, state: State) -> bool:
    """Record the outcome of a sent operation; False when it was superseded or finished meanwhile."""
    return (
        await tx.run(
            "UPDATE occ.network_policy_applications SET state = %(state)s, completed_at = clock_timestamp()"
            " WHERE id = %(id)s AND state = 'sent'",
            id=operation_id,
            state=state,
        )
        == 1
    )
