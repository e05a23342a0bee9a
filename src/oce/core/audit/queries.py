"""Reading the audit trail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from oce.core.paging import Page, PageRequest
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
    """Return events, newest first (needs installation:administer)."""
    raise NotImplementedError
