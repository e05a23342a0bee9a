"""The audit trail: appended in the transaction of the change it describes, never changed or removed.

This module does not sanitize: events are made by `core.audit.rules`, which does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oce.domain.resources import AuditEvent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oce.store.database import Reader, Row, Tx

_COLUMNS: Final = (
    "id, installation_id, namespace_id, occurred_at, kind, actor_id, action, resource_kind, resource_id, outcome,"
    " request_id, reason_code, decision_reason, decision_evidence, details"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """Each set field must match."""

    namespace_id: str | None = None
    actor_id: str | None = None
    action: str | None = None
    resource_kind: str | None = None
    resource_id: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def _event(row: Row) -> AuditEvent:
    return AuditEvent(
        id=row["id"],
        installation_id=row["installation_id"],
        namespace_id=row["namespace_id"],
        occurred_at=row["occurred_at"],
        kind=row["kind"],
        actor_id=row["actor_id"],
        action=row["action"],
        resource_kind=row["resource_kind"],
        resource_id=row["resource_id"],
        outcome=row["outcome"],
        request_id=row["request_id"],
        reason_code=row["reason_code"],
        decision_reason=row["decision_reason"],
        authorization=row["decision_evidence"],
        details=row["details"],
    )


async def append(tx: Tx, event: AuditEvent) -> None:
    """Append an event; when it cannot be written, the transaction fails."""
    await tx.run(
        "INSERT INTO occ.audit_events (id, installation_id, namespace_id, occurred_at, kind, actor_id, action,"
        " resource_kind, resource_id, outcome, request_id, reason_code, decision_reason, decision_evidence, details)"
        " VALUES (%(id)s, %(installation)s, %(namespace)s, %(at)s, %(kind)s, %(actor)s, %(action)s, %(resource_kind)s,"
        " %(resource_id)s, %(outcome)s, %(request)s, %(reason)s, %(decision)s, %(evidence)s, %(details)s)",
        id=event.id,
        installation=event.installation_id,
        namespace=event.namespace_id,
        at=event.occurred_at,
        kind=event.kind,
        actor=event.actor_id,
        action=event.action,
        resource_kind=event.resource_kind,
        resource_id=event.resource_id,
        outcome=event.outcome,
        request=event.request_id,
        reason=event.reason_code,
        decision=event.decision_reason,
        evidence=event.authorization,
        details=dict(event.details),
    )


_PAGE: Final = (
    f"SELECT seq, {_COLUMNS} FROM occ.audit_events"  # noqa: S608 - constants of this module
    " WHERE (%(before)s::bigint IS NULL OR seq < %(before)s::bigint)"
    " AND (%(namespace_id)s::text IS NULL OR namespace_id = %(namespace_id)s::text)"
    " AND (%(actor_id)s::text IS NULL OR actor_id = %(actor_id)s::text)"
    " AND (%(action)s::text IS NULL OR action = %(action)s::text)"
    " AND (%(resource_kind)s::text IS NULL OR resource_kind = %(resource_kind)s::text)"
    " AND (%(resource_id)s::text IS NULL OR resource_id = %(resource_id)s::text)"
    " AND (%(outcome)s::text IS NULL OR outcome = %(outcome)s::text)"
    " AND (%(since)s::timestamptz IS NULL OR occurred_at >= %(since)s::timestamptz)"
    " AND (%(until)s::timestamptz IS NULL OR occurred_at < %(until)s::timestamptz)"
    " ORDER BY seq DESC LIMIT %(count)s"
)


async def page(
    reader: Reader, criteria: Criteria, before: int | None, count: int
) -> Sequence[tuple[int, AuditEvent]]:
    """Return (sequence number, event) below `before`, newest first."""
    rows = await reader.all(
        _PAGE,
        before=before,
        count=count,
        namespace_id=criteria.namespace_id,
        actor_id=criteria.actor_id,
        action=criteria.action,
        resource_kind=criteria.resource_kind,
        resource_id=criteria.resource_id,
        outcome=criteria.outcome,
        since=criteria.since,
        until=criteria.until,
    )
    return [(row["seq"], _event(row)) for row in rows]


async def newest_reconcile(reader: Reader, work_key: str) -> AuditEvent | None:
    """Return the newest evidence of exactly this work item."""
    row = await reader.one(
        f"SELECT {_COLUMNS} FROM occ.audit_events"  # noqa: S608 - constants of this module
        " WHERE kind = 'mutation' AND action = 'reconcile' AND details ->> 'workId' = %(key)s"
        " ORDER BY occurred_at DESC, id DESC LIMIT 1",
        key=work_key,
    )
    return _event(row) if row else None
