"""The steps of a pass as they happen (ours): what the event stream of a deployment shows.

The worker writes them in the transitions of its queue (`queue_sql`); here they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oce.store.database import Reader

StepOutcome = Literal["started", "succeeded", "pending", "retry", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """One step of one work item; `seq` grows."""

    seq: int
    at: datetime
    step: str
    outcome: StepOutcome
    code: str | None
    duration_ms: int | None


async def after(reader: Reader, work_key: str, seq: int, limit: int = 500) -> Sequence[StepEvent]:
    """Return the events of a work item with a greater `seq`, oldest first."""
    rows = await reader.all(
        "SELECT seq, at, step, outcome, code, duration_ms FROM occ.deployment_events"
        " WHERE work_key = %(key)s AND seq > %(seq)s ORDER BY seq LIMIT %(limit)s",
        key=work_key,
        seq=seq,
        limit=limit,
    )
    return [StepEvent(**row) for row in rows]
