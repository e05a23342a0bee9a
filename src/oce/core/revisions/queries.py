"""Queries on Agent revisions and deployments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oce.core import scope
from oce.core.access import guard
from oce.core.errors import NotFound
from oce.core.paging import Page, PageRequest, collect
from oce.core.revisions import rules
from oce.domain.failures import CATALOGUE
from oce.domain.resources import DeploymentStatus
from oce.store import audit, events, revisions, work

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oce.core.paging import Key
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import AgentRevision, Json
    from oce.store.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The newest pass that did not finish the deployment."""

    at: datetime
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where an unfinished deployment stands; `next_attempt_at` only while queued."""

    last_attempt: Attempt | None
    next_attempt_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentError:
    """Why a deployment failed, in the catalogue's words."""

    code: str
    message: str
    hint: str
    docs: str
    data: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The read model over a revision's work."""

    deployment_id: str
    namespace_id: str
    agent_id: str
    status: DeploymentStatus
    progress: Progress | None
    error: DeploymentError | None
    warnings: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentStep:
    """One recorded step of the passes, in order of `seq`."""

    seq: int
    at: datetime
    step: str
    outcome: str
    code: str | None
    duration_ms: int | None


async def get(
    platform: Platform, actor: Actor, namespace: str, agent: str, revision: str
) -> AgentRevision:
    """Return a revision. Raises Forbidden, NotFound (also one of another Agent)."""
    async with platform.db.read() as reader:
        owner = await scope.find_namespace(reader, namespace)
        parent = await scope.find_in(reader, scope.AGENTS, owner.id, agent) if owner else None
        found = (
            await revisions.get(reader, owner.id, parent.id, revision) if owner and parent else None
        )
    await guard.require(
        platform, actor, "read", "agent_revision", revision, owner.id if owner else namespace
    )
    if found is None:
        raise NotFound
    return found


async def list_page(
    platform: Platform, actor: Actor, namespace: str, agent: str, page: PageRequest
) -> Page[AgentRevision]:
    """Return the revisions of an Agent that the actor may read, newest first. Raises Forbidden, NotFound."""
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="read"
    )

    async def fetch(after: Key, count: int) -> Sequence[AgentRevision]:
        before = int(after[0]) if after[0].isdecimal() else None
        async with platform.db.read() as reader:
            return await revisions.page(reader, owner.id, found.id, before, count)

    async def visible(batch: Sequence[AgentRevision]) -> Sequence[bool]:
        return await guard.allowed_each(
            platform, actor, "read", "agent_revision", [(one.id, owner.id) for one in batch]
        )

    return await collect(
        f"revisions:{found.id}", page, fetch, lambda one: (str(one.revision), one.id), visible
    )


async def deployment(
    platform: Platform, actor: Actor, namespace: str, agent: str, revision: str
) -> Deployment:
    """Return the deployment view; a pure database read. Raises Forbidden, NotFound."""
    found = await get(platform, actor, namespace, agent, revision)
    key = work.reconcile_key(found.id)
    async with platform.db.read() as reader:
        known = await work.status(reader, key)
        evidence = await audit.newest_reconcile(reader, key)
    if known is None:
        raise NotFound
    row, alive = known
    status = rules.status_of(row, lease_alive=alive)
    unfinished = status in (DeploymentStatus.QUEUED, DeploymentStatus.RUNNING)
    last = None
    if evidence is not None and unfinished:
        code = rules.attempt_code(str(evidence.details.get("reasonCode", "")))
        last = Attempt(at=evidence.occurred_at, code=code, message=rules.message_of(code))
    return Deployment(
        deployment_id=found.id,
        namespace_id=found.namespace_id,
        agent_id=found.agent_id,
        status=status,
        progress=Progress(
            last_attempt=last, next_attempt_at=row.available_at if row.state == "queued" else None
        )
        if unfinished
        else None,
        error=_error(row) if status is DeploymentStatus.FAILED else None,
        warnings=_warnings(row),
    )


def _error(row: Work) -> DeploymentError:
    code = rules.failure_code(row.reason_code)
    known = CATALOGUE.get(code)
    return DeploymentError(
        code=code,
        message=rules.message_of(code),
        hint=known.hint if known else "",
        docs=known.docs if known else CATALOGUE["UNKNOWN_FAILURE"].docs,
        data=row.result_data if row.state == "failed_permanent" else None,
    )


def _warnings(row: Work) -> tuple[Json, ...]:
    if row.state != "succeeded" or not isinstance(row.result_data, dict):
        return ()
    listed = row.result_data.get("warnings", [])
    return tuple(listed) if isinstance(listed, list) else ()


async def deployment_steps(
    platform: Platform,
    actor: Actor,
    namespace: str,
    agent: str,
    revision: str,
    *,
    after: int = 0,
) -> Sequence[DeploymentStep]:
    """Return the steps recorded after that `seq`, oldest first, at most 500. Raises Forbidden, NotFound."""
    found = await get(platform, actor, namespace, agent, revision)
    async with platform.db.read() as reader:
        recorded = await events.after(reader, work.reconcile_key(found.id), after)
    return [
        DeploymentStep(
            seq=one.seq,
            at=one.at,
            step=one.step,
            outcome=one.outcome,
            code=one.code,
            duration_ms=one.duration_ms,
        )
        for one in recorded
    ]
