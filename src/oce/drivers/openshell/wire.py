"""The OpenShell gRPC wire: the one home of the `openshell` stubs and of the grpc client in the control plane.

`Gateway` has one narrow, typed method per RPC the Drivers use. Requests are built from plain documents and answers are read into
`records`, so that nobody else sees a stub. Every call carries a deadline of our own and the bearer token, which is read from its file
for each call (a rotated token is honoured at once); cancelling the caller cancels the RPC. A failed set-up is not remembered.

Failures are `GatewayFailure`: method, status, category. Supplier text goes nowhere, except that CreateSandbox's details are written
to the log, normalised and cut (reference/sandbox-openshell.md §2.2).

The SDK's own client is not used: its `create` sends no `request_id`, so a lost answer would make a second Sandbox. `stubs`
loads the generated modules without it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from oce.drivers.openshell import records
from oce.drivers.openshell.failures import Category, GatewayFailure, protocol
from oce.drivers.openshell.stubs import openshell_pb2, openshell_pb2_grpc, sandbox_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    from google.protobuf.message import Message

    from oce.domain.secret import SecretText
    from oce.drivers.openshell.backend import Backend
    from oce.drivers.openshell.documents import Document

_log: Final = logging.getLogger(__name__)
_ERROR_DOMAIN: Final = "openshell.nvidia.com"
_PAGE: Final = 100
_MAX_PAGES: Final = 1000
_DETAILS_MAX: Final = 440
"""With its sentence around it a log line keeps at most 512 characters."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9 ._:/@{},=+()\[\]<>*'#%-]")
_EXEC_GRACE: Final = 5
"""Seconds that the call of a command outlives the command's own limit."""
_TOKEN_MAX: Final = 65_536
_ADMISSION_SENTENCE: Final = "durable mutation admission limit"
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),  # an ambient proxy variable never redirects the control link
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.keepalive_time_ms", 60_000),
)
_CATEGORIES: Final = {
    grpc.StatusCode.UNAVAILABLE: Category.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Category.UNAVAILABLE,
    grpc.StatusCode.UNAUTHENTICATED: Category.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: Category.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: Category.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: Category.EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION: Category.PRECONDITION,
    grpc.StatusCode.ABORTED: Category.CONFLICT,
    grpc.StatusCode.INVALID_ARGUMENT: Category.REFUSED,
    grpc.StatusCode.OUT_OF_RANGE: Category.REFUSED,
    grpc.StatusCode.UNIMPLEMENTED: Category.REFUSED,
}


class Gateway:
    """A client of one OpenShell gateway, shared by the Drivers of one Backend; safe for concurrent use on one event loop."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    async def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    # -- Health and Workspaces ---------------------------------------------------------------------------------------------

    async def health(self) -> str:
        """Return the gateway's version. Raises GatewayFailure unless it is healthy."""
        answer = await self.call("Health", openshell_pb2.HealthRequest())
        if answer.get("status") != "SERVICE_STATUS_HEALTHY":
            raise GatewayFailure("Health", "a status that is not healthy", Category.UNAVAILABLE)
        return str(answer.get("version", ""))

    async def get_workspace(self, name: str) -> records.WorkspaceRecord | None:
        """Return a Workspace, or None when the gateway shows none."""
        found = await self._get(
            "GetWorkspace", openshell_pb2.GetWorkspaceRequest(name=name), "workspace"
        )
        return None if found is None else records.workspace("GetWorkspace", found)

    async def create_workspace(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a Workspace. An existing one is GatewayFailure EXISTS."""
        request = openshell_pb2.CreateWorkspaceRequest(
            name=name, labels=labels, request_id=_fresh()
        )
        await self.call("CreateWorkspace", request)

    async def delete_workspace(self, name: str) -> str:
        """Delete a Workspace; returns the outcome's name."""
        request = openshell_pb2.DeleteWorkspaceRequest(
            name=name, allow_missing=True, request_id=_fresh()
        )
        return _outcome(await self.call("DeleteWorkspace", request))

    # -- Sandboxes ---------------------------------------------------------------------------------------------------------

    async def create_sandbox(self, workspace: str, request: Document) -> records.CreatedSandbox:
        """Create a Sandbox from a document with name, request_id, labels, annotations, spec and service_exposures."""
        message = openshell_pb2.CreateSandboxRequest()
        json_format.ParseDict(request, message)
        message.workspace_scope.workspace = workspace
        answer = await self.call("CreateSandbox", message)
        return records.CreatedSandbox(
            sandbox=records.sandbox("CreateSandbox", answer.get("sandbox", {})),
            service_urls=dict(answer.get("service_urls", {})),
        )

    async def get_sandbox(self, workspace: str, name: str) -> records.SandboxRecord | None:
        """Return a Sandbox, or None when the gateway shows none (absent or concealed)."""
        request = openshell_pb2.GetSandboxRequest(name=name)
        request.workspace_scope.workspace = workspace
        found = await self._get("GetSandbox", request, "sandbox")
        return None if found is None else records.sandbox("GetSandbox", found)

    async def list_sandboxes(self, workspace: str) -> list[records.SandboxRecord]:
        """Return every Sandbox of a Workspace, all pages."""
        found = await self._pages(
            "ListSandboxes", openshell_pb2.ListSandboxesRequest, workspace, "sandboxes"
        )
        return [records.sandbox("ListSandboxes", item) for item in found]

    async def delete_sandbox(self, workspace: str, name: str) -> tuple[str, str]:
        """Delete a Sandbox; returns the outcome's name and the id the gateway deleted."""
        request = openshell_pb2.DeleteSandboxRequest(
            name=name, allow_missing=True, request_id=_fresh()
        )
        request.workspace_scope.workspace = workspace
        answer = await self.call("DeleteSandbox", request)
        return _outcome(answer), str(answer.get("sandbox_id", ""))

    async def get_service(self, workspace: str, sandbox: str) -> records.ServiceRecord | None:
        """Return the unnamed service exposure of a Sandbox, or None when the gateway shows none."""
        request = openshell_pb2.GetServiceRequest(sandbox=sandbox, name="")
        request.workspace_scope.workspace = workspace
        found = await self._get("GetService", request, None)
        return None if found is None else records.service("GetService", found)

    async def delete_service(self, workspace: str, sandbox: str) -> str:
        """Delete the unnamed exposure; returns the outcome's name."""
        request = openshell_pb2.DeleteServiceRequest(
            sandbox=sandbox, name="", allow_missing=True, request_id=_fresh()
        )
        request.workspace_scope.workspace = workspace
        return _outcome(await self.call("DeleteService", request))

    async def get_logs(
        self, workspace: str, sandbox: str, lines: int, since: datetime | None
    ) -> tuple[list[records.LogRecord], int]:
        """Return at most `lines` (1..2000) log lines and how many the ring held. Raises NOT_FOUND as GatewayFailure."""
        request = openshell_pb2.GetSandboxLogsRequest(sandbox=sandbox, lines=lines)
        request.workspace_scope.workspace = workspace
        if since is not None:
            request.since_time.FromDatetime(since.astimezone(UTC).replace(tzinfo=None))
        answer = await self.call("GetSandboxLogs", request)
        found = [records.log_line(item) for item in answer.get("logs", [])]
        if len(found) > lines:
            raise protocol("GetSandboxLogs", "more lines than asked for")
        return found, int(answer.get("buffer_total", 0))

    async def exec_sandbox(
        self,
        workspace: str,
        sandbox: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: SecretText,
        timeout_seconds: int,
    ) -> int:
        """Run a program inside with a private stdin; its output is discarded. Returns the exit code. Raises GatewayFailure."""
        message = openshell_pb2.ExecSandboxRequest(
            sandbox=sandbox,
            command=command,
            environment=environment,
            stdin=stdin.reveal().encode(),
            tty=False,
            no_login_shell=True,
            request_id=_fresh(),
        )
        message.workspace_scope.workspace = workspace
        message.execution_timeout.FromSeconds(timeout_seconds)
        events = await self.stream("ExecSandbox", message, timeout_seconds + _EXEC_GRACE)
        exits = [event["exit"] for event in events if "exit" in event]
        if len(exits) != 1:
            raise protocol("ExecSandbox", "not exactly one exit")
        return int(exits[0].get("exit_code", 0))

    # -- Policies ----------------------------------------------------------------------------------------------------------

    async def policy_status(self, workspace: str, sandbox: str) -> records.PolicyRecord | None:
        """Return the latest policy revision of a Sandbox, or None when the gateway shows no such Sandbox."""
        request = openshell_pb2.GetSandboxPolicyStatusRequest(sandbox=sandbox)
        request.workspace_scope.workspace = workspace
        found = await self._get("GetSandboxPolicyStatus", request, None)
        return None if found is None else records.policy(found)

    async def update_policy(
        self,
        workspace: str,
        sandbox: str,
        policy: Document,
        *,
        expected_version: int,
        annotations: Mapping[str, str],
        request_id: str,
    ) -> None:
        """Replace the whole policy of a Sandbox if the Sandbox's version is still the expected one."""
        message = openshell_pb2.UpdateConfigRequest(
            sandbox=sandbox,
            expected_resource_version=expected_version,
            annotations=annotations,
            request_id=request_id,
        )
        message.workspace_scope.workspace = workspace
        json_format.ParseDict(policy, message.policy)
        await self.call("UpdateConfig", message)

    async def draft_chunks(self, workspace: str, sandbox: str) -> list[Document]:
        """Return the gateway's policy suggestions as documents; their texts are hostile."""
        request = openshell_pb2.GetDraftPolicyRequest(sandbox=sandbox)
        request.workspace_scope.workspace = workspace
        answer = await self.call("GetDraftPolicy", request)
        return list(answer.get("chunks", []))

    # -- Providers and profiles --------------------------------------------------------------------------------------------

    async def get_profile(self, workspace: str, profile_id: str) -> records.ProfileRecord | None:
        """Return a provider profile, or None when the gateway shows none."""
        request = openshell_pb2.GetProviderProfileRequest(id=profile_id)
        request.workspace_scope.workspace = workspace
        found = await self._get("GetProviderProfile", request, "profile")
        return None if found is None else records.profile("GetProviderProfile", found)

    async def list_profiles(self, workspace: str) -> list[records.ProfileRecord]:
        """Return every provider profile that a Workspace sees, all pages."""
        found = await self._pages(
            "ListProviderProfiles", openshell_pb2.ListProviderProfilesRequest, workspace, "profiles"
        )
        return [records.profile("ListProviderProfiles", item) for item in found]

    async def import_profile(self, workspace: str, profile: Document, source: str) -> None:
        """Import one profile (create-only)."""
        message = openshell_pb2.ImportProviderProfilesRequest(request_id=_fresh())
        message.workspace_scope.workspace = workspace
        _item(message.profiles.add(), profile, source)
        answer = await self.call("ImportProviderProfiles", message)
        _accepted("ImportProviderProfiles", answer, "imported")

    async def update_profile(
        self, workspace: str, profile: Document, source: str, expected_version: int
    ) -> None:
        """Replace one profile if its version is still the expected one."""
        message = openshell_pb2.UpdateProviderProfilesRequest(
            id=profile["id"], expected_resource_version=expected_version, request_id=_fresh()
        )
        message.workspace_scope.workspace = workspace
        _item(message.profile, profile, source)
        answer = await self.call("UpdateProviderProfiles", message)
        _accepted("UpdateProviderProfiles", answer, "updated")

    async def delete_profile(self, workspace: str, profile_id: str) -> str:
        """Delete a profile; returns the outcome's name."""
        request = openshell_pb2.DeleteProviderProfileRequest(
            id=profile_id, allow_missing=True, request_id=_fresh()
        )
        request.workspace_scope.workspace = workspace
        return _outcome(await self.call("DeleteProviderProfile", request))

    async def create_provider(
        self,
        workspace: str,
        *,
        name: str,
        profile: str,
        labels: Mapping[str, str],
        config: Mapping[str, SecretText],
        credentials: Mapping[str, SecretText],
    ) -> records.ProviderRecord:
        """Create a provider. An existing one is GatewayFailure EXISTS."""
        message = openshell_pb2.CreateProviderRequest(request_id=_fresh())
        message.workspace_scope.workspace = workspace
        message.provider.metadata.name = name
        message.provider.metadata.labels.update(labels)
        message.provider.type = profile
        message.provider.profile_workspace = workspace
        for key, value in config.items():
            message.provider.config[key] = value.reveal()
        for key, value in credentials.items():
            message.provider.credentials[key] = value.reveal()
        answer = await self.call("CreateProvider", message)
        return records.provider("CreateProvider", answer.get("provider", {}))

    async def get_provider(self, workspace: str, name: str) -> records.ProviderRecord | None:
        """Return a provider, or None when the gateway shows none."""
        request = openshell_pb2.GetProviderRequest(name=name)
        request.workspace_scope.workspace = workspace
        found = await self._get("GetProvider", request, "provider")
        return None if found is None else records.provider("GetProvider", found)

    async def list_providers(self, workspace: str) -> list[records.ProviderRecord]:
        """Return every provider of a Workspace, all pages."""
        found = await self._pages(
            "ListProviders", openshell_pb2.ListProvidersRequest, workspace, "providers"
        )
        return [records.provider("ListProviders", item) for item in found]

    async def update_credentials(
        self, workspace: str, name: str, credentials: Mapping[str, SecretText]
    ) -> None:
        """Replace credential values of a provider; other keys keep theirs."""
        message = openshell_pb2.UpdateProviderRequest(request_id=_fresh())
        message.workspace_scope.workspace = workspace
        message.provider.metadata.name = name
        for key, value in credentials.items():
            message.provider.credentials[key] = value.reveal()
        await self.call("UpdateProvider", message)

    async def update_config(
        self,
        workspace: str,
        name: str,
        config: Mapping[str, SecretText],
        *,
        expected_version: int,
    ) -> records.ProviderRecord:
        """Replace config values of a provider if its version is still the expected one; other keys keep theirs."""
        message = openshell_pb2.UpdateProviderRequest(request_id=_fresh())
        message.workspace_scope.workspace = workspace
        message.provider.metadata.name = name
        message.provider.metadata.resource_version = expected_version
        for key, value in config.items():
            message.provider.config[key] = value.reveal()
        answer = await self.call("UpdateProvider", message)
        return records.provider("UpdateProvider", answer.get("provider", {}))

    async def delete_provider(self, workspace: str, name: str) -> str:
        """Delete a provider; returns the outcome's name. A still attached one is GatewayFailure PRECONDITION."""
        request = openshell_pb2.DeleteProviderRequest(
            name=name, allow_missing=True, request_id=_fresh()
        )
        request.workspace_scope.workspace = workspace
        return _outcome(await self.call("DeleteProvider", request))

    async def provider_status(
        self, workspace: str, sandbox: str, provider: str, receipt: str = ""
    ) -> records.ReadinessRecord | None:
        """Return a provider's readiness in a Sandbox, or None when the gateway shows no such attachment."""
        request = openshell_pb2.GetSandboxProviderStatusRequest(
            sandbox=sandbox, provider=provider, receipt_id=receipt
        )
        request.workspace_scope.workspace = workspace
        found = await self._get("GetSandboxProviderStatus", request, "status")
        if found is None:
            return None
        return records.ReadinessRecord(state=found.get("state", 0), reason=found.get("reason", 0))

    async def detach_provider(self, workspace: str, sandbox: str, provider: str) -> str | None:
        """Detach a provider from a Sandbox; returns the receipt id, or None when the gateway shows no such Sandbox."""
        request = openshell_pb2.DetachSandboxProviderRequest(
            sandbox=sandbox, provider=provider, request_id=_fresh()
        )
        request.workspace_scope.workspace = workspace
        found = await self._get("DetachSandboxProvider", request, None)
        return None if found is None else str(found.get("receipt", {}).get("receipt_id", ""))

    # -- The one road out --------------------------------------------------------------------------------------------------

    async def call(self, method: str, message: Message) -> Document:
        """Send one unary request and return the answer as a document. Raises GatewayFailure."""
        try:
            answer = await self._unary(method)(
                message,
                timeout=self.backend.timeout_seconds,
                metadata=self._metadata(method),
            )
        except grpc.aio.AioRpcError as error:
            raise _failure(method, error) from None
        except grpc.aio.UsageError:
            raise GatewayFailure(method, "a closed connection", Category.UNAVAILABLE) from None
        return _document(method, answer)

    async def stream(self, method: str, message: Message, timeout: float) -> list[Document]:  # noqa: ASYNC109 - gRPC's own deadline
        """Send one request and return the answers of its stream to the end, output left out. Raises GatewayFailure."""
        try:
            call: Any = self._unary(method)(
                message, timeout=timeout, metadata=self._metadata(method)
            )
            answers = [
                answer
                async for answer in call
                if not (answer.HasField("stdout") or answer.HasField("stderr"))
            ]
        except grpc.aio.AioRpcError as error:
            raise _failure(method, error) from None
        except grpc.aio.UsageError:
            raise GatewayFailure(method, "a closed connection", Category.UNAVAILABLE) from None
        return [_document(method, answer) for answer in answers]

    async def _get(self, method: str, message: Message, member: str | None) -> Document | None:
        try:
            answer = await self.call(method, message)
        except GatewayFailure as failure:
            if failure.category is Category.NOT_FOUND:
                return None
            raise
        if member is None:
            return answer
        found = answer.get(member)
        if not isinstance(found, dict):
            raise protocol(method, f"no {member}")
        return found

    async def _pages(
        self, method: str, request: Callable[..., Any], workspace: str, member: str
    ) -> list[Document]:
        """Read a list to its end; a repeated page token means the list cannot be trusted."""
        items: list[Document] = []
        seen: set[str] = set()
        token = ""
        for _ in range(_MAX_PAGES):
            message = request(page_size=_PAGE, page_token=token)
            message.workspace_scope.workspace = workspace
            answer = await self.call(method, message)
            items.extend(answer.get(member, []))
            token = answer.get("next_page_token", "")
            if not token:
                return items
            if token in seen:
                break
            seen.add(token)
        raise protocol(method, "pages that do not end")

    def _unary(self, method: str) -> Callable[..., Awaitable[Message]]:
        if self._stub is None:
            self._channel = self._open(method)
            self._stub = openshell_pb2_grpc.OpenShellStub(self._channel)  # type: ignore[no-untyped-call] # generated
        stub: Callable[..., Awaitable[Message]] = getattr(self._stub, method)
        return stub

    def _open(self, method: str) -> grpc.aio.Channel:
        backend = self.backend
        if not backend.tls:
            return grpc.aio.insecure_channel(backend.authority, options=_OPTIONS)
        root = None
        if backend.root_certificate_path is not None:
            root = _read(method, backend.root_certificate_path)
        credentials = grpc.ssl_channel_credentials(root_certificates=root)
        return grpc.aio.secure_channel(backend.authority, credentials, options=_OPTIONS)

    def _metadata(self, method: str) -> Sequence[tuple[str, str]]:
        token = self.bearer(method)
        return () if token is None else (("authorization", f"Bearer {token}"),)

    def bearer(self, method: str) -> str | None:
        """Read the bearer token afresh; None when the Backend is unauthenticated. Raises GatewayFailure UNAUTHENTICATED."""
        if self.backend.token_path is None:
            return None
        token = _read(method, self.backend.token_path).decode("ascii", "replace").strip()
        if not token or not token.isprintable() or " " in token or not token.isascii():
            raise GatewayFailure(method, "an unusable token file", Category.UNAUTHENTICATED)
        return token


def canonical_spec(spec: Document) -> Document:
    """Return a SandboxSpec document the way the gateway's answer would read: defaults left out, enums by name. Pure."""
    message = json_format.ParseDict(spec, openshell_pb2.SandboxSpec())
    document: Document = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return document


def canonical_policy(policy: Document) -> Document:
    """Return a SandboxPolicy document the way the gateway's answer would read. Pure."""
    message = json_format.ParseDict(policy, sandbox_pb2.SandboxPolicy())
    document: Document = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return document


def _document(method: str, answer: Message) -> Document:
    try:
        document: Document = json_format.MessageToDict(answer, preserving_proto_field_name=True)
    except (json_format.Error, ValueError):  # a time out of range, a number that is none
        raise protocol(method, "an impossible value") from None
    return document


def _read(method: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()[:_TOKEN_MAX]
    except OSError:
        raise GatewayFailure(method, "an unreadable file", Category.UNAUTHENTICATED) from None


def _fresh() -> str:
    """Return a request id for a mutation whose repetition is settled by its object's name and ownership."""
    return str(uuid.uuid4())


def _item(item: Any, profile: Document, source: str) -> None:  # noqa: ANN401 - a generated message without types
    json_format.ParseDict(profile, item.profile)
    item.source = source


def _accepted(method: str, answer: Document, flag: str) -> None:
    errors = [d for d in answer.get("diagnostics", []) if d.get("severity", "").lower() == "error"]
    if errors or not answer.get(flag, False):
        raise GatewayFailure(method, "a profile that is not accepted", Category.REFUSED)


def _outcome(answer: Document) -> str:
    name = str(answer.get("outcome", "")).removeprefix("DELETION_OUTCOME_")
    return name or "ACCEPTED"  # no outcome proves nothing, so it is treated as accepted


def _failure(method: str, error: grpc.aio.AioRpcError) -> GatewayFailure:
    code = error.code()
    reason = _reason(error)
    if code is grpc.StatusCode.CANCELLED and (task := asyncio.current_task()) is not None:
        if task.cancelling():
            raise asyncio.CancelledError
        return GatewayFailure(method, code.name, Category.UNAVAILABLE)
    category = _CATEGORIES.get(code, Category.OTHER)
    details = (error.details() or "").lower()
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _ADMISSION_SENTENCE in details:
        category = Category.LIMIT
    if method == "CreateSandbox":
        shown = _UNSAFE.sub("*", normalised(error.details() or ""))
        _log.warning("CreateSandbox failed with %s: %s", code.name, shown)
    return GatewayFailure(method, code.name, category, reason)


def normalised(details: str) -> str:
    """Return supplier text fit for one log line: no control characters, single spaces, at most 440 characters."""
    printable = "".join(c if c.isprintable() else " " for c in details[: 8 * _DETAILS_MAX])
    return " ".join(printable.split())[:_DETAILS_MAX]


def _reason(error: grpc.aio.AioRpcError) -> str | None:
    """Return the ErrorInfo reason of the gateway's domain, believed only when the inner status repeats the outer one."""
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin" or not isinstance(value, bytes):
            continue
        status = status_pb2.Status()
        try:
            status.ParseFromString(value)
        except DecodeError:
            return None
        if status.code != error.code().value[0]:
            return None
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.domain == _ERROR_DOMAIN:
                return str(info.reason)
    return None
