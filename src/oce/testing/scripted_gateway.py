"""A gateway that does what a test tells it: a grpc.aio server on the real OpenShell stubs, kept in memory.

It keeps the semantics a Driver depends on (request ids and their refusals, ownership by name, attachment of providers, asynchronous
deletion, concealment), and every answer can be scripted: refused with any status and structured details, dropped before or after the
effect, or altered. Nothing sleeps; what would take time is a number of reads. Service HTTP shares the port, as on a real gateway.

It decides no policy and runs no workload: that is `oce.sandboxd`. Import it in tests only.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from openshell._proto import datamodel_pb2, openshell_pb2, openshell_pb2_grpc

Proto = Any
"""A message of the generated stubs, which carry no types."""
Effect = Callable[[Proto], Proto]
ServiceHandler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""Gets the request head as bytes and writes whatever it likes."""

_DOMAIN: Final = "openshell.nvidia.com"
_PREFACE: Final = b"PRI"
_NEW_IN_0_1_3: Final = ("restart_policy",)


class Refused(Exception):  # noqa: N818 - a scripted answer, not a malfunction
    """A status to answer with; `reason` goes into ErrorInfo."""

    def __init__(self, code: grpc.StatusCode, reason: str | None = None, details: str = "") -> None:
        super().__init__(code.name)
        self.code = code
        self.reason = reason
        self.details = details


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted answer. `after`: the effect happens first and its answer is lost."""

    refusal: Refused | None = None
    after: bool = False
    alter: Effect | None = None


def status(
    code: grpc.StatusCode, reason: str | None = None, details: str = "", *, after: bool = False
) -> Answer:
    """Answer with a status."""
    return Answer(Refused(code, reason, details), after=after)


def lost(*, after: bool) -> Answer:
    """Break the connection before or after the effect, as UNAVAILABLE."""
    return status(grpc.StatusCode.UNAVAILABLE, after=after)


def altered(alter: Effect) -> Answer:
    """Do the effect and change its answer."""
    return Answer(alter=alter)


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
    readiness: dict[str, Proto] = field(default_factory=dict)
    """Provider name to readiness state; READY when absent."""


class ScriptedGateway:
    """Start it, script it, read `requests` afterwards."""

    def __init__(self) -> None:
        self.state = State()
        self.requests: list[tuple[str, Proto]] = []
        self.metadata: list[dict[str, str]] = []
        self.version = "0.1.5"
        self.accepts_deletions = False
        """DeleteSandbox answers ACCEPTED; the Sandbox stays DELETING for `deletion_reads` reads."""
        self.deletion_reads = 0
        self.concealed = False
        """Objects inside Workspaces are hidden as NOT_FOUND, and the Workspaces too."""
        self.refuses: grpc.StatusCode | None = None
        """Every call but Health is refused with this status."""
        self.initial_phase = openshell_pb2.SANDBOX_PHASE_READY
        self.on_service: ServiceHandler = _not_found
        self.page_size = 0
        """Items per page whatever the client asks for; 0 means all."""
        self._script: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self._server: grpc.aio.Server | None = None
        self._front: asyncio.Server | None = None
        self._splices: set[asyncio.Task[None]] = set()
        self._grpc_port = 0
        self.port = 0

    def script(self, method: str, *answers: Answer) -> None:
        """Queue answers for the next calls of a method."""
        self._script[method].extend(answers)

    def methods(self) -> list[str]:
        """Return the names of the calls so far."""
        return [method for method, _ in self.requests]

    def made(self, method: str) -> list[Proto]:
        """Return the requests of one method."""
        return [message for name, message in self.requests if name == method]

    async def start(self) -> None:
        """Listen on a free loopback port for gRPC and service HTTP."""
        self._server = grpc.aio.server()
        openshell_pb2_grpc.add_OpenShellServicer_to_server(_Servicer(self), self._server)  # type: ignore[no-untyped-call] # generated
        self._grpc_port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._front = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._front.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._front is not None:
            self._front.close()
        for task in list(self._splices):
            task.cancel()
        await asyncio.gather(*self._splices, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(None)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._splices.add(task)
            task.add_done_callback(self._splices.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            first = await reader.readexactly(len(_PREFACE))
            if first == _PREFACE:
                await self._splice(first, reader, writer)
            else:
                head = first + await reader.readuntil(b"\r\n\r\n")
                await self.on_service(head, writer)
                await writer.drain()
        writer.close()

    async def _splice(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._grpc_port)
        back_writer.write(first)
        try:
            await asyncio.gather(_pump(reader, back_writer), _pump(back_reader, writer))
        finally:
            back_writer.close()

    async def answer(self, method: str, request: Proto, context: Proto, effect: Effect) -> Proto:
        """Record a call and answer it as scripted."""
        copy = type(request)()
        copy.CopyFrom(request)
        self.requests.append((method, copy))
        self.metadata.append(dict(context.invocation_metadata() or ()))
        queue = self._script[method]
        scripted = queue.popleft() if queue else Answer()
        try:
            response = self._carry_out(method, request, scripted, effect)
        except Refused as refusal:
            await _abort(context, refusal)
        return response if scripted.alter is None else scripted.alter(response)

    def _carry_out(self, method: str, request: Proto, scripted: Answer, effect: Effect) -> Proto:
        if self.refuses is not None and method != "Health":
            raise Refused(self.refuses)
        if scripted.refusal is not None and not scripted.after:
            raise scripted.refusal
        response = effect(request)
        if scripted.refusal is not None:
            raise scripted.refusal
        return response


async def _not_found(head: bytes, writer: asyncio.StreamWriter) -> None:
    del head
    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _abort(context: Proto, refusal: Refused) -> None:
    trailing: tuple[tuple[str, bytes], ...] = ()
    if refusal.reason is not None:
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.ErrorInfo(reason=refusal.reason, domain=_DOMAIN))
        rich = status_pb2.Status(
            code=refusal.code.value[0], message=refusal.details, details=[packed]
        )
        trailing = (("grpc-status-details-bin", rich.SerializeToString()),)
    await context.abort(refusal.code, refusal.details, trailing_metadata=trailing)


class _Servicer(openshell_pb2_grpc.OpenShellServicer):
    """The stubs' service: each known RPC is an effect on the state."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        effects = _Effects(gateway)
        for method in _METHODS:
            setattr(self, method, _handler(gateway, method, getattr(effects, _snake(method))))


def _snake(method: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in method).lstrip("_")


def _handler(
    gateway: ScriptedGateway, method: str, effect: Effect
) -> Callable[[Proto, Proto], Awaitable[Proto]]:
    async def handle(request: Proto, context: Proto) -> Proto:
        return await gateway.answer(method, request, context, effect)

    return handle


_METHODS: Final = (
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
)
_MISSING: Final = grpc.StatusCode.NOT_FOUND
_EXISTS: Final = grpc.StatusCode.ALREADY_EXISTS
_PRECONDITION: Final = grpc.StatusCode.FAILED_PRECONDITION
_COMPLETED: Final = openshell_pb2.DELETION_OUTCOME_COMPLETED
_ACCEPTED: Final = openshell_pb2.DELETION_OUTCOME_ACCEPTED
_ALREADY_ABSENT: Final = openshell_pb2.DELETION_OUTCOME_ALREADY_ABSENT


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
        for exposure in request.service_exposures:
            self._expose(workspace, sandbox, exposure)
        if request.request_id:
            self.s.ledger[key] = (canonical, sandbox.metadata.id)
        return self._created(sandbox)

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
