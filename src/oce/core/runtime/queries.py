"""Live evidence: harness status and Sandbox logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from oce.contracts.sandbox import HarnessObservation
from oce.core.platform import Actor, Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessReport:
    """`observed` carries what the provider said just now; `unobserved` says why nothing was asked."""

    kind: Literal["observed", "unobserved"]
    observed_at: datetime
    revision_id: str | None = None
    harness: HarnessObservation | None = None
    reason: str | None = None
    """UNDEPLOYED, NOT_DEDICATED or UNSUPPORTED when unobserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """At most `lines` (1…1000) lines at or after `since`, of at least `min_level` (error, warn, info, debug)."""

    lines: int = 200
    since: datetime | None = None
    min_level: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One classified, redacted line (`kind` line), or `withheld` with a `count` and a `reason`."""

    kind: Literal["line", "withheld", "gap"]
    time: datetime | None = None
    level: str = "unknown"
    message: str = ""
    source: str = ""
    category: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    count: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """A bounded page of the active revision's Sandbox log."""

    revision_id: str
    observed_at: datetime
    records: tuple[LogRecord, ...]
    withheld: int
    truncated: bool


async def harness_status(
    platform: Platform, actor: Actor, namespace: str, agent: str
) -> HarnessReport:
    """Ask the provider once what the Harness of the selected revision does; never cached."""
    raise NotImplementedError


async def logs(
    platform: Platform, actor: Actor, namespace: str, agent: str, query: LogQuery
) -> LogPage:
    """Read the active revision's Sandbox log; the view is audited before anything is read."""
    raise NotImplementedError
