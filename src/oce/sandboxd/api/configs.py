"""A Sandbox's policy: effective configuration, revisions and live replacement (reference/openshell-gateway.md a.9, b.10)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from oce.sandboxd.api import checks
from oce.sandboxd.api.calls import Query
from oce.sandboxd.api.objects import show
from oce.sandboxd.api.sandboxes import check_attachable, find_sandbox, write_sandbox
from oce.sandboxd.api.stubs import Proto, pb, policy_pb, timestamp
from oce.sandboxd.lifecycle.configuration import newest_policy
from oce.sandboxd.lifecycle.policies import (
    check_policy,
    check_replacement,
    completed,
    policy_hash,
)
from oce.sandboxd.lifecycle.providers import effective_policy, views_of
from oce.sandboxd.state.refusals import Refusal, Status, invalid, precondition
from oce.sandboxd.state.store import Kind, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.sandboxd.api.calls import Call, Method
    from oce.sandboxd.api.gateway import Gateway
    from oce.sandboxd.state.store import Transaction

_STATUS = {"pending": 1, "loaded": 2, "failed": 3, "superseded": 4}


def _revision(record: Record, effective_hash: str) -> Proto:
    facts = record.facts
    message = pb.SandboxPolicyRevision(
        version=int(record.name),
        policy_hash=effective_hash,
        status=_STATUS[facts["status"]],
        load_error=facts["error"],
        created_time=timestamp(record.created),
        provenance=facts["provenance"],
    )
    message.policy.CopyFrom(policy_pb.SandboxPolicy.FromString(record.payload))
    if "loaded" in facts:
        message.loaded_time.CopyFrom(timestamp(facts["loaded"]))
    return message


class Configs:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            "GetSandboxConfig": Query(handle=self._config),
            "GetSandboxPolicyStatus": Query(handle=self._status),
            "ListSandboxPolicies": Query(handle=self._list),
            "UpdateConfig": self._g.mutation(self._update, settled=self._wake),
        }

    def _wake(self, call: Call, _response: Proto) -> None:
        record = self._g.store.read.named(Kind.SANDBOX, call.workspace, call.request.sandbox)
        if record is not None:
            self._g.supervisor.wake(record.id)

    async def _config(self, call: Call) -> Proto:
        reader = self._g.store.read
        sandbox = find_sandbox(reader, call, call.request.name)
        revision, policy = newest_policy(reader, sandbox)
        names = list(pb.Sandbox.FromString(sandbox.payload).spec.providers)
        effective = effective_policy(policy, views_of(reader, sandbox.workspace, names))
        wanted = policy_hash(effective)
        observed = self._g.supervisor.observed(sandbox.id)
        return pb.GetSandboxConfigResponse(
            policy=effective,
            version=int(revision.name),
            policy_hash=wanted,
            config_revision=int(wanted[:15], 16),
            policy_source=policy_pb.POLICY_SOURCE_SANDBOX,
            workspace=sandbox.workspace,
            policy_validation_failure_mode="retain_last_valid",
            configuration_admitted=observed is not None and observed.policy_hash == wanted,
            configuration_error=revision.facts["error"],
            configuration_instance_id=sandbox.facts.get("instance", ""),
        )

    def _loaded(self, sandbox: Record) -> int:
        return int(pb.SandboxStatus.FromString(sandbox.status).current_policy_version)

    async def _status(self, call: Call) -> Proto:
        if getattr(call.request, "global"):
            raise _no_global()
        reader = self._g.store.read
        sandbox = find_sandbox(reader, call, call.request.sandbox)
        wanted = call.request.version
        record = (
            reader.named(Kind.POLICY, sandbox.workspace, str(wanted), sandbox.id)
            if wanted
            else newest_policy(reader, sandbox)[0]
        )
        if record is None:
            raise Refusal(Status.NOT_FOUND, f"policy version {wanted} not found")
        policy = policy_pb.SandboxPolicy.FromString(record.payload)
        return pb.GetSandboxPolicyStatusResponse(
            revision=_revision(record, policy_hash(policy)), active_version=self._loaded(sandbox)
        )

    async def _list(self, call: Call) -> Proto:
        if getattr(call.request, "global"):
            raise _no_global()
        reader = self._g.store.read
        sandbox = find_sandbox(reader, call, call.request.sandbox)
        ordered = sorted(
            reader.page(Kind.POLICY, workspace=sandbox.workspace, parent=sandbox.id),
            key=lambda item: -int(item.name),
        )
        found, token = checks.page(
            call,
            lambda after: (
                item for item in ordered if not after[2] or int(item.name) < int(after[2])
            ),
        )
        return pb.ListSandboxPoliciesResponse(
            revisions=[
                _revision(item, policy_hash(policy_pb.SandboxPolicy.FromString(item.payload)))
                for item in found
            ],
            next_page_token=token,
        )

    def _update(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        request = call.request
        if getattr(request, "global"):
            raise _no_global()
        if request.setting_key or request.HasField("setting_value") or request.delete_setting:
            raise invalid("setting_key", "this gateway has no settings")
        if request.merge_operations:
            raise invalid(
                "merge_operations", "are not supported by this gateway; send the whole policy"
            )
        if not request.HasField("policy"):
            raise invalid("policy", "is required")
        checks.active_workspace(tx, call.workspace)
        checks.check_annotations(request.annotations)
        sandbox = find_sandbox(tx, call, request.sandbox)
        checks.version_fence(request.expected_resource_version, sandbox)
        if "deleted_at" in sandbox.facts:
            raise precondition(f"sandbox '{sandbox.name}' is being deleted")
        version, digest = replace_policy(
            tx,
            sandbox,
            request.policy,
            provenance=dict(request.annotations),
            now=self._g.clock.now(),
        )
        return pb.UpdateConfigResponse(
            version=version, policy_hash=digest, annotations=request.annotations
        )


def replace_policy(
    tx: Transaction, sandbox: Record, wanted: Proto, *, provenance: Mapping[str, str], now: float
) -> tuple[int, str]:
    """Add a revision as the newest one of a Sandbox; return its number and hash. Raises Refusal for what is not accepted."""
    current, base = newest_policy(tx, sandbox)
    policy = completed(wanted, base)
    check_policy(policy)
    check_replacement(base, policy)
    message = show(sandbox)
    check_attachable(tx, sandbox.workspace, list(message.spec.providers), policy)
    version = int(current.name) + 1
    tx.insert(
        Record(
            kind=Kind.POLICY,
            id=str(uuid.uuid4()),
            workspace=sandbox.workspace,
            parent=sandbox.id,
            name=str(version),
            payload=policy.SerializeToString(),
            facts={"status": "pending", "error": "", "provenance": dict(provenance)},
            created=now,
        )
    )
    write_sandbox(tx, sandbox, message)
    return version, policy_hash(policy)


def _no_global() -> Refusal:
    return invalid("global", "gateway-wide policies are not supported by this gateway")
