"""Exposed services of a Sandbox (reference/openshell-gateway.md b.7): which port of it a host name reaches."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oce.sandboxd.api import checks
from oce.sandboxd.api.calls import Query
from oce.sandboxd.api.objects import service_url, show, stamp
from oce.sandboxd.api.stubs import Proto, pb
from oce.sandboxd.state.refusals import Refusal, Status, invalid, missing
from oce.sandboxd.state.store import Kind, Record

if TYPE_CHECKING:
    from oce.sandboxd.api.calls import Call, Method
    from oce.sandboxd.api.gateway import Gateway
    from oce.sandboxd.state.store import Reader, Transaction

_MODES = {0: 1, 1: 1, 2: 2}
"""Authorization modes as kept: unspecified means STRIP."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a service's requests go."""

    sandbox_id: str
    port: int
    bearer_passthrough: bool
    ready: bool


def new_service(
    tx: Transaction, sandbox: Record, *, name: str, port: int, mode: int, now: float
) -> Record:
    """Add a service of a Sandbox. Raises Refusal."""
    if name:
        checks.routable_name(name, "service")
    checks.port(port, "target_port")
    if mode not in _MODES:
        raise invalid("authorization_mode", "has a value that is not known")
    if tx.named(Kind.SERVICE, sandbox.workspace, name, sandbox.id) is not None:
        raise invalid("service_exposures", "names a service twice")
    record = Record(
        kind=Kind.SERVICE,
        id=str(uuid.uuid4()),
        workspace=sandbox.workspace,
        parent=sandbox.id,
        name=name,
        created=now,
    )
    message = pb.ServiceEndpoint(
        sandbox_id=sandbox.id,
        sandbox=sandbox.name,
        name=name,
        target_port=port,
        authorization_mode=_MODES[mode],
    )
    stamp(message.metadata, record)
    record = replace(record, payload=message.SerializeToString())
    tx.insert(record)
    return record


def route_of(reader: Reader, workspace: str, sandbox: str, service: str) -> Route | None:
    """Return where a host name leads, or None when there is no such service."""
    owner = reader.named(Kind.SANDBOX, workspace, sandbox)
    record = None if owner is None else reader.named(Kind.SERVICE, workspace, service, owner.id)
    if owner is None or record is None:
        return None
    message = pb.ServiceEndpoint.FromString(record.payload)
    return Route(
        sandbox_id=owner.id,
        port=message.target_port,
        bearer_passthrough=message.authorization_mode
        == pb.SERVICE_AUTHORIZATION_MODE_BEARER_PASSTHROUGH,
        ready=pb.SandboxStatus.FromString(owner.status).phase == pb.SANDBOX_PHASE_READY,
    )


class Services:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            "ExposeService": self._g.mutation(self._expose),
            "GetService": Query(handle=self._get),
            "ListServices": Query(handle=self._list, spans=True),
            "DeleteService": self._g.mutation(self._delete),
        }

    def _sandbox(self, reader: Reader, call: Call, *, writing: bool) -> Record:
        checks.active_workspace(reader, call.workspace, writing=writing)
        record = reader.named(Kind.SANDBOX, call.workspace, call.request.sandbox)
        if record is None or not call.principal.may_enter(record.workspace):
            raise missing("sandbox", call.request.sandbox)
        return record

    def _response(self, record: Record) -> Proto:
        endpoint = show(record)
        return pb.ServiceEndpointResponse(
            endpoint=endpoint,
            url=service_url(self._g.config, record.workspace, endpoint.sandbox, record.name),
        )

    def _expose(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        request = call.request
        sandbox = self._sandbox(tx, call, writing=True)
        if request.domain:
            raise invalid("domain", "is not supported by this gateway")
        current = tx.named(Kind.SERVICE, sandbox.workspace, request.name, sandbox.id)
        if current is not None:
            checks.port(request.target_port, "target_port")
            if request.authorization_mode not in _MODES:
                raise invalid("authorization_mode", "has a value that is not known")
            message = pb.ServiceEndpoint.FromString(current.payload)
            message.target_port = request.target_port
            message.authorization_mode = _MODES[request.authorization_mode]
            return self._response(
                tx.update(replace(current, payload=message.SerializeToString()), bump=True)
            )
        record = new_service(
            tx,
            sandbox,
            name=request.name,
            port=request.target_port,
            mode=request.authorization_mode,
            now=self._g.clock.now(),
        )
        return self._response(record)

    async def _get(self, call: Call) -> Proto:
        reader = self._g.store.read
        sandbox = self._sandbox(reader, call, writing=False)
        record = reader.named(Kind.SERVICE, sandbox.workspace, call.request.name, sandbox.id)
        if record is None:
            raise Refusal(Status.NOT_FOUND, "service endpoint not found")
        return self._response(record)

    async def _list(self, call: Call) -> Proto:
        reader = self._g.store.read
        parent = None
        if call.request.sandbox:
            if call.all_workspaces:
                raise invalid("workspace_scope", "all_workspaces excludes the sandbox filter")
            parent = self._sandbox(reader, call, writing=False).id
        workspace = None if call.all_workspaces else call.workspace
        found, token = checks.page(
            call,
            lambda after: (
                record
                for record in reader.page(
                    Kind.SERVICE, workspace=workspace, parent=parent, after=after
                )
                if call.principal.may_enter(record.workspace)
            ),
        )
        return pb.ListServicesResponse(
            services=[self._response(record) for record in found], next_page_token=token
        )

    def _delete(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        sandbox = self._sandbox(tx, call, writing=False)
        record = tx.named(Kind.SERVICE, sandbox.workspace, call.request.name, sandbox.id)
        if record is None:
            if call.request.allow_missing:
                return pb.DeleteServiceResponse(outcome=pb.DELETION_OUTCOME_ALREADY_ABSENT)
            raise Refusal(Status.NOT_FOUND, "service endpoint not found")
        tx.delete(record)
        return pb.DeleteServiceResponse(outcome=pb.DELETION_OUTCOME_COMPLETED)
