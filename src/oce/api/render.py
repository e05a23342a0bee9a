"""From a resource to its answer: one small function per kind, nothing decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oce.api.views import (
    AgentView,
    AttemptView,
    AuditEventView,
    AuditResourceView,
    BindingSourceView,
    BindingView,
    ComputeView,
    ConfigurationView,
    DeploymentErrorView,
    DeploymentView,
    HarnessAuthView,
    HarnessStateView,
    HarnessStatusView,
    HarnessView,
    InitialWorkspaceView,
    InstallationView,
    KeyView,
    LogPageView,
    LogRecordView,
    NamespaceView,
    PermissionView,
    ProgressView,
    ReferenceView,
    RevisionView,
    RoleView,
    SecretView,
    ServicePrincipalView,
    SourceIdView,
    SourceStatusView,
    SourceView,
)
from oce.domain.clock import timestamp

if TYPE_CHECKING:
    from oce.core.revisions.queries import Deployment
    from oce.core.runtime.queries import HarnessReport, LogPage, LogRecord
    from oce.domain.resources import (
        AccessBinding,
        Agent,
        AgentRevision,
        AuditEvent,
        Configuration,
        CredentialSource,
        HarnessAuth,
        Identity,
        Installation,
        Namespace,
        Role,
        Secret,
        ServiceKey,
    )


def installation_view(item: Installation, capabilities: dict[str, Any] | None) -> InstallationView:
    """Render the Installation."""
    view = InstallationView(id=item.id, name=item.name, createdAt=timestamp(item.created_at))
    if capabilities:
        view["capabilities"] = capabilities
    return view


def namespace_view(item: Namespace) -> NamespaceView:
    """Render a Namespace."""
    view = NamespaceView(
        id=item.id,
        name=item.name,
        status=item.status.value,
        createdAt=timestamp(item.created_at),
    )
    if item.existing_namespace is not None:
        view["existingNamespace"] = item.existing_namespace
    return view


def secret_ref(namespace_id: str, secret_id: str) -> ReferenceView:
    """Render a reference to a Secret."""
    return ReferenceView(kind="secret", namespaceId=namespace_id, id=secret_id)


def secret_view(item: Secret) -> SecretView:
    """Render a Secret's metadata."""
    return SecretView(
        id=item.id,
        namespaceId=item.namespace_id,
        name=item.name,
        ref=secret_ref(item.namespace_id, item.id),
        createdAt=timestamp(item.created_at),
    )


def source_view(item: CredentialSource, status: SourceStatusView | None = None) -> SourceView:
    """Render a credential source; `status` on exact reads only."""
    view = SourceView(
        id=item.id,
        namespaceId=item.namespace_id,
        name=item.name,
        type=item.type,
        config=dict(item.config),
        secrets={
            field: secret_ref(item.namespace_id, secret) for field, secret in item.secrets.items()
        },
        state=item.state.value,
        ref=ReferenceView(kind="credential_source", namespaceId=item.namespace_id, id=item.id),
        createdAt=timestamp(item.created_at),
    )
    if status is not None:
        view["status"] = status
    return view


def _bindings(namespace_id: str, bindings: Any) -> dict[str, BindingSourceView]:  # noqa: ANN401 # a mapping of name to Secret id
    return {
        name: BindingSourceView(source=secret_ref(namespace_id, secret), delivery={"type": "env"})
        for name, secret in bindings.items()
    }


def configuration_view(item: Configuration, *, values: bool = True) -> ConfigurationView:
    """Render a Configuration; lists leave the document out."""
    view = ConfigurationView(
        id=item.id,
        namespaceId=item.namespace_id,
        kind=item.kind,
        generation=item.generation,
        secretBindings=_bindings(item.namespace_id, item.secret_bindings),
        createdAt=timestamp(item.created_at),
    )
    if item.name is not None:
        view["name"] = item.name
    if values:
        view["values"] = item.values
    return view


def harness_auth_view(namespace_id: str, auth: HarnessAuth | None) -> HarnessAuthView | None:
    """Render `harnessAuth`."""
    if auth is None:
        return None
    view = HarnessAuthView(method=auth.method)
    if auth.source_id is not None:
        if auth.method == "credential_source":
            view["sourceId"] = auth.source_id
        else:
            view["source"] = secret_ref(namespace_id, auth.source_id)
    return view


def agent_view(item: Agent) -> AgentView:
    """Render an Agent."""
    view = AgentView(
        id=item.id,
        namespaceId=item.namespace_id,
        name=item.name,
        servicePrincipalId=item.service_principal_id,
        configurationId=item.configuration_id,
        harnessAuth=harness_auth_view(item.namespace_id, item.harness_auth),
        credentialSources=[SourceIdView(sourceId=source) for source in item.credential_sources],
        executionMode=item.execution_mode,
        desiredRuntimeState=item.desired_runtime_state.value,
        status=item.status.value,
        generation=item.generation,
        createdAt=timestamp(item.created_at),
    )
    if item.active_revision_id is not None:
        view["activeRevisionId"] = item.active_revision_id
    if item.initial_workspace is not None:
        done = item.initial_workspace.completed_at is not None
        view["initialWorkspace"] = InitialWorkspaceView(
            id=item.initial_workspace.id, status="complete" if done else "pending"
        )
    return view


def revision_view(item: AgentRevision, *, configuration: bool = True) -> RevisionView:
    """Render a revision; lists leave the document out."""
    view = RevisionView(
        id=item.id,
        namespaceId=item.namespace_id,
        agentId=item.agent_id,
        revision=item.revision,
        configurationId=item.configuration_id,
        configurationKind="agent",
        configurationGeneration=item.configuration_generation,
        harness=HarnessView(
            id=item.harness.id, version=item.harness.version, mode=item.harness.mode
        ),
        compute=ComputeView(id=item.compute_id, implementation=item.compute_implementation),
        harnessAuth=harness_auth_view(item.namespace_id, item.harness_auth),
        secretBindings=_bindings(item.namespace_id, item.secret_bindings),
        createdAt=timestamp(item.created_at),
    )
    if configuration:
        view["configuration"] = item.configuration
    return view


def role_view(item: Role) -> RoleView:
    """Render a Role."""
    view = RoleView(
        id=item.id,
        permissions=[
            PermissionView(action=pair.action, resourceKind=pair.resource_kind)
            for pair in item.permissions
        ],
        builtIn=item.built_in,
    )
    if item.name is not None:
        view["name"] = item.name
    if item.namespace_id is not None:
        view["namespaceId"] = item.namespace_id
    return view


def binding_view(item: AccessBinding) -> BindingView:
    """Render an AccessBinding."""
    view = BindingView(
        id=item.id,
        subjectKind=item.subject_kind,
        subjectId=item.subject_id,
        roleId=item.role_id,
    )
    if item.namespace_id is not None:
        view["namespaceId"] = item.namespace_id
    if item.resource_kind is not None:
        view["resourceKind"] = item.resource_kind
    if item.resource_id is not None:
        view["resourceId"] = item.resource_id
    return view


def service_principal_view(item: Identity) -> ServicePrincipalView:
    """Render a ServicePrincipal."""
    view = ServicePrincipalView(id=item.id)
    if item.namespace_id is not None:
        view["namespaceId"] = item.namespace_id
    return view


def key_view(item: ServiceKey, secret: str | None = None) -> KeyView:
    """Render a service key; `secret` only when it was made just now."""
    view = KeyView(
        id=item.id,
        servicePrincipalId=item.service_principal_id,
        name=item.name,
        createdAt=timestamp(item.created_at),
        expiresAt=timestamp(item.expires_at),
    )
    if item.namespace_id is not None:
        view["namespaceId"] = item.namespace_id
    if item.last_used_at is not None:
        view["lastUsedAt"] = timestamp(item.last_used_at)
    if secret is not None:
        view["key"] = secret
    return view


def audit_view(item: AuditEvent) -> AuditEventView:
    """Render an audit event."""
    resource = AuditResourceView(kind=item.resource_kind, id=item.resource_id)
    if item.namespace_id is not None:
        resource["namespaceId"] = item.namespace_id
    view = AuditEventView(
        id=item.id,
        schemaVersion=1,
        installationId=item.installation_id,
        occurredAt=timestamp(item.occurred_at),
        source="occ",
        kind=item.kind,
        actorId=item.actor_id,
        action=item.action,
        resource=resource,
        outcome=item.outcome,
        details=dict(item.details),
    )
    if item.namespace_id is not None:
        view["namespaceId"] = item.namespace_id
    if item.request_id is not None:
        view["requestId"] = item.request_id
    if item.reason_code is not None:
        view["reasonCode"] = item.reason_code
    if item.decision_reason is not None:
        view["decisionReason"] = item.decision_reason
    if item.authorization is not None:
        view["authorization"] = item.authorization
    return view


def harness_status_view(report: HarnessReport) -> HarnessStatusView:
    """Render a live observation; without one the status is `unobserved` and says why, never a remembered state."""
    view = HarnessStatusView(status=report.kind, observedAt=timestamp(report.observed_at))
    if report.revision_id is not None:
        view["revisionId"] = report.revision_id
    if report.reason is not None:
        view["reason"] = report.reason
    if report.harness is not None:
        state = HarnessStateView(state=report.harness.state.value)
        if report.harness.code:
            state["code"] = report.harness.code
        if report.harness.exit_code is not None:
            state["exitCode"] = report.harness.exit_code
        if report.harness.restarts is not None:
            state["restarts"] = report.harness.restarts
        view["harness"] = state
    return view


def deployment_view(item: Deployment) -> DeploymentView:
    """Render a deployment."""
    progress: ProgressView | None = None
    if item.progress is not None:
        last = item.progress.last_attempt
        following = item.progress.next_attempt_at
        progress = ProgressView(
            lastAttempt=None
            if last is None
            else AttemptView(at=timestamp(last.at), code=last.code, message=last.message),
            nextAttemptAt=None if following is None else timestamp(following),
        )
    error: DeploymentErrorView | None = None
    if item.error is not None:
        error = DeploymentErrorView(code=item.error.code, message=item.error.message)
        if item.error.hint:
            error["hint"] = item.error.hint
        if item.error.docs:
            error["docs"] = item.error.docs
        if item.error.data is not None:
            error["data"] = item.error.data
    return DeploymentView(
        deploymentId=item.deployment_id,
        namespaceId=item.namespace_id,
        agentId=item.agent_id,
        status=item.status.value,
        progress=progress,
        error=error,
        warnings=list(item.warnings),
    )


def _log_record(item: LogRecord) -> LogRecordView:
    view = LogRecordView(type=item.kind)
    if item.time is not None:
        view["time"] = timestamp(item.time)
    if item.kind == "line":
        view["level"] = item.level
        view["message"] = item.message
        view["truncated"] = item.truncated
        if item.fields:
            view["fields"] = dict(item.fields)
    if item.source:
        view["source"] = item.source
    if item.category:
        view["kind"] = item.category
    if item.reason:
        view["reason"] = item.reason
    if item.count:
        view["count"] = item.count
    return view


def log_page_view(item: LogPage) -> LogPageView:
    """Render a page of a Sandbox log."""
    return LogPageView(
        revisionId=item.revision_id,
        observedAt=timestamp(item.observed_at),
        records=[_log_record(record) for record in item.records],
        withheld=item.withheld,
        truncated=item.truncated,
    )
