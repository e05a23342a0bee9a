"""Records to messages: how each stored object is shown on the wire, and how a recorded response is shown again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.sandboxd.api import checks
from oce.sandboxd.api.stubs import Proto, data_pb, pb, timestamp
from oce.sandboxd.state.ledger import replay_unavailable
from oce.sandboxd.state.store import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from oce.sandboxd.api.calls import Call
    from oce.sandboxd.config import GatewayConfig
    from oce.sandboxd.state.store import Reader, Record

_MESSAGES = {
    "Sandbox": Kind.SANDBOX,
    "Provider": Kind.PROVIDER,
    "Workspace": Kind.WORKSPACE,
    "ProviderProfile": Kind.PROFILE,
    "ServiceEndpoint": Kind.SERVICE,
    "SandboxWorkloadTemplate": Kind.TEMPLATE,
}


def stamp(metadata: Proto, record: Record) -> None:
    """Set what the gateway owns in an object's metadata."""
    metadata.id = record.id
    metadata.name = record.name
    metadata.workspace = record.workspace
    metadata.resource_version = record.version
    metadata.created_time.CopyFrom(timestamp(record.created))


def show(record: Record) -> Proto:
    """Return the object's message."""
    if record.kind is Kind.SANDBOX:
        message = pb.Sandbox.FromString(record.payload)
        message.status.CopyFrom(pb.SandboxStatus.FromString(record.status))
        if "deleted_at" in record.facts:
            message.metadata.deletion_time.CopyFrom(timestamp(record.facts["deleted_at"]))
    elif record.kind is Kind.PROVIDER:
        message = data_pb.Provider.FromString(record.payload)
    elif record.kind is Kind.WORKSPACE:
        message = data_pb.Workspace.FromString(record.payload)
        message.status.phase = 2 if record.facts.get("terminating") else 1
    elif record.kind is Kind.SERVICE:
        message = pb.ServiceEndpoint.FromString(record.payload)
    elif record.kind is Kind.TEMPLATE:
        message = pb.SandboxWorkloadTemplate.FromString(record.payload)
    else:
        message = pb.ProviderProfile.FromString(record.payload)
        message.resource_version = record.version
        message.source = "user"
        message.scope = "workspace" if record.workspace else "platform"
        return message
    stamp(message.metadata, record)
    return message


def listed(reader: Reader, call: Call, kind: Kind) -> tuple[list[Proto], str]:
    """Return one page of the objects that the caller may see, and the next token (a.4).

    The request names one workspace or all of them, and may have a label selector.
    """
    workspace = None if call.all_workspaces else call.workspace
    if workspace is not None:
        checks.active_workspace(reader, workspace, writing=False)
    wanted = checks.selector(call.request.label_selector)
    found, token = checks.page(
        call,
        lambda after: (
            record
            for record in reader.page(kind, workspace=workspace, after=after)
            if call.principal.may_enter(record.workspace)
            and wanted.items() <= dict(show(record).metadata.labels).items()
        ),
    )
    return [show(record) for record in found], token


def service_url(config: GatewayConfig, workspace: str, sandbox: str, service: str) -> str:
    """Return the URL of an exposed service (b.7)."""
    name = f"{workspace}--{sandbox}" + (f"--{service}" if service else "")
    return f"https://{name}.{config.service_domain}:{config.listen_port}/"


def sandbox_response(reader: Reader, config: GatewayConfig, record: Record) -> Proto:
    """Return a SandboxResponse with the URLs of its services."""
    response = pb.SandboxResponse(sandbox=show(record))
    for service in reader.page(Kind.SERVICE, workspace=record.workspace, parent=record.id):
        response.service_urls[service.name] = service_url(
            config, record.workspace, record.name, service.name
        )
    return response


def slim(response: Proto) -> Proto:
    """Return the response as the ledger keeps it: objects reduced to their identity and version."""
    result = type(response)()
    result.CopyFrom(response)
    for field, value in response.ListFields():
        if field.message_type is None or field.message_type.name not in _MESSAGES:
            continue
        if field.is_repeated:
            result.ClearField(field.name)
            getattr(result, field.name).extend(_identity(item) for item in value)
        else:
            getattr(result, field.name).CopyFrom(_identity(value))
    return result


def _identity(message: Proto) -> Proto:
    result = type(message)()
    if message.DESCRIPTOR.name == "ProviderProfile":
        result.id, result.resource_version = message.id, message.resource_version
        return result
    for field in ("id", "name", "workspace", "resource_version"):
        setattr(result.metadata, field, getattr(message.metadata, field))
    return result


def restorer(config: GatewayConfig) -> Callable[[Reader, Call, Proto], Proto]:
    """Return the function that rebuilds a response from its slim form."""

    def restore(reader: Reader, call: Call, recorded: Proto) -> Proto:
        """Show a Sandbox as it is now; any other object must still be at the recorded version (a.5)."""
        if recorded.DESCRIPTOR.name == "SandboxResponse":
            return sandbox_response(reader, config, _current(reader, call, recorded.sandbox))
        result = type(recorded)()
        result.CopyFrom(recorded)
        if recorded.DESCRIPTOR.name == "DeleteSandboxResponse":
            # The receipt says what was true at the commit; what has completed since stays completed.
            if recorded.sandbox_id and reader.by_id(Kind.SANDBOX, recorded.sandbox_id) is None:
                result.outcome = pb.DELETION_OUTCOME_COMPLETED
            return result
        for field, value in recorded.ListFields():
            if field.message_type is None or field.message_type.name not in _MESSAGES:
                continue
            if field.is_repeated:
                result.ClearField(field.name)
                getattr(result, field.name).extend(
                    show(_current(reader, call, item)) for item in value
                )
            else:
                getattr(result, field.name).CopyFrom(show(_current(reader, call, value)))
        return result

    return restore


def _current(reader: Reader, call: Call, identity: Proto) -> Record:
    kind = _MESSAGES[identity.DESCRIPTOR.name]
    if kind is Kind.PROFILE:
        record = reader.named(kind, call.workspace, identity.id)
        version = identity.resource_version
    else:
        record = reader.by_id(kind, identity.metadata.id)
        version = identity.metadata.resource_version
    if record is None or (kind is not Kind.SANDBOX and record.version != version):
        raise replay_unavailable()
    return record
