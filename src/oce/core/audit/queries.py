"""Reading the audit trail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oce.core import scope
from oce.core.access import guard
from oce.core.errors import NotFound
from oce.core.paging import Page, PageRequest, collect
from oce.store import audit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oce.core.paging import Key
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import AuditEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Each set field must match; times are `since` ≤ event < `until`."""

    namespace: str | None = None
    actor_id: str | None = None
    action: str | None = None
    resource_kind: str | None = None
    resource_id: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def list_page(
    platform: Platform, actor: Actor, criteria: AuditFilter, page: PageRequest
) -> Page[AuditEvent]:
    """Return events, newest first (needs `installation:administer`). Raises Forbidden, NotFound (Namespace), InvalidRequest."""
    await guard.require(
        platform, actor, "administer", "installation", platform.installation_id, None
    )
    namespace_id = None
    if criteria.namespace is not None:
        async with platform.db.read() as reader:
            found = await scope.find_namespace(reader, criteria.namespace)
        if found is None:
            raise NotFound
        namespace_id = found.id
    wanted = audit.Criteria(
        namespace_id=namespace_id,
        actor_id=criteria.actor_id,
        action=criteria.action,
        resource_kind=criteria.resource_kind,
        resource_id=criteria.resource_id,
        outcome=criteria.outcome,
        since=criteria.since,
        until=criteria.until,
    )

    async def fetch(after: Key, count: int) -> Sequence[tuple[int, AuditEvent]]:
        before = int(after[0]) if after[0].isdecimal() else None
        async with platform.db.read() as reader:
            return await audit.page(reader, wanted, before, count)

    async def visible(batch: Sequence[tuple[int, AuditEvent]]) -> Sequence[bool]:
        return [True] * len(batch)

    listed = await collect("audit", page, fetch, lambda one: (str(one[0]), one[1].id), visible)
    return Page(tuple(event for _, event in listed.items), listed.next_cursor)
