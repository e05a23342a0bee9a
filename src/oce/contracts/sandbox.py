"""SandboxDriver: confines an Agent's Harness (mission document 003).

OCC selects the Driver, authorizes the deployment and freezes the revision; Compute owns workspace, identity, routing and
activation, and is the only caller of most members. The Driver owns the provider delegation alone: it cannot choose another
Namespace, identity or credential, and where it cannot keep something exactly it refuses.

`facets` and `cleanup` are required. Every other ability is a Protocol of its own, checked once at startup
(`installation.capabilities`) and recorded, so that no caller asks "does it have this attribute" in the middle of a pass.
All asynchronous members are safe to repeat. Refusals: `contracts.refusals`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from oce.domain.resources import AgentRevision, Harness, Json
    from oce.domain.secret import SecretText


class Facet(StrEnum):
    """What a Driver enforces."""

    NETWORKING = "networking"
    FILESYSTEM = "filesystem"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalNamespace:
    """A Namespace as Compute realises it: `name` is the physical name (and the Workspace's), `id` the platform's."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectIdentity:
    """Which object a change means: this incarnation (`uid`), as it was read (`resource_version`)."""

    uid: str
    resource_version: str


class NamespaceObjects(Protocol):
    """Namespaced infrastructure objects that Compute lets a Driver apply (Kubernetes); in-memory in `oce.testing`.

    Every change names the object it was decided on, so that an object that somebody replaced or changed meanwhile stays untouched.
    """

    async def read(
        self, namespace: PhysicalNamespace, api_version: str, kind: str, name: str
    ) -> Mapping[str, Any] | None:
        """Return the object or None."""

    async def apply(
        self,
        namespace: PhysicalNamespace,
        manifest: Mapping[str, Any],
        seen: ObjectIdentity | None,
    ) -> None:
        """Server-side apply with our field manager, without force; `seen` None means it must not exist yet.

        Raises OwnershipConflict for a field of another manager, DriverRefusal(RECONCILIATION_PENDING) when it is not `seen` any more.
        """

    async def delete(
        self, namespace: PhysicalNamespace, manifest: Mapping[str, Any], seen: ObjectIdentity
    ) -> None:
        """Delete exactly the object that was seen; absent is fine. Raises like `apply`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateObject:
    """One key of a Secret object that Compute staged: its labels, and the decoded UTF-8 text."""

    labels: Mapping[str, str]
    value: SecretText


class PrivateObjects(Protocol):
    """Reads of the two Secret objects that a Driver consumes itself: node setup and workspace setup; in-memory in `oce.testing`."""

    async def read(self, namespace: PhysicalNamespace, name: str, key: str) -> PrivateObject | None:
        """Return one key of a Secret of this Namespace, or None when it is not there (yet)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceContext:
    """What namespace members get. `objects` is None where Compute has no cluster (local Compute)."""

    namespace: PhysicalNamespace
    objects: NamespaceObjects | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceMount:
    """An approved piece of the Agent's storage. `claim` names the store, `sub_path` a directory below its root."""

    claim: str
    sub_path: str
    mount_path: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLiteral:
    """A literal environment entry; never a secret."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSecret:
    """A Secret-backed environment entry; a Driver that cannot deliver it refuses."""

    name: str
    secret_name: str
    secret_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessFile:
    """A non-secret runtime file and the variable that tells its path inside."""

    name: str
    content: str
    environment_variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialAttachment:
    """One credential source applied to one Sandbox; `ref` is opaque to everyone but the paired Driver."""

    source_id: str
    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadIdentity:
    """A projected platform identity; preserve it whole or refuse."""

    service_account: str
    audience: str
    expiration_seconds: int
    mount_path: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSetup:
    """Private initial workspace files: a reference, never their content."""

    id: str
    defaults_id: str | None
    secret_name: str
    secret_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessWorkloadRequirements:
    """Everything Compute prepared for a dedicated Harness; the Driver uses exactly this."""

    image: str
    command: tuple[str, ...]
    login_mode: Literal["api_key", "codex_pat", "chatgptAuthTokens"]
    environment: tuple[EnvironmentLiteral | EnvironmentSecret, ...]
    files: tuple[HarnessFile, ...]
    workspace_mounts: tuple[WorkspaceMount, ...]
    credential_attachments: tuple[CredentialAttachment, ...]
    labels: Mapping[str, str]
    workload_identity: WorkloadIdentity | None = None
    workspace_setup: WorkspaceSetup | None = None
    native_hook_directory: str | None = None
    """Codex only: the owner-only directory for native hook credentials, derived from `harness_home`; made before the Harness starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionContext(NamespaceContext):
    """A namespace context plus the immutable revision."""

    revision: AgentRevision


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessContext(RevisionContext):
    """A revision context plus what Compute prepared.

    `private` is None where Compute stages no Secret objects; `workspace_node_enrolled` is what Compute knows of a native worker.
    """

    requirements: HarnessWorkloadRequirements
    private: PrivateObjects | None = None
    workspace_node_enrolled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessStatusContext(HarnessContext):
    """What `harness_status` gets: the raw transport token stays in memory."""

    transport_token: SecretText


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupContext(NamespaceContext):
    """With a revision: stop, retirement, failed candidate. Without: Namespace deletion."""

    revision: AgentRevision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResourceRef:
    """A stable reference to the provider's object; it outlives the Pod or process behind it."""

    namespace_name: str
    resource_name: str
    agent_id: str
    revision_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessEndpoint:
    """Provider-owned transport: a ws/wss origin.

    `control_url` is the origin that can be dialled from here (the provider's endpoint); who dials it sends `Host`, and for a name in
    `url`'s certificate the TLS server name, of `url`.
    """

    url: str
    control_url: str
    workspace_root: str | None = None
    codex_permission_profile: str | None = None
    ca_bundle: str | None = None
    """Public PEM CA certificates for a wss origin; None keeps system trust."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFailure:
    """A Harness's held startup failure."""

    component: str
    check: str
    checked_at: str
    code: str
    cause_kind: str | None = None
    cause_detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessStatus:
    """`serving` only after an authenticated handshake; `failed` with the held document's `runtimeFailure` object, unvalidated."""

    state: Literal["starting", "serving", "failed"]
    failure_document: Json = None


class HarnessState(StrEnum):
    """What the provider's own record says about the Sandbox."""

    RUNNING = "running"
    STARTING = "starting"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessObservation:
    """The provider's lifecycle record, mapped; `exit_code` and `restarts` only with HARNESS_RESTARTING."""

    state: HarnessState
    code: str | None = None
    exit_code: int | None = None
    restarts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """At most `lines` (1…1000) raw lines at or after `since`."""

    lines: int
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDecision:
    """An observed allow or deny decision, parsed by the Driver."""

    allowed: bool
    rule: str
    binary: str
    host: str
    port: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A raw line; OCC classifies and redacts it before anybody sees it."""

    time: datetime | None
    level: str
    target: str
    message: str
    source: str
    fields: Mapping[str, str] = field(default_factory=dict)
    decision: LogDecision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A bounded page and how many lines the source examined before `since` was applied."""

    sandbox: str
    observed_at: datetime
    lines: tuple[LogLine, ...]
    examined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPolicySupport:
    """What a Driver's per-Agent policies can express."""

    wildcards: bool
    port_ranges: bool
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySnapshot:
    """A detached, admitted policy: later startup defaults never reinterpret it."""

    driver_id: str
    version: int
    defaults: Json
    additions: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScope:
    """Circumstances of an admission: repository bindings reserve their hosts."""

    repository_credentials: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObservation:
    """What the provider reports about the policy in force."""

    provider_version: str
    policy_version: int
    load_state: Literal["pending", "loaded", "failed", "superseded"]
    matches: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyApplication:
    """A compare-and-swap of a live policy under an idempotent operation id."""

    snapshot: PolicySnapshot
    expected_provider_version: str
    operation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecommendation:
    """An untrusted candidate grant."""

    id: str
    state: str
    host: str
    port: int
    binary: str
    reason: str
    observations: int | None = None


class SandboxDriver(Protocol):
    """The required members; `id` is the selected driver id, `implementation` the program's name."""

    @property
    def id(self) -> str:
        """Id of the selected Driver."""

    @property
    def implementation(self) -> str:
        """Name of the Driver's program."""

    @property
    def facets(self) -> tuple[Facet, ...]:
        """What the Driver enforces."""

    async def cleanup(self, context: CleanupContext) -> None:
        """Remove everything a revision could have created, or a Namespace's leftovers; resolves only on proof."""


@runtime_checkable
class HasHarnessHome(Protocol):
    """Optional: HOME of the Harness inside the Sandbox; `/home/node` without it."""

    @property
    def harness_home(self) -> str:
        """Normalized absolute HOME of the Harness."""


@runtime_checkable
class ConfiguresAgent(Protocol):
    """Optional synchronous transform before a revision is frozen; cannot change the Harness; never mutates its input."""

    @property
    def render_version(self) -> int:
        """Version of the rendering rules that a revision freezes."""

    def configure_agent(self, configuration: Json, harness: Harness) -> Json:
        """Return the effective configuration. Raises ConfigurationRefused, RevisionUnsupported."""


@runtime_checkable
class ValidatesWorkspaceSetup(Protocol):
    """Optional: presence declares private initialisation of workspace files."""

    def validate_workspace_setup(self, harness: Harness, configuration: Json) -> None:
        """Raise WorkspaceSetupRefused."""


@runtime_checkable
class EnsuresNamespace(Protocol):
    """Optional backend preparation after Compute's own."""

    async def ensure_namespace(self, context: NamespaceContext) -> None:
        """Own or adopt the provider's Workspace. Raises NamespaceRefused."""


@runtime_checkable
class ProvisionsHarness(Protocol):
    """Optional creation of the dedicated Harness."""

    async def provision_harness(self, context: HarnessContext) -> SandboxResourceRef:
        """Create or adopt; repeatable."""

    def harness_resource(self, context: RevisionContext) -> SandboxResourceRef:
        """Return the reference `provision_harness` would return; pure."""


@runtime_checkable
class NamesNodePeers(Protocol):
    """Optional: labels of the Pods that open the workspace-node connection."""

    async def workspace_node_peer_labels(
        self, context: RevisionContext
    ) -> Mapping[str, str] | None:
        """Return exact labels, or None before the Sandbox exists."""


@runtime_checkable
class ReadsSandboxLogs(Protocol):
    """Optional read of the Sandbox log."""

    async def read_sandbox_logs(self, context: RevisionContext, request: LogRequest) -> LogChunk:
        """Return a page. Raises NotVisible."""


@runtime_checkable
class CarriesTransport(Protocol):
    """Optional provider-owned transport to the Harness."""

    async def harness_endpoint(self, context: HarnessContext) -> HarnessEndpoint | None:
        """Return the transport; None for a Harness that dials out."""

    async def harness_status(self, context: HarnessStatusContext) -> HarnessStatus:
        """Observe the exposed port. No answer raises TransientDependency."""

    async def withdraw_harness_exposure(self, context: RevisionContext) -> None:
        """Remove a native worker's exposure; resolves only when its absence is proved."""


@runtime_checkable
class EnrollsHarness(Protocol):
    """Optional: needed for a protected egress plan."""

    async def enroll_harness(self, context: HarnessContext, installation: Json) -> None:
        """Bind a fresh startup challenge before the first model probe."""


@runtime_checkable
class ObservesHarness(Protocol):
    """Optional read of the provider's lifecycle record."""

    async def observe_harness(self, context: RevisionContext) -> HarnessObservation:
        """Exactly one read; never contacts the Harness; an unreadable record is `unknown`."""


@runtime_checkable
class AdmitsNetworkPolicy(Protocol):
    """Optional per-Agent network policies."""

    @property
    def network_policy(self) -> NetworkPolicySupport:
        """What per-Agent policies can express."""

    def admit_network_policy(
        self,
        additions: Json,
        version: int,
        defaults: Json | None = None,
        scope: PolicyScope | None = None,
    ) -> PolicySnapshot:
        """Validate and detach. Raises ConfigurationRefused, NetworkPolicyConflict."""


@runtime_checkable
class AppliesNetworkPolicy(Protocol):
    """Optional live application; declared by `network_policy.live`."""

    async def observe_network_policy(
        self, context: RevisionContext, snapshot: PolicySnapshot
    ) -> PolicyObservation:
        """Compare the policy in force with the candidate."""

    async def apply_network_policy(
        self, context: RevisionContext, application: PolicyApplication
    ) -> PolicyObservation:
        """Compare-and-swap; only a matching, loaded, active version confirms."""


@runtime_checkable
class RecommendsPolicy(Protocol):
    """Optional bounded, untrusted candidate grants."""

    async def read_policy_recommendations(
        self, context: RevisionContext, limit: int
    ) -> Sequence[PolicyRecommendation]:
        """Return at most `limit` candidates."""
