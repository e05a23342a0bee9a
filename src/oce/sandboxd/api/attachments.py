"""Which providers a Sandbox has, and whether that is in force (reference/openshell-gateway.md b.4, b.6).

READY is said only when the egress process confirmed the generation that holds the provider's current version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.sandboxd.api import checks
from oce.sandboxd.api.calls import Query
from oce.sandboxd.api.objects import show
from oce.sandboxd.api.providers import receipt
from oce.sandboxd.api.sandboxes import check_attachable, find_sandbox, write_sandbox
from oce.sandboxd.api.stubs import Proto, pb, timestamp
from oce.sandboxd.lifecycle.configuration import newest_policy
from oce.sandboxd.state.refusals import Refusal, Status, invalid, missing, precondition
from oce.sandboxd.state.store import Kind

if TYPE_CHECKING:
    from oce.sandboxd.api.calls import Call, Method
    from oce.sandboxd.api.gateway import Gateway
    from oce.sandboxd.state.store import Record, Transaction


class Attachments:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            "ListSandboxProviders": Query(handle=self._list),
            "AttachSandboxProvider": self._g.mutation(self._attach, settled=self._wake),
            "DetachSandboxProvider": self._g.mutation(self._detach, settled=self._wake),
            "GetSandboxProviderStatus": Query(handle=self._status),
        }

    def _wake(self, _call: Call, response: Proto) -> None:
        self._g.supervisor.wake(response.sandbox.metadata.id)

    async def _list(self, call: Call) -> Proto:
        reader = self._g.store.read
        sandbox = find_sandbox(reader, call, call.request.sandbox)
        names = sorted(pb.Sandbox.FromString(sandbox.payload).spec.providers)
        records = [reader.named(Kind.PROVIDER, sandbox.workspace, name) for name in names]
        found, token = checks.page(
            call,
            lambda after: (
                record for record in records if record is not None and record.name > after[2]
            ),
        )
        return pb.ListSandboxProvidersResponse(
            providers=[show(record) for record in found], next_page_token=token
        )

    def _attach(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        request = call.request
        checks.active_workspace(tx, call.workspace)
        sandbox = find_sandbox(tx, call, request.sandbox)
        checks.version_fence(request.expected_resource_version, sandbox)
        if "deleted_at" in sandbox.facts:
            raise precondition(f"sandbox '{sandbox.name}' is being deleted")
        message = show(sandbox)
        provider = tx.named(Kind.PROVIDER, sandbox.workspace, request.provider)
        if provider is None:
            raise precondition(f"provider '{request.provider}' not found")
        attached = request.provider not in message.spec.providers
        if attached:
            message.spec.providers.append(request.provider)
            checks.sandbox_spec(message.spec)
            _, policy = newest_policy(tx, sandbox)
            check_attachable(tx, sandbox.workspace, list(message.spec.providers), policy)
            sandbox = write_sandbox(tx, sandbox, message)
        return pb.AttachSandboxProviderResponse(
            sandbox=show(sandbox),
            attached=attached,
            receipt=receipt(
                sandbox, provider, pb.PROVIDER_MUTATION_KIND_ATTACH, self._g.clock.now()
            ),
        )

    def _detach(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        request = call.request
        checks.active_workspace(tx, call.workspace, writing=False)
        sandbox = find_sandbox(tx, call, request.sandbox)
        checks.version_fence(request.expected_resource_version, sandbox)
        message = show(sandbox)
        provider = tx.named(Kind.PROVIDER, sandbox.workspace, request.provider)
        if provider is None:
            raise missing("provider", request.provider)
        detached = request.provider in message.spec.providers
        if detached:
            message.spec.providers.remove(request.provider)
            sandbox = write_sandbox(tx, sandbox, message)
        return pb.DetachSandboxProviderResponse(
            sandbox=show(sandbox),
            detached=detached,
            receipt=receipt(
                sandbox, provider, pb.PROVIDER_MUTATION_KIND_DETACH, self._g.clock.now()
            ),
        )

    async def _status(self, call: Call) -> Proto:
        request = call.request
        reader = self._g.store.read
        sandbox = find_sandbox(reader, call, request.sandbox)
        provider = reader.named(Kind.PROVIDER, sandbox.workspace, request.provider)
        if provider is None:
            raise missing("provider", request.provider)
        attached = request.provider in pb.Sandbox.FromString(sandbox.payload).spec.providers
        if request.receipt_id:
            kind, version = _parsed(request.receipt_id, sandbox, provider)
        else:
            kind, version = pb.PROVIDER_MUTATION_KIND_OBSERVE, provider.version
            if not attached:
                raise Refusal(
                    Status.NOT_FOUND, f"provider '{provider.name}' is not attached to the sandbox"
                )
        now = self._g.clock.now()
        status = pb.ProviderReadinessStatus(
            receipt=receipt(sandbox, provider, kind, now), evaluated_time=timestamp(now)
        )
        if request.receipt_id:
            status.receipt.receipt_id = request.receipt_id
            status.receipt.desired.provider_resource_version = version
        self._judge(status, sandbox, provider, kind=kind, version=version, attached=attached)
        return pb.GetSandboxProviderStatusResponse(status=status)

    def _judge(
        self,
        status: Proto,
        sandbox: Record,
        provider: Record,
        *,
        kind: int,
        version: int,
        attached: bool,
    ) -> None:
        observed = self._g.supervisor.observed(sandbox.id)
        running = self._g.supervisor.running(sandbox.id)
        installed = None if observed is None else observed.providers.get(provider.id)
        detaching = kind == pb.PROVIDER_MUTATION_KIND_DETACH
        if detaching:
            if attached:
                status.state = pb.PROVIDER_READINESS_STATE_SUPERSEDED
                status.reason = pb.PROVIDER_READINESS_REASON_DESIRED_STATE_CHANGED
            elif running is None or (observed is not None and installed is None):
                status.state = pb.PROVIDER_READINESS_STATE_REVOKED
            else:
                status.state = pb.PROVIDER_READINESS_STATE_PENDING
                status.reason = pb.PROVIDER_READINESS_REASON_WAITING_FOR_CREDENTIALS
            return
        if not attached:
            status.state = pb.PROVIDER_READINESS_STATE_REVOKED
            return
        if version < provider.version and kind != pb.PROVIDER_MUTATION_KIND_OBSERVE:
            status.state = pb.PROVIDER_READINESS_STATE_SUPERSEDED
            status.reason = pb.PROVIDER_READINESS_REASON_DESIRED_STATE_CHANGED
            return
        if running is None:
            failed = bool(sandbox.facts.get("ended"))
            status.state = (
                pb.PROVIDER_READINESS_STATE_FAILED
                if failed
                else pb.PROVIDER_READINESS_STATE_PENDING
            )
            status.reason = pb.PROVIDER_READINESS_REASON_WAITING_FOR_PROCESS
            return
        if observed is None or installed is None or installed[0] < version:
            status.state = pb.PROVIDER_READINESS_STATE_PENDING
            status.reason = pb.PROVIDER_READINESS_REASON_WAITING_FOR_CREDENTIALS
            return
        if provider.id in self._g.supervisor.lost_credentials:
            status.state = pb.PROVIDER_READINESS_STATE_FAILED
            status.reason = pb.PROVIDER_READINESS_REASON_CREDENTIAL_INSTALL_FAILED
            return
        status.state = pb.PROVIDER_READINESS_STATE_READY
        status.network_instance_id = running.instance_id
        status.observed_time.CopyFrom(status.evaluated_time)
        found = status.observed
        found.session_id = running.proc_id
        found.sequence = observed.generation
        found.policy_hash = observed.policy_hash
        found.process_instance_id = running.instance_id
        found.credentials_installed = found.policy_active = True
        found.launch_environment_installed = True


def _parsed(receipt_id: str, sandbox: Record, provider: Record) -> tuple[int, int]:
    parts = receipt_id.split(".")
    try:
        kind, sandbox_id, provider_id, version = parts
        numbers = int(kind), int(version)
    except ValueError as error:
        raise invalid("receipt_id", "is not a receipt of this gateway") from error
    if sandbox_id != sandbox.id or provider_id != provider.id:
        raise Refusal(Status.NOT_FOUND, "the receipt belongs to another sandbox or provider")
    return numbers
