"""Health, who am I, and workspaces (reference/openshell-gateway.md a.3, a.8, a.9)."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from oce.sandboxd.api import checks
from oce.sandboxd.api.calls import Query
from oce.sandboxd.api.objects import show, stamp
from oce.sandboxd.api.stubs import Proto, data_pb, pb
from oce.sandboxd.state.refusals import Refusal, Status, missing, precondition
from oce.sandboxd.state.store import Kind, Record

if TYPE_CHECKING:
    from oce.sandboxd.api.calls import Call, Method
    from oce.sandboxd.api.gateway import Gateway
    from oce.sandboxd.state.store import Transaction

DEFAULT = "default"
_REMAINING = (Kind.SANDBOX, Kind.PROVIDER, Kind.PROFILE, Kind.TEMPLATE)


def make_default(tx: Transaction, now: float) -> None:
    """Make sure that `default` exists."""
    if tx.named(Kind.WORKSPACE, "", DEFAULT) is None:
        tx.insert(_workspace(DEFAULT, {}, now))


def _workspace(name: str, labels: dict[str, str], now: float) -> Record:
    record = Record(kind=Kind.WORKSPACE, id=str(uuid.uuid4()), workspace="", name=name, created=now)
    message = data_pb.Workspace(metadata=data_pb.ObjectMeta(labels=labels))
    stamp(message.metadata, record)
    return replace(record, payload=message.SerializeToString())


class Workspaces:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            "Health": Query(handle=self._health),
            "GetCurrentUser": Query(handle=self._user),
            "GetGatewayInfo": Query(handle=self._info),
            "CreateWorkspace": self._g.mutation(self._create),
            "GetWorkspace": Query(handle=self._get),
            "ListWorkspaces": Query(handle=self._list),
            "DeleteWorkspace": self._g.mutation(self._delete, prepare=self._terminate),
        }

    def _status(self) -> int:
        lives = self._g.supervisor.egress_lives
        return int(pb.SERVICE_STATUS_HEALTHY if lives else pb.SERVICE_STATUS_DEGRADED)

    async def _health(self, _call: Call) -> Proto:
        return pb.HealthResponse(status=self._status(), version=self._g.config.reported_version)

    async def _user(self, call: Call) -> Proto:
        principal = call.principal
        return pb.GetCurrentUserResponse(
            subject=principal.subject,
            display_name=principal.display_name,
            roles=["openshell-admin", "openshell-user"],
            scopes=["openshell:all"],
            identity_provider=principal.identity_provider,
        )

    async def _info(self, _call: Call) -> Proto:
        driver = pb.ComputeDriverInfo(name="local")
        driver.capabilities.driver_name = "local"
        driver.capabilities.driver_version = self._g.config.reported_version
        driver.capabilities.resource_capabilities.memory.limit_supported = True
        driver.capabilities.resource_capabilities.cpu.limit_supported = True
        return pb.GetGatewayInfoResponse(
            status=self._status(),
            gateway_version=self._g.config.reported_version,
            compute_drivers=[driver],
        )

    def _create(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        request = call.request
        name = checks.routable_name(request.name, "name")
        checks.labels(request.labels)
        if tx.named(Kind.WORKSPACE, "", name) is not None:
            raise Refusal(Status.ALREADY_EXISTS, f"workspace '{name}' already exists")
        record = _workspace(name, dict(request.labels), self._g.clock.now())
        tx.insert(record)
        return pb.CreateWorkspaceResponse(workspace=show(record))

    async def _get(self, call: Call) -> Proto:
        record = checks.active_workspace(self._g.store.read, call.request.name, writing=False)
        return pb.GetWorkspaceResponse(workspace=show(record))

    async def _list(self, call: Call) -> Proto:
        wanted = checks.selector(call.request.label_selector)
        reader = self._g.store.read
        found, token = checks.page(
            call,
            lambda after: (
                record
                for record in reader.page(Kind.WORKSPACE, after=after)
                if wanted.items() <= dict(show(record).metadata.labels).items()
            ),
        )
        return pb.ListWorkspacesResponse(
            workspaces=[show(record) for record in found], next_page_token=token
        )

    async def _terminate(self, call: Call) -> None:
        """Mark the workspace before its emptiness is judged: from now on nothing new is made in it (a.8)."""

        def work(tx: Transaction) -> None:
            record = tx.named(Kind.WORKSPACE, "", call.request.name)
            if record is not None and record.name != DEFAULT and not record.facts:
                tx.update(replace(record, facts={"terminating": True}), bump=True)

        await self._g.store.write(work)

    def _delete(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        request = call.request
        if request.name == DEFAULT:
            raise precondition("workspace 'default' cannot be deleted")
        record = tx.named(Kind.WORKSPACE, "", request.name)
        if record is None:
            if request.allow_missing:
                return pb.DeleteWorkspaceResponse(outcome=pb.DELETION_OUTCOME_ALREADY_ABSENT)
            raise missing("workspace", request.name)
        left = [str(kind) for kind in _REMAINING if tx.page(kind, workspace=request.name, limit=1)]
        if left:
            raise precondition(f"workspace '{request.name}' still contains: {', '.join(left)}")
        tx.delete(record)
        return pb.DeleteWorkspaceResponse(outcome=pb.DELETION_OUTCOME_COMPLETED)
