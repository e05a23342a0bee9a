"""What every use case receives: the composed platform, and who asks.

Both are frozen values made at the edge (`api.app`, `worker.app`, `dev`); nothing here reaches for a global.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oce.core.runtime.limits import LogGate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.contracts.drivers import Drivers
    from oce.domain.clock import Clock
    from oce.domain.resources import Json
    from oce.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Rules that the startup YAML decides and use cases read.

    `harness_versions` maps an approved Harness id to the exact version this installation runs (a revision freezes it).
    `network_policy_defaults` is the operator's default policy, frozen into each revision by the SandboxDriver.
    """

    harness_versions: Mapping[str, str] = field(default_factory=lambda: {"codex": "0.163.0"})
    network_policy_defaults: Json | None = None
    network_policy_version: int = 1
    backends: tuple[tuple[str, str], ...] = ()
    """Id and type of each configured Backend; its connection is nobody's business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The composed control plane of one Installation."""

    db: Database
    drivers: Drivers
    clock: Clock
    installation_id: str
    settings: Settings = field(default_factory=Settings)
    log_gate: LogGate = field(default_factory=LogGate)
    denials: Database | None = None
    """Where denials are recorded when `db` keeps nothing (a dry run); `db` otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """An authenticated caller. `key_namespace_id` is set for a Namespace-scoped key, which is refused everywhere else."""

    principal_id: str
    request_id: str
    key_namespace_id: str | None = None
    key_id: str | None = None
