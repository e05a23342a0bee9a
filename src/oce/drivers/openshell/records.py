"""What the Driver keeps of a gateway answer: small frozen values, credentials never among them.

A message arrives as a plain document (proto field names, enum names, defaults left out), which `wire` made. Reading is strict where
the Driver relies on a field, and tolerant of fields it does not know. Enum values the stubs do not know stay numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from oce.drivers.openshell.failures import protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.drivers.openshell.documents import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The common head of an object."""

    id: str
    name: str
    workspace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    resource_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRecord:
    """A Workspace."""

    meta: Meta
    phase: str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """A Sandbox; `spec` is the echoed spec as a document, `reason` that of its Ready condition."""

    meta: Meta
    spec: Document
    phase: str | int
    exit_code: int | None
    restart_count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedSandbox:
    """Answer of CreateSandbox."""

    sandbox: SandboxRecord
    service_urls: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """A service exposure and its advertised URL."""

    sandbox: str
    name: str
    target_port: int
    authorization_mode: str | int
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRecord:
    """A provider without its credentials; its config may hold a node setup, so it is never shown."""

    meta: Meta
    type: str
    config: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """A provider profile: its id, annotations and version are all the Driver compares."""

    id: str
    annotations: Mapping[str, str]
    resource_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One line of the gateway's ring."""

    sandbox_id: str
    time: datetime | None
    level: str
    target: str
    message: str
    source: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecord:
    """A policy revision of a Sandbox, and which version its supervisor says is active."""

    version: int
    status: str | int
    policy: Document
    provenance: Mapping[str, str]
    active_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessRecord:
    """Provider readiness in one Sandbox."""

    state: str | int
    reason: str | int


def meta(method: str, document: Document) -> Meta:
    """Read the head of an object; a nameless one is a protocol failure."""
    head = document.get("metadata", {})
    if not head.get("name"):
        raise protocol(method, "an object without a name")
    return Meta(
        id=head.get("id", ""),
        name=head["name"],
        workspace=head.get("workspace", ""),
        labels=dict(head.get("labels", {})),
        annotations=dict(head.get("annotations", {})),
        resource_version=int(head.get("resource_version", 0)),
    )


def workspace(method: str, document: Document) -> WorkspaceRecord:
    """Read a Workspace."""
    return WorkspaceRecord(
        meta=meta(method, document), phase=document.get("status", {}).get("phase", 0)
    )


def sandbox(method: str, document: Document) -> SandboxRecord:
    """Read a Sandbox."""
    status = document.get("status", {})
    ready: list[Any] = [c for c in status.get("conditions", []) if c.get("type") == "Ready"]
    return SandboxRecord(
        meta=meta(method, document),
        spec=document.get("spec", {}),
        phase=status.get("phase", 0),
        exit_code=status.get("exit_code"),
        restart_count=status.get("restart_count", 0),
        reason=ready[0].get("reason", "") if ready else "",
    )


def service(method: str, document: Document) -> ServiceRecord:
    """Read a service exposure."""
    endpoint = document.get("endpoint", {})
    if not endpoint.get("sandbox"):
        raise protocol(method, "a service without a Sandbox")
    return ServiceRecord(
        sandbox=endpoint["sandbox"],
        name=endpoint.get("name", ""),
        target_port=endpoint.get("target_port", 0),
        authorization_mode=endpoint.get("authorization_mode", 0),
        url=document.get("url", ""),
    )


def provider(method: str, document: Document) -> ProviderRecord:
    """Read a provider; whatever credentials the answer carries are dropped here."""
    return ProviderRecord(
        meta=meta(method, document),
        type=document.get("type", ""),
        config=dict(document.get("config", {})),
    )


def profile(method: str, document: Document) -> ProfileRecord:
    """Read a provider profile."""
    if not document.get("id"):
        raise protocol(method, "a profile without an id")
    return ProfileRecord(
        id=document["id"],
        annotations=dict(document.get("annotations", {})),
        resource_version=int(document.get("resource_version", 0)),
    )


def policy(document: Document) -> PolicyRecord:
    """Read a policy status."""
    revision = document.get("revision", {})
    return PolicyRecord(
        version=revision.get("version", 0),
        status=revision.get("status", 0),
        policy=revision.get("policy", {}),
        provenance=dict(revision.get("provenance", {})),
        active_version=document.get("active_version", 0),
    )


def log_line(document: Document) -> LogRecord:
    """Read a log line; a time that cannot be read is no time."""
    stamp = document.get("event_time")
    try:
        time = datetime.fromisoformat(stamp) if stamp else None
    except ValueError:
        time = None
    return LogRecord(
        sandbox_id=document.get("sandbox_id", ""),
        time=time,
        level=document.get("level", ""),
        target=document.get("target", ""),
        message=document.get("message", ""),
        source=document.get("source", ""),
        fields=dict(document.get("fields", {})),
    )
