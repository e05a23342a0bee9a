"""Live evidence of a running Agent: what the provider says about its Harness, and its Sandbox's log.

A state is shown with its evidence or not at all: one Driver call per request, nothing cached, and what cannot be read is `unknown`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from oce.contracts.iam import AccessRequest
from oce.contracts.refusals import Detail, NotVisible
from oce.contracts.sandbox import HarnessObservation, HarnessState, LogRequest, RevisionContext
from oce.core import checks, scope
from oce.core.access import guard
from oce.core.audit import record
from oce.core.errors import CoreError, Forbidden, NotFound, NotOffered
from oce.core.runtime.classify import LEVELS, PAGE_MAX, LogRecord, classify
from oce.domain.resources import RuntimeState
from oce.store import agents, revisions

if TYPE_CHECKING:
    from datetime import datetime

    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Agent, AgentRevision, Namespace

LINES_MAX: Final = 1000
_OBSERVE_SECONDS: Final = 5.0
_READ_SECONDS: Final = 10.0

__all__ = ("HarnessReport", "LogPage", "LogQuery", "LogRecord", "harness_status", "logs")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessReport:
    """`observed` carries what the provider said just now; `unobserved` says why nothing was asked."""

    kind: Literal["observed", "unobserved"]
    observed_at: datetime
    revision_id: str | None = None
    harness: HarnessObservation | None = None
    reason: str | None = None
    """UNDEPLOYED, STOPPED, NOT_DEDICATED or UNSUPPORTED when unobserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """At most `lines` (1…1000) lines at or after `since`, of at least `min_level` (error, warn, info, debug)."""

    lines: int = 200
    since: datetime | None = None
    min_level: str | None = None


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
    """Ask the provider once what the Harness of the selected revision does (needs `agent:read`). Raises Forbidden, NotFound."""
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="read"
    )
    revision = await _active(platform, found)
    sandbox = platform.drivers.sandbox
    observes = sandbox.observes if sandbox is not None else None
    reason = None
    if revision is None:
        reason = "UNDEPLOYED"
    elif found.desired_runtime_state is not RuntimeState.RUNNING:
        reason = "STOPPED"
    elif revision.harness.mode != "dedicated":
        reason = "NOT_DEDICATED"
    elif observes is None:
        reason = "UNSUPPORTED"
    if revision is None or observes is None or reason is not None:
        return HarnessReport(
            kind="unobserved",
            observed_at=platform.clock.now(),
            revision_id=revision.id if revision else None,
            reason=reason,
        )
    try:
        async with asyncio.timeout(_OBSERVE_SECONDS):
            seen = await observes.observe_harness(_context(platform, owner, revision))
    except Exception:  # noqa: BLE001 - a record that cannot be read is `unknown`, never `lost`
        seen = HarnessObservation(state=HarnessState.UNKNOWN)
    if seen.state is HarnessState.LOST and not await _still_selected(platform, found, revision):
        # It went away because somebody stopped or replaced it while we looked.
        seen = HarnessObservation(state=HarnessState.UNKNOWN)
    return HarnessReport(
        kind="observed",
        observed_at=platform.clock.now(),
        revision_id=revision.id,
        harness=seen,
    )


async def logs(
    platform: Platform, actor: Actor, namespace: str, agent: str, query: LogQuery
) -> LogPage:
    """Read the active revision's Sandbox log; the view is recorded before anything is read.

    Needs `agent:read` and (`agent:read_logs` or `agent:administer`). Raises InvalidRequest, Forbidden, NotFound, NotOffered,
    RateLimited, CoreError RUNTIME_LOGS_SOURCE_UNAVAILABLE (400), RUNTIME_LOGS_SANDBOX_NOT_FOUND, RUNTIME_LOGS_UNAVAILABLE (503).
    """
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="read"
    )
    await _require_logs(platform, actor, owner, found)
    problems: list[Detail] = []
    if not 1 <= query.lines <= LINES_MAX:
        problems.append(Detail("/lines", "INVALID_VALUE", f"1 to {LINES_MAX}"))
    if query.min_level is not None and query.min_level not in LEVELS:
        problems.append(Detail("/minLevel", "INVALID_VALUE", f"one of {', '.join(LEVELS)}"))
    checks.refuse(problems)
    sandbox = platform.drivers.sandbox
    reads = sandbox.logs if sandbox is not None else None
    if reads is None:
        raise NotOffered("The selected Sandbox Driver offers no log.")
    revision = await _active(platform, found)
    if revision is None or revision.sandbox_driver_id is None:
        raise CoreError(code="RUNTIME_LOGS_SOURCE_UNAVAILABLE")
    platform.log_gate.take(actor.principal_id, found.id, platform.clock.monotonic())
    with platform.log_gate.reading():
        async with platform.db.transact() as tx:
            await record.mutation(
                tx,
                platform,
                actor,
                "agents.runtime_logs.view",
                ("agent", found.id),
                owner.id,
                details={"revisionId": revision.id, "source": "sandbox"},
                kind="access",
            )
        try:
            async with asyncio.timeout(_READ_SECONDS):
                chunk = await reads.read_sandbox_logs(
                    _context(platform, owner, revision),
                    LogRequest(lines=query.lines, since=query.since),
                )
        except NotVisible as error:
            raise CoreError(code="RUNTIME_LOGS_SANDBOX_NOT_FOUND") from error
        except Exception as error:
            raise CoreError(code="RUNTIME_LOGS_UNAVAILABLE") from error
    # A full page of a source that holds more: with `since`, what was left out may also be older than asked for.
    full = len(chunk.lines) == query.lines < chunk.examined
    records, cut = _bounded(tuple(classify(chunk.lines[-query.lines :], query.min_level)))
    return LogPage(
        revision_id=revision.id,
        observed_at=chunk.observed_at,
        records=records,
        withheld=sum(one.count for one in records if one.kind == "withheld"),
        truncated=cut or len(chunk.lines) > query.lines or full,
    )


def _bounded(records: tuple[LogRecord, ...]) -> tuple[tuple[LogRecord, ...], bool]:
    """Keep the newest records that fit in 512 KiB."""
    kept: list[LogRecord] = []
    size = 0
    for one in reversed(records):
        size += 128 + len(one.message) + sum(len(k) + len(v) for k, v in one.fields.items())
        if size > PAGE_MAX:
            return tuple(reversed(kept)), True
        kept.append(one)
    return records, False


async def _require_logs(platform: Platform, actor: Actor, owner: Namespace, agent: Agent) -> None:
    """`read_logs`, or `administer` unless a restriction forbids `read_logs`."""

    def ask(action: str) -> AccessRequest:
        return AccessRequest(
            principal_id=actor.principal_id,
            action=action,
            resource_kind="agent",
            resource_id=agent.id,
            namespace_id=owner.id,
        )

    read_logs, administer = await platform.drivers.iam.authorize_many(
        (ask("read_logs"), ask("administer"))
    )
    if read_logs.allowed or (administer.allowed and not read_logs.restriction_ids):
        return
    await guard.record_denial(platform, actor, ask("read_logs"), read_logs)
    raise Forbidden


def _context(platform: Platform, owner: Namespace, revision: AgentRevision) -> RevisionContext:
    context = platform.drivers.compute.namespace_context(owner)
    return RevisionContext(namespace=context.namespace, objects=context.objects, revision=revision)


async def _active(platform: Platform, agent: Agent) -> AgentRevision | None:
    if agent.active_revision_id is None:
        return None
    async with platform.db.read() as reader:
        return await revisions.get(reader, agent.namespace_id, agent.id, agent.active_revision_id)


async def _still_selected(platform: Platform, agent: Agent, revision: AgentRevision) -> bool:
    async with platform.db.read() as reader:
        now = await agents.get(reader, agent.namespace_id, agent.id)
    if now is None:
        raise NotFound
    return (
        now.active_revision_id == revision.id and now.desired_runtime_state is RuntimeState.RUNNING
    )
