"""The resources of the platform as immutable values (reference/control-plane.md §5).

These are records, not behaviour: rules live in `core`, storage in `store`, wire shapes in `api`. Times are timezone-aware UTC.
JSON-like documents are plain dict/list values that nobody mutates after construction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

Json = Any
"""A JSON document. mypy cannot express recursive JSON usefully for documents whose schema belongs to somebody else."""

SECRET_MAX_BYTES: Final = 65_536
SECRET_BINDINGS_MAX: Final = 64
AGENT_SOURCES_MAX: Final = 8
SOURCE_CONFIG_MAX: Final = 32
SOURCE_SECRETS_MAX: Final = 16
ROLE_PERMISSIONS_MAX: Final = 64
WORKSPACE_FILES: Final = ("AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md")
"""Names that an Agent's initial workspace files may have."""
WORKSPACE_FILE_MAX: Final = 16_384
"""Bytes of one initial workspace file."""


class NamespaceStatus(StrEnum):
    """Life of a Namespace (reference/control-plane.md §7.1)."""

    PROVISIONING = "provisioning"
    READY = "ready"
    FAILED = "failed"
    DELETING = "deleting"


class SourceState(StrEnum):
    """OCC's record of a credential source."""

    REGISTERING = "registering"
    READY = "ready"
    DELETING = "deleting"


class AgentStatus(StrEnum):
    """Whether an Agent lives or is being torn down."""

    ACTIVE = "active"
    DELETING = "deleting"


class RuntimeState(StrEnum):
    """What an Agent should be doing."""

    STOPPED = "stopped"
    RUNNING = "running"


class DeploymentStatus(StrEnum):
    """Status of a deployment, derived from its work."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The singleton this control plane serves."""

    id: str
    name: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A tenant."""

    id: str
    name: str
    status: NamespaceStatus
    created_at: datetime
    existing_namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """An opaque handle of a Secret."""

    namespace_id: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretLocator:
    """Where the Secret driver keeps the bytes. Private to the control plane."""

    driver_id: str
    namespace_name: str
    name: str
    key: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Metadata of a Secret; the value lives with the Secret driver."""

    id: str
    namespace_id: str
    name: str
    locator: SecretLocator
    created_at: datetime
    state: Literal["writing", "ready", "deleting"] = "ready"
    """Ours: `writing` until the Secret driver answered (its locator is empty then), `deleting` until it has forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialSource:
    """A credential that a Harness may use without holding it."""

    id: str
    namespace_id: str
    name: str
    type: str
    config: Mapping[str, str]
    secrets: Mapping[str, str]
    """Field name to Secret id."""
    driver_id: str
    state: SourceState
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """An editable native configuration document; deploying snapshots it."""

    id: str
    namespace_id: str
    kind: Literal["agent"]
    generation: int
    values: Json
    secret_bindings: Mapping[str, str]
    """Environment name to Secret id."""
    created_at: datetime
    name: str | None = None
    """Ours: optional, unique per Namespace, so that applying a file twice finds the same document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessAuth:
    """How the Harness signs in to its model. Only `credential_source` is served by this installation's Drivers."""

    method: Literal["api_key", "credential_source", "codex_pat", "oauth", "runtime"]
    source_id: str | None = None
    """A `cs_…` id for `credential_source`, a `sec_…` id for Secret-backed methods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialWorkspace:
    """The setup that an Agent was created with: its id and whether the files are in place; never their content."""

    id: str
    completed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A draft plus the pointer to the published revision."""

    id: str
    namespace_id: str
    name: str
    service_principal_id: str
    configuration_id: str
    execution_mode: Literal["embedded", "dedicated"]
    harness_auth: HarnessAuth | None
    credential_sources: tuple[str, ...]
    desired_runtime_state: RuntimeState
    active_revision_id: str | None
    status: AgentStatus
    generation: int
    """Grows with every change of the draft; the `If-Match` value (ours)."""
    created_at: datetime
    initial_workspace: InitialWorkspace | None = None
    """Set once at creation, when initial workspace files were given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """The resolved program that runs the agent loop."""

    id: Literal["openclaw", "codex"]
    version: str
    mode: Literal["embedded", "dedicated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionSource:
    """A credential source as a revision froze it."""

    source_id: str
    credential_gateway_id: str
    source_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRevision:
    """An immutable snapshot of a draft; its id is also the deployment id."""

    id: str
    namespace_id: str
    agent_id: str
    revision: int
    configuration_id: str
    configuration_generation: int
    configuration: Json
    harness: Harness
    compute_id: str
    compute_implementation: str
    sandbox_driver_id: str | None
    harness_auth: HarnessAuth | None
    credential_sources: tuple[RevisionSource, ...]
    secret_bindings: Mapping[str, str]
    service_principal_id: str
    network_policy: Json | None
    """The admitted network-policy snapshot (mission document 003), or None."""
    render_version: int
    """Version of the Driver's rendering rules, so that an upgrade never strands a running Sandbox."""
    created_at: datetime
    workspace_setup_id: str | None = None
    """The Agent's initial workspace files, if it has any: the Harness starts only where their marker is."""
    compute_render_version: int = 1
    """Version of Compute's own rules for what it asks of the Sandbox; frozen like the Driver's `render_version`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """An action on a kind of resource."""

    action: str
    resource_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A named set of permissions, of the Installation or of one Namespace; immutable."""

    id: str
    name: str | None
    namespace_id: str | None
    permissions: tuple[Permission, ...]
    built_in: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessBinding:
    """A subject, a role and a scope; immutable. Both resource fields None means the whole scope."""

    id: str
    subject_kind: Literal["identity", "group"]
    subject_id: str
    role_id: str
    namespace_id: str | None
    resource_kind: str | None
    resource_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """A deny-only rule that beats every grant."""

    id: str
    action: str
    resource_kind: str
    namespace_id: str | None
    resource_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A human Principal or a ServicePrincipal; `agent_id` marks the one an Agent owns."""

    id: str
    kind: Literal["principal", "service_principal"]
    namespace_id: str | None = None
    agent_id: str | None = None
    issuer: str | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKey:
    """A service key without its secret."""

    id: str
    service_principal_id: str
    namespace_id: str | None
    name: str
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """An append-only record of who did what to which resource (reference/control-plane.md §12)."""

    id: str
    installation_id: str
    namespace_id: str | None
    occurred_at: datetime
    kind: Literal["bootstrap", "mutation", "access", "authorization_denial"]
    actor_id: str
    action: str
    resource_kind: str
    resource_id: str
    outcome: Literal["success", "denied", "failure"]
    request_id: str | None = None
    reason_code: str | None = None
    decision_reason: str | None = None
    authorization: Json | None = None
    details: Mapping[str, Json] = field(default_factory=dict)
