"""Queries on Agent revisions and deployments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from oce.core.paging import Page, PageRequest
from oce.core.platform import Actor, Platform
from oce.domain.resources import AgentRevision, DeploymentStatus, Json


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
    """Return a revision."""
    raise NotImplementedError


async def list_page(
    platform: Platform, actor: Actor, namespace: str, agent: str, page: PageRequest
) -> Page[AgentRevision]:
    """Return the revisions of an Agent, newest first."""
    raise NotImplementedError


async def deployment(
    platform: Platform, actor: Actor, namespace: str, agent: str, revision: str
) -> Deployment:
    """Return the deployment view; a pure database read."""
    raise NotImplementedError


async def deployment_steps(
    platform: Platform, actor: Actor, namespace: str, agent: str, revision: str, *, after: int = 0
) -> Sequence[DeploymentStep]:
    """Return the steps recorded after that `seq`, oldest first, at most 500."""
    raise NotImplementedError
