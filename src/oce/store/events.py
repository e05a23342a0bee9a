"""The steps of a pass as they happen (ours): what the event stream of a deployment shows. Written by the worker, read by the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oce.store.database import Reader, Tx

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


async def append(
    tx: Tx,
    work_key: str,
    *,
    step: str,
    outcome: StepOutcome,
    code: str | None = None,
    duration_ms: int | None = None,
) -> None:
    """Record a step (1…64 characters); a repeat of the newest event of this work is not recorded again."""
    await tx.run(
        "INSERT INTO occ.deployment_events (work_key, step, outcome, code, duration_ms)"
        " SELECT %(key)s, %(step)s::text, %(outcome)s::text, %(code)s::text, %(duration)s::int"
        " WHERE NOT EXISTS (SELECT 1 FROM (SELECT step, outcome, code FROM occ.deployment_events"
        " WHERE work_key = %(key)s ORDER BY seq DESC LIMIT 1) AS newest"
        " WHERE newest.step = %(step)s::text AND newest.outcome = %(outcome)s::text"
        " AND newest.code IS NOT DISTINCT FROM %(code)s::text)",
        key=work_key,
        step=step,
        outcome=outcome,
        code=code,
        duration=duration_ms,
    )


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
