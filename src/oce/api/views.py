"""Answers: what a resource looks like on the wire (reference/control-plane.md §5).

The typed dictionaries are both the OpenAPI document and what mypy checks `oce.api.render` against. A member that is not set is left
out; `null` appears only where the dossier says null. Locators of backends and anything secret have no member to be in.
"""
# ruff: noqa: N815 # the members have the wire's names

from __future__ import annotations

from typing import Any, Generic, Literal, NotRequired, TypeVar

from pydantic import BaseModel
from typing_extensions import TypedDict

T = TypeVar("T")


class Meta(BaseModel):
    """Beside every answer."""

    requestId: str
    nextCursor: str | None = None
    dryRun: bool | None = None


class Envelope(BaseModel, Generic[T]):
    """Every success."""

    data: T
    meta: Meta


class RehearsedEnvelope(BaseModel):
    """The answer to `?dryRun=true`: the request would be carried out. What it would make has no id yet, so there is no data."""

    data: None
    meta: Meta


class ErrorDetail(TypedDict):
    """Where a request is wrong."""

    path: str
    code: Literal[
        "REQUIRED",
        "UNKNOWN_FIELD",
        "INVALID_TYPE",
        "INVALID_FORMAT",
        "INVALID_VALUE",
        "TOO_LONG",
        "TOO_DEEP",
    ]


class ErrorBody(TypedDict):
    """What went wrong; `hint` says what to do, `docs` where to read on."""

    code: str
    message: str
    details: NotRequired[list[ErrorDetail]]
    hint: NotRequired[str]
    docs: NotRequired[str]


class ErrorEnvelope(BaseModel):
    """Every failure."""

    error: ErrorBody
    meta: Meta


class ReferenceView(TypedDict):
    """An opaque handle."""

    kind: str
    namespaceId: str
    id: str


class InstallationView(TypedDict):
    """The singleton."""

    id: str
    name: str
    createdAt: str
    capabilities: NotRequired[dict[str, Any]]


class NamespaceView(TypedDict):
    """A tenant."""

    id: str
    name: str
    existingNamespace: NotRequired[str]
    status: Literal["provisioning", "ready", "failed", "deleting"]
    createdAt: str


class ConsumersView(TypedDict):
    """Who uses a Secret; each list has at most 50 ids."""

    agents: list[str]
    configurations: list[str]
    credentialSources: list[str]
    provisioningRequests: list[str]
    unreadable: int
    truncated: bool


class SecretView(TypedDict):
    """Metadata; there is no member for the value."""

    id: str
    namespaceId: str
    name: str
    ref: ReferenceView
    createdAt: str
    consumers: NotRequired[ConsumersView]


class SourceStatusView(TypedDict):
    """The Credential Gateway's live view."""

    state: str
    reason: NotRequired[str]


class SourceView(TypedDict):
    """A credential source."""

    id: str
    namespaceId: str
    name: str
    type: str
    config: dict[str, str]
    secrets: dict[str, ReferenceView]
    state: Literal["registering", "ready", "deleting"]
    ref: ReferenceView
    status: NotRequired[SourceStatusView]
    createdAt: str


class BindingSourceView(TypedDict):
    """One entry of `secretBindings`."""

    source: ReferenceView
    delivery: dict[str, str]


class ConfigurationView(TypedDict):
    """An editable document; its name is optional (ours), lists leave `values` out."""

    id: str
    namespaceId: str
    name: NotRequired[str]
    kind: Literal["agent"]
    generation: int
    values: NotRequired[dict[str, Any]]
    secretBindings: dict[str, BindingSourceView]
    createdAt: str


class HarnessAuthView(TypedDict):
    """How the Harness signs in."""

    method: str
    sourceId: NotRequired[str]
    source: NotRequired[ReferenceView]


class SourceIdView(TypedDict):
    """One entry of `credentialSources`."""

    sourceId: str


class HarnessStateView(TypedDict):
    """What a Driver observed just now."""

    state: Literal["running", "starting", "unknown", "lost"]
    code: NotRequired[str]
    exitCode: NotRequired[int]
    restarts: NotRequired[int]


class HarnessStatusView(TypedDict):
    """`observed` with its evidence, else `unobserved`."""

    status: Literal["observed", "unobserved"]
    observedAt: str
    revisionId: NotRequired[str]
    reason: NotRequired[str]
    harness: NotRequired[HarnessStateView]


class InitialWorkspaceView(TypedDict):
    """Whether an Agent's initial workspace files are in place; their content is never read back."""

    id: str
    status: Literal["pending", "complete"]


class AgentView(TypedDict):
    """A draft and the pointer to what is published."""

    id: str
    namespaceId: str
    name: str
    servicePrincipalId: str
    configurationId: str
    harnessAuth: HarnessAuthView | None
    credentialSources: list[SourceIdView]
    executionMode: Literal["embedded", "dedicated"]
    desiredRuntimeState: Literal["stopped", "running"]
    activeRevisionId: NotRequired[str]
    status: Literal["active", "deleting"]
    generation: int
    createdAt: str
    initialWorkspace: NotRequired[InitialWorkspaceView]


class HarnessView(TypedDict):
    """The program that runs the agent loop."""

    id: Literal["openclaw", "codex"]
    version: str
    mode: Literal["embedded", "dedicated"]


class ComputeView(TypedDict):
    """Which Compute admitted the revision."""

    id: str
    implementation: str


class RevisionView(TypedDict):
    """An immutable revision; its id is the deployment id."""

    id: str
    namespaceId: str
    agentId: str
    revision: int
    configurationId: str
    configurationKind: Literal["agent"]
    configurationGeneration: int
    configuration: NotRequired[dict[str, Any]]
    harness: HarnessView
    compute: ComputeView
    harnessAuth: HarnessAuthView | None
    secretBindings: dict[str, BindingSourceView]
    createdAt: str


class AttemptView(TypedDict):
    """The last pass that did not finish the work."""

    at: str
    code: str
    message: str


class ProgressView(TypedDict):
    """Null when terminal."""

    lastAttempt: AttemptView | None
    nextAttemptAt: str | None


class DeploymentErrorView(TypedDict):
    """Why a deployment failed."""

    code: str
    message: str
    hint: NotRequired[str]
    docs: NotRequired[str]
    data: NotRequired[dict[str, Any]]


class DeploymentView(TypedDict):
    """The work behind a revision."""

    deploymentId: str
    namespaceId: str
    agentId: str
    status: Literal["queued", "running", "succeeded", "failed"]
    progress: ProgressView | None
    error: DeploymentErrorView | None
    warnings: list[dict[str, Any]]


class PermissionView(TypedDict):
    """One pair of a Role."""

    action: str
    resourceKind: str


class RoleView(TypedDict):
    """A Role; `builtIn` ones are shipped and cannot be removed (ours)."""

    id: str
    name: NotRequired[str]
    namespaceId: NotRequired[str]
    permissions: list[PermissionView]
    builtIn: bool


class BindingView(TypedDict):
    """An AccessBinding. Without a resource it covers its whole scope."""

    id: str
    subjectKind: Literal["identity", "group"]
    subjectId: str
    roleId: str
    namespaceId: NotRequired[str]
    resourceKind: NotRequired[str]
    resourceId: NotRequired[str]


class ServicePrincipalView(TypedDict):
    """A non-Agent ServicePrincipal."""

    id: str
    namespaceId: NotRequired[str]


class KeyView(TypedDict):
    """A service key without its secret; `key` only in the answer that made it."""

    id: str
    servicePrincipalId: str
    namespaceId: NotRequired[str]
    name: str
    createdAt: str
    expiresAt: str
    lastUsedAt: NotRequired[str]
    key: NotRequired[str]


class RevokedView(TypedDict):
    """The answer to a revocation."""

    id: str
    revoked: Literal[True]


class BackendView(TypedDict):
    """A configured backend."""

    id: str
    type: str


class AuditResourceView(TypedDict):
    """What an audited action touched."""

    kind: str
    id: str
    namespaceId: NotRequired[str]


class AuditEventView(TypedDict):
    """One audit event (reference/control-plane.md §12)."""

    id: str
    schemaVersion: Literal[1]
    installationId: str
    namespaceId: NotRequired[str]
    occurredAt: str
    source: Literal["occ"]
    kind: Literal["bootstrap", "mutation", "access", "authorization_denial"]
    actorId: str
    action: str
    resource: AuditResourceView
    outcome: Literal["success", "denied", "failure"]
    requestId: NotRequired[str]
    reasonCode: NotRequired[str]
    decisionReason: NotRequired[str]
    authorization: NotRequired[Any]
    details: dict[str, Any]


class PolicyDraftView(TypedDict):
    """The additions of an Agent's draft and the Configuration that holds them; `generation` is the ETag."""

    configurationId: str
    generation: int
    additions: list[Any]


class PolicyInForceView(TypedDict):
    """By the control plane's records: as admitted with the revision, or as the newest confirmed live change left it."""

    revisionId: str
    origin: Literal["admitted", "applied"]
    operationId: NotRequired[str]
    unconfirmedOperationId: NotRequired[str]
    driverId: str
    version: int
    defaults: Any
    additions: Any


class PolicyObservationView(TypedDict):
    """What the provider said just now; `matches`: its policy is exactly the candidate."""

    providerVersion: str
    policyVersion: int
    loadState: Literal["pending", "loaded", "failed", "superseded"]
    matches: bool


class PolicyLiveView(TypedDict):
    """`observed` with its evidence, else `unobserved` with the reason."""

    status: Literal["observed", "unobserved"]
    observedAt: str
    observation: NotRequired[PolicyObservationView]
    reason: NotRequired[str]


class NetworkPolicyView(TypedDict):
    """An Agent's network policy: draft, in force, live. `draftApplied` is null when nothing is active."""

    agentId: str
    draft: PolicyDraftView
    inForce: PolicyInForceView | None
    draftApplied: bool | None
    live: PolicyLiveView


class PolicyApplicationView(TypedDict):
    """A live change. `pending`: accepted and not seen loaded and active yet; repeating the request looks again."""

    operationId: str
    revisionId: str
    state: Literal["confirmed", "pending"]
    configurationGeneration: int
    observation: PolicyObservationView


class RecommendationView(TypedDict):
    """One suggestion of the provider; every text may come from the workload."""

    id: str
    state: str
    host: str
    port: int
    binary: str
    reason: str
    observations: NotRequired[int]


class RecommendationsView(TypedDict):
    """Suggestions are untrusted: nobody admitted them, and a workload can provoke them."""

    revisionId: str
    untrusted: Literal[True]
    recommendations: list[RecommendationView]


class PolicyAnswerView(TypedDict):
    """Allowed or denied, by which rule; `addition` is a rule for the draft that was tried and does allow it."""

    allowed: bool
    rule: str
    sentence: str
    basis: Literal["active", "draft"]
    revisionId: NotRequired[str]
    addition: NotRequired[Any]
    note: NotRequired[str]


class LogRecordView(TypedDict):
    """A `line`, a `gap` or a `withheld` record (reference/worker-console.md §12.4)."""

    type: Literal["line", "gap", "withheld"]
    time: NotRequired[str]
    source: NotRequired[str]
    kind: NotRequired[str]
    level: NotRequired[str]
    message: NotRequired[str]
    fields: NotRequired[dict[str, Any]]
    truncated: NotRequired[bool]
    reason: NotRequired[str]
    count: NotRequired[int]


class LogPageView(TypedDict):
    """A bounded page of the active revision's Sandbox log."""

    revisionId: str
    observedAt: str
    records: list[LogRecordView]
    withheld: int
    truncated: bool
