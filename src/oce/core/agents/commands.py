"""Commands on Agents."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from oce.core.platform import Actor, Platform
from oce.domain.resources import Agent, AgentRevision, HarnessAuth


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""A field that a change does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDraft:
    """What a caller creates. References are ids or names; `harness_auth.source_id` too."""

    name: str
    configuration: str
    execution_mode: Literal["embedded", "dedicated"] = "dedicated"
    harness_auth: HarnessAuth | None = None
    credential_sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentChange:
    """Named fields are replaced, the others stay; `harness_auth=None` clears."""

    configuration: str
    execution_mode: Literal["embedded", "dedicated"] | Unset = UNSET
    harness_auth: HarnessAuth | None | Unset = UNSET
    credential_sources: tuple[str, ...] | Unset = UNSET


async def create(
    platform: Platform,
    actor: Actor,
    namespace: str,
    draft: AgentDraft,
    *,
    idempotency_key: str | None = None,
) -> Agent:
    """Create an Agent and its principal; starts nothing."""
    raise NotImplementedError


async def update(
    platform: Platform,
    actor: Actor,
    namespace: str,
    agent: str,
    change: AgentChange,
    *,
    expected_generation: int | None = None,
) -> Agent:
    """Change the draft; running revisions are untouched."""
    raise NotImplementedError


async def delete(
    platform: Platform,
    actor: Actor,
    namespace: str,
    agent: str,
    *,
    expected_generation: int | None = None,
) -> Agent:
    """Start tearing an Agent down; returns it as `deleting`. Repeating is safe."""
    raise NotImplementedError


async def deploy(
    platform: Platform,
    actor: Actor,
    namespace: str,
    agent: str,
    *,
    idempotency_key: str | None = None,
    expected_generation: int | None = None,
) -> AgentRevision:
    """Admit a revision of the draft and queue its reconciliation (reference/control-plane.md §6.6)."""
    raise NotImplementedError


async def stop(platform: Platform, actor: Actor, namespace: str, agent: str) -> Agent:
    """Ask for the Agent to be stopped; repeating is safe."""
    raise NotImplementedError
