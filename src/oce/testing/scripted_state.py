"""The memory of the scripted gateway: what it holds, and what each RPC does to it.

One method per RPC, named after it in snake_case. Semantics are the documented ones that a Driver depends on
(reference/openshell-gateway.md (a) and (b)); nothing here is scripted, that is `scripted_gateway`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc
from openshell._proto import datamodel_pb2, openshell_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oce.testing.scripted_gateway import ScriptedGateway

Proto = Any
"""A message of the generated stubs."""
_NEW_IN_0_1_3: Final = ("restart_policy",)
METHODS: Final = (
    "Health",
    "GetWorkspace",
    "CreateWorkspace",
    "DeleteWorkspace",
    "CreateSandbox",
    "GetSandbox",
    "ListSandboxes",
    "DeleteSandbox",
    "GetService",
    "DeleteService",
    "GetSandboxLogs",
    "GetProviderProfile",
    "ListProviderProfiles",
    "ImportProviderProfiles",
    "UpdateProviderProfiles",
    "DeleteProviderProfile",
    "CreateProvider",
    "GetProvider",
    "ListProviders",
    "UpdateProvider",
    "DeleteProvider",
    "GetSandboxProviderStatus",
    "DetachSandboxProvider",
    "GetSandboxPolicyStatus",
    "UpdateConfig",
    "GetDraftPolicy",
)
"""The unary RPCs that this gateway knows; the others are UNIMPLEMENTED."""
STREAMS: Final = ("ExecSandbox", "WatchSandbox")
"""The RPCs that answer with a stream; their effect returns the list of events."""
_MISSING: Final = grpc.StatusCode.NOT_FOUND
_EXISTS: Final = grpc.StatusCode.ALREADY_EXISTS
_PRECONDITION: Final = grpc.StatusCode.FAILED_PRECONDITION
_COMPLETED: Final = openshell_pb2.DELETION_OUTCOME_COMPLETED
_ACCEPTED: Final = openshell_pb2.DELETION_OUTCOME_ACCEPTED
_ALREADY_ABSENT: Final = openshell_pb2.DELETION_OUTCOME_ALREADY_ABSENT


class Refused(Exception):  # noqa: N818 - a scripted answer, not a malfunction
    """A status to answer with; `reason` goes into ErrorInfo."""

    def __init__(self, code: grpc.StatusCode, reason: str | None = None, details: str = "") -> None:
        super().__init__(code.name)
        self.code = code
        self.reason = reason
        self.details = details


@dataclass(slots=True)
class State:
    """What the gateway holds; tests may read and change it freely."""

    workspaces: dict[str, Proto] = field(default_factory=dict)
    sandboxes: dict[tuple[str, str], Proto] = field(default_factory=dict)
    services: dict[tuple[str, str], Proto] = field(default_factory=dict)
    providers: dict[tuple[str, str], Proto] = field(default_factory=dict)
    profiles: dict[tuple[str, str], Proto] = field(default_factory=dict)
    ledger: dict[tuple[str, str], tuple[bytes, str]] = field(default_factory=dict)
    """(method, request id) to the canonical request and the id of what it made."""
    logs: list[Proto] = field(default_factory=list)
    policies: dict[tuple[str, str], list[Proto]] = field(default_factory=dict)
    """Policy revisions of a Sandbox, oldest first."""
    drafts: list[Proto] = field(default_factory=list)
    readiness: dict[str, Proto] = field(default_factory=dict)
    """Provider name to readiness state; READY when absent."""


class _Effects:
    """One method per RPC, on the gateway's state. Raises Refused."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.g = gateway

    @property
    def s(self) -> State:
        return self.g.state

    # -- Workspaces

    def health(self, _request: Proto) -> Proto:
        return openshell_pb2.HealthResponse(
            status=openshell_pb2.SERVICE_STATUS_HEALTHY, version=self.g.version
        )

    def get_workspace(self, request: Proto) -> Proto:
        if self.g.concealed or request.name not in self.s.workspaces:
            raise Refused(_MISSING)
        return openshell_pb2.GetWorkspaceResponse(workspace=self.s.workspaces[request.name])

    def create_workspace(self, request: Proto) -> Proto:
        if request.name in self.s.workspaces:
            raise Refused(_EXISTS)
        workspace = datamodel_pb2.Workspace()
        _stamp(workspace.metadata, request.name, request.labels)
        workspace.status.phase = datamodel_pb2.WORKSPACE_PHASE_ACTIVE
        self.s.workspaces[request.name] = workspace
        return openshell_pb2.CreateWorkspaceResponse(workspace=workspace)

    def delete_workspace(self, request: Proto) -> Proto:
        if request.name not in self.s.workspaces:
            return openshell_pb2.DeleteWorkspaceResponse(outcome=_ALREADY_ABSENT)
        for kind in (self.s.sandboxes, self.s.providers, self.s.profiles):
            if any(workspace == request.name for workspace, _ in kind):
                raise Refused(_PRECONDITION)
        del self.s.workspaces[request.name]
        return openshell_pb2.DeleteWorkspaceResponse(outcome=_COMPLETED)

    def _scope(self, request: Proto) -> str:
        workspace = str(request.workspace_scope.workspace)
        if not workspace:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT)
        if workspace not in self.s.workspaces or self.g.concealed:
            raise Refused(_MISSING)
        return workspace

    # -- Sandboxes

    def create_sandbox(self, request: Proto) -> Proto:
        workspace = self._scope(request)
        key = ("CreateSandbox", request.request_id)
        canonical = request.SerializeToString(deterministic=True)
        place = (workspace, request.name)
        if request.request_id and key in self.s.ledger:
            known, made = self.s.ledger[key]
            if known != canonical:
                raise Refused(_PRECONDITION, "REQUEST_ID_PAYLOAD_MISMATCH")
            found = self.s.sandboxes.get(place)
            if found is None or found.metadata.id != made:
                raise Refused(_PRECONDITION, "REQUEST_REPLAY_UNAVAILABLE")
            return self._created(found)
        if place in self.s.sandboxes:
            raise Refused(_EXISTS)
        for provider in request.spec.providers:
            if (workspace, provider) not in self.s.providers:
                raise Refused(_PRECONDITION, details=f"provider '{provider}' not found")
        sandbox = openshell_pb2.Sandbox()
        _stamp(sandbox.metadata, request.name, request.labels, workspace)
        sandbox.metadata.annotations.update(request.annotations)
        sandbox.metadata.annotations["internal.openshell.ai/shard"] = "0"
        sandbox.spec.CopyFrom(request.spec)
        sandbox.spec.provider_attachment_epoch = str(uuid.uuid4())
        sandbox.status.phase = self.g.initial_phase
        self._forget_new_fields(sandbox.spec)
        self.s.sandboxes[place] = sandbox
        self.s.policies[place] = []
        self._revise(place, request.spec.policy, {})
        for exposure in request.service_exposures:
            self._expose(workspace, sandbox, exposure)
        if request.request_id:
            self.s.ledger[key] = (canonical, sandbox.metadata.id)
        return self._created(sandbox)

    def _revise(self, place: tuple[str, str], policy: Proto, annotations: Proto) -> int:
        revisions = self.s.policies[place]
        revision = openshell_pb2.SandboxPolicyRevision(
            version=len(revisions) + 1, status=openshell_pb2.POLICY_STATUS_PENDING
        )
        revision.policy.CopyFrom(policy)
        revision.provenance.update(annotations)
        revisions.append(revision)
        if self.g.loads_policies:
            self.load(place)
        return int(revision.version)

    def load(self, place: tuple[str, str]) -> None:
        """Mark the newest policy revision loaded and active."""
        newest = self.s.policies[place][-1]
        newest.status = openshell_pb2.POLICY_STATUS_LOADED
        self.s.sandboxes[place].status.current_policy_version = newest.version

    def get_sandbox_policy_status(self, request: Proto) -> Proto:
        place = (self._scope(request), request.sandbox)
        if place not in self.s.sandboxes:
            raise Refused(_MISSING)
        return openshell_pb2.GetSandboxPolicyStatusResponse(
            revision=self.s.policies[place][-1],
            active_version=self.s.sandboxes[place].status.current_policy_version,
        )

    def update_config(self, request: Proto) -> Proto:
        place = (self._scope(request), request.sandbox)
        found = self.s.sandboxes.get(place)
        if found is None:
            raise Refused(_MISSING)
        if request.expected_resource_version not in {0, found.metadata.resource_version}:
            raise Refused(grpc.StatusCode.ABORTED, "RESOURCE_VERSION_CONFLICT")
        version = self._revise(place, request.policy, request.annotations)
        found.metadata.resource_version += 1
        found.metadata.annotations.update(request.annotations)
        return openshell_pb2.UpdateConfigResponse(version=version)

    def get_draft_policy(self, request: Proto) -> Proto:
        if (self._scope(request), request.sandbox) not in self.s.sandboxes:
            raise Refused(_MISSING)
        return openshell_pb2.GetDraftPolicyResponse(chunks=self.s.drafts)

    def _forget_new_fields(self, spec: Proto) -> None:
        """Drop what a gateway of an older version does not know."""
        if self.g.version < "0.1.3":
            for name in _NEW_IN_0_1_3:
                spec.ClearField(name)

    def _expose(self, workspace: str, sandbox: Proto, exposure: Proto) -> None:
        name = sandbox.metadata.name
        found = openshell_pb2.ServiceEndpointResponse(
            url=f"http://{workspace}--{name}.openshell.localhost:17670/"
        )
        found.endpoint.sandbox_id = sandbox.metadata.id
        found.endpoint.sandbox = name
        found.endpoint.name = exposure.service
        found.endpoint.target_port = exposure.target_port
        found.endpoint.authorization_mode = exposure.authorization_mode
        self.s.services[workspace, name] = found

    def _created(self, sandbox: Proto) -> Proto:
        response = openshell_pb2.SandboxResponse(sandbox=sandbox)
        found = self.s.services.get((sandbox.metadata.workspace, sandbox.metadata.name))
        if found is not None:
            response.service_urls[""] = found.url
        return response

    def get_sandbox(self, request: Proto) -> Proto:
        workspace = self._scope(request)
        found = self.s.sandboxes.get((workspace, request.name))
        if found is None:
            raise Refused(_MISSING)
        response = openshell_pb2.SandboxResponse(sandbox=found)
        if found.status.phase == openshell_pb2.SANDBOX_PHASE_DELETING:
            self.g.deletion_reads -= 1
            if self.g.deletion_reads < 0:
                self._remove(workspace, request.name)
                raise Refused(_MISSING)
        return response

    def list_sandboxes(self, request: Proto) -> Proto:
        workspace = self._scope(request)
        items, token = self._page(request, self.s.sandboxes, workspace)
        return openshell_pb2.ListSandboxesResponse(sandboxes=items, next_page_token=token)

    def delete_sandbox(self, request: Proto) -> Proto:
        workspace = self._scope(request)
        found = self.s.sandboxes.get((workspace, request.name))
        if found is None:
            return openshell_pb2.DeleteSandboxResponse(outcome=_ALREADY_ABSENT)
        identifier = found.metadata.id
        if self.g.accepts_deletions:
            found.status.phase = openshell_pb2.SANDBOX_PHASE_DELETING
            return openshell_pb2.DeleteSandboxResponse(outcome=_ACCEPTED, sandbox_id=identifier)
        self._remove(workspace, request.name)
        return openshell_pb2.DeleteSandboxResponse(outcome=_COMPLETED, sandbox_id=identifier)

    def _remove(self, workspace: str, name: str) -> None:
        self.s.sandboxes.pop((workspace, name), None)
        self.s.services.pop((workspace, name), None)

    def get_service(self, request: Proto) -> Proto:
        found = self.s.services.get((self._scope(request), request.sandbox))
        if found is None or request.name:
            raise Refused(_MISSING)
        return found

    def delete_service(self, request: Proto) -> Proto:
        found = self.s.services.pop((self._scope(request), request.sandbox), None)
        outcome = _ALREADY_ABSENT if found is None else _COMPLETED
        return openshell_pb2.DeleteServiceResponse(outcome=outcome)

    def get_sandbox_logs(self, request: Proto) -> Proto:
        if (self._scope(request), request.sandbox) not in self.s.sandboxes:
            raise Refused(_MISSING)
        lines = self.s.logs[-request.lines :]
        return openshell_pb2.GetSandboxLogsResponse(logs=lines, buffer_total=len(self.s.logs))

    # -- Streams

    def exec_sandbox(self, request: Proto) -> list[Proto]:
        found = self.s.sandboxes.get((self._scope(request), request.sandbox))
        if found is None:
            raise Refused(_MISSING)
        if found.status.phase != openshell_pb2.SANDBOX_PHASE_READY:
            raise Refused(_PRECONDITION, details="sandbox is not ready")
        output, ended = openshell_pb2.ExecSandboxEvent(), openshell_pb2.ExecSandboxEvent()
        output.stdout.data = b"output that nobody keeps"
        ended.exit.exit_code = self.g.on_exec(request)
        return [output, ended]

    def watch_sandbox(self, request: Proto) -> list[Proto]:
        found = self.s.sandboxes.get((self._scope(request), request.sandbox))
        if found is None:
            raise Refused(_MISSING)
        first = openshell_pb2.SandboxStreamEvent()
        first.sandbox.CopyFrom(found)
        return [first, *self.g.watch_events]

    # -- Providers and profiles

    def get_provider_profile(self, request: Proto) -> Proto:
        found = self.s.profiles.get((self._scope(request), request.id))
        if found is None:
            raise Refused(_MISSING)
        return openshell_pb2.ProviderProfileResponse(profile=found)

    def list_provider_profiles(self, request: Proto) -> Proto:
        items, token = self._page(request, self.s.profiles, self._scope(request))
        return openshell_pb2.ListProviderProfilesResponse(profiles=items, next_page_token=token)

    def import_provider_profiles(self, request: Proto) -> Proto:
        workspace = self._scope(request)
        response = openshell_pb2.ImportProviderProfilesResponse(imported=True)
        for item in request.profiles:
            if (workspace, item.profile.id) in self.s.profiles:
                response.imported = False
                response.diagnostics.add(profile_id=item.profile.id, severity="error")
                return response
        for item in request.profiles:
            profile = openshell_pb2.ProviderProfile()
            profile.CopyFrom(item.profile)
            profile.resource_version = 1
            self.s.profiles[workspace, profile.id] = profile
        return response

    def update_provider_profiles(self, request: Proto) -> Proto:
        workspace = self._scope(request)
        found = self.s.profiles.get((workspace, request.id))
        if found is None:
            raise Refused(_MISSING)
        if found.resource_version != request.expected_resource_version:
            raise Refused(grpc.StatusCode.ABORTED, "RESOURCE_VERSION_CONFLICT")
        profile = openshell_pb2.ProviderProfile()
        profile.CopyFrom(request.profile.profile)
        profile.resource_version = found.resource_version + 1
        self.s.profiles[workspace, request.id] = profile
        return openshell_pb2.UpdateProviderProfilesResponse(updated=True)

    def delete_provider_profile(self, request: Proto) -> Proto:
        workspace = self._scope(request)
        if any(p.type == request.id for (w, _), p in self.s.providers.items() if w == workspace):
            raise Refused(_PRECONDITION)
        found = self.s.profiles.pop((workspace, request.id), None)
        outcome = _ALREADY_ABSENT if found is None else _COMPLETED
        return openshell_pb2.DeleteProviderProfileResponse(outcome=outcome)

    def create_provider(self, request: Proto) -> Proto:
        workspace = self._scope(request)
        place = (workspace, request.provider.metadata.name)
        if place in self.s.providers:
            raise Refused(_EXISTS)
        if (workspace, request.provider.type) not in self.s.profiles:
            raise Refused(_PRECONDITION)
        provider = datamodel_pb2.Provider()
        provider.CopyFrom(request.provider)
        _stamp(provider.metadata, place[1], request.provider.metadata.labels, workspace)
        self.s.providers[place] = provider
        return openshell_pb2.ProviderResponse(provider=_redacted(provider))

    def get_provider(self, request: Proto) -> Proto:
        return openshell_pb2.ProviderResponse(provider=_redacted(self._provider(request)))

    def _provider(self, request: Proto) -> Proto:
        found = self.s.providers.get((self._scope(request), request.name))
        if found is None:
            raise Refused(_MISSING)
        return found

    def list_providers(self, request: Proto) -> Proto:
        items, token = self._page(request, self.s.providers, self._scope(request))
        return openshell_pb2.ListProvidersResponse(
            providers=[_redacted(item) for item in items], next_page_token=token
        )

    def update_provider(self, request: Proto) -> Proto:
        found = self.s.providers.get((self._scope(request), request.provider.metadata.name))
        if found is None:
            raise Refused(_MISSING)
        expected = request.provider.metadata.resource_version
        if expected not in {0, found.metadata.resource_version}:
            raise Refused(grpc.StatusCode.ABORTED, "RESOURCE_VERSION_CONFLICT")
        found.credentials.update(request.provider.credentials)
        found.config.update(request.provider.config)
        found.metadata.resource_version += 1
        return openshell_pb2.ProviderResponse(provider=_redacted(found))

    def delete_provider(self, request: Proto) -> Proto:
        workspace = self._scope(request)
        for (where, _), sandbox in self.s.sandboxes.items():
            if where == workspace and request.name in sandbox.spec.providers:
                raise Refused(_PRECONDITION)
        found = self.s.providers.pop((workspace, request.name), None)
        outcome = _ALREADY_ABSENT if found is None else _COMPLETED
        return openshell_pb2.DeleteProviderResponse(outcome=outcome)

    def get_sandbox_provider_status(self, request: Proto) -> Proto:
        found = self.s.sandboxes.get((self._scope(request), request.sandbox))
        attached = found is not None and request.provider in found.spec.providers
        if not attached and not request.receipt_id:
            raise Refused(_MISSING)
        state = self.s.readiness.get(request.provider, openshell_pb2.PROVIDER_READINESS_STATE_READY)
        if not attached:
            state = openshell_pb2.PROVIDER_READINESS_STATE_REVOKED
        response = openshell_pb2.GetSandboxProviderStatusResponse()
        response.status.state = state
        return response

    def detach_sandbox_provider(self, request: Proto) -> Proto:
        found = self.s.sandboxes.get((self._scope(request), request.sandbox))
        if found is None:
            raise Refused(_MISSING)
        if request.provider in found.spec.providers:
            found.spec.providers.remove(request.provider)
        response = openshell_pb2.DetachSandboxProviderResponse(sandbox=found, detached=True)
        response.receipt.receipt_id = str(uuid.uuid4())
        return response

    def _page(
        self, request: Proto, kind: dict[tuple[str, str], Proto], workspace: str
    ) -> tuple[list[Proto], str]:
        items = [item for (where, _), item in sorted(kind.items()) if where == workspace]
        start = int(request.page_token or 0)
        size = self.g.page_size or request.page_size or len(items) or 1
        end = start + size
        return items[start:end], str(end) if end < len(items) else ""


def effects_of(gateway: ScriptedGateway) -> Mapping[str, Callable[[Proto], Proto]]:
    """Return what each RPC does, by RPC name. An effect raises Refused."""
    effects = _Effects(gateway)
    return {method: getattr(effects, _snake(method)) for method in (*METHODS, *STREAMS)}


def _snake(method: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in method).lstrip("_")


def _stamp(metadata: Proto, name: str, labels: Proto, workspace: str = "") -> None:
    metadata.id = str(uuid.uuid4())
    metadata.name = name
    metadata.workspace = workspace
    metadata.labels.update(labels)
    metadata.resource_version = 1


def _redacted(provider: Proto) -> Proto:
    copy = datamodel_pb2.Provider()
    copy.CopyFrom(provider)
    for key in copy.credentials:
        copy.credentials[key] = ""
    return copy
