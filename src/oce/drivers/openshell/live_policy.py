"""The policy of a running Sandbox: what is in force, and how its network part is replaced (mission document 003).

A live change replaces the Agent's additions alone: the static part is taken from the policy that the gateway shows, the rest from the
snapshot. The gateway's OK proves nothing; a change is confirmed only when the revision that holds exactly the candidate is loaded
*and* active (reference/sandbox-openshell.md §15.4). Suggestions of the gateway are hostile text: bounded, and never applied here.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from oce.contracts.refusals import (
    ConfigurationRefused,
    Detail,
    DriverRefusal,
    NotVisible,
    OwnershipConflict,
)
from oce.contracts.sandbox import PolicyObservation, PolicyRecommendation
from oce.domain.failures import Tempo
from oce.drivers.openshell import adoption, marks
from oce.drivers.openshell.absence import read_proved
from oce.drivers.openshell.failures import Category, GatewayFailure
from oce.drivers.openshell.network_rules import (
    RESERVED_RULES,
    check,
    parse_document,
    wire_rule,
)
from oce.drivers.openshell.wire import canonical_policy, normalised
from oce.policy.model import PROVIDER_RULE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.contracts.sandbox import PolicyApplication, PolicySnapshot
    from oce.domain.resources import AgentRevision
    from oce.drivers.openshell.documents import Document
    from oce.drivers.openshell.records import PolicyRecord, SandboxRecord
    from oce.drivers.openshell.wire import Gateway

_STATES: Final[dict[str | int, Literal["pending", "loaded", "failed", "superseded"]]] = {
    "POLICY_STATUS_LOADED": "loaded",
    "POLICY_STATUS_FAILED": "failed",
    "POLICY_STATUS_SUPERSEDED": "superseded",
    2: "loaded",
    3: "failed",
    4: "superseded",
}
_MAX_RECOMMENDATIONS: Final = 100
_REASON_MAX: Final = 200
_LIFECYCLE: Final = frozenset(("pending", "approved", "rejected"))
_HOST: Final = re.compile(r"[a-z0-9*]([a-z0-9.*-]{0,251}[a-z0-9])?")
_BINARY: Final = re.compile(r"/[!-~]{1,1023}")
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Target:
    """The Sandbox of one revision."""

    workspace: str
    sandbox: str
    driver_id: str
    revision: AgentRevision


class LivePolicies:
    """Observes and replaces policies of running Sandboxes."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def observe(self, target: Target, snapshot: PolicySnapshot) -> PolicyObservation:
        """Return the provider version, policy version, load state, and whether the whole candidate is in force."""
        sandbox, status = await self._read(target)
        return observation(sandbox, status, candidate(target, snapshot, status.policy))

    async def apply(self, target: Target, application: PolicyApplication) -> PolicyObservation:
        """Replace the network part under compare-and-swap.

        Repeating an operation that took effect sends nothing. Raises ConfigurationRefused when the gateway rejects the change,
        DriverRefusal(RECONCILIATION_PENDING) when the version moved.
        """
        sandbox, status = await self._read(target)
        wanted = candidate(target, application.snapshot, status.policy)
        done = status.provenance.get(marks.POLICY_OPERATION) == application.operation_id
        if done and canonical_policy(status.policy) == wanted:
            return observation(sandbox, status, wanted)
        if str(sandbox.meta.resource_version) != application.expected_provider_version:
            _moved()
        try:
            await self._gateway.update_policy(
                target.workspace,
                target.sandbox,
                wanted,
                expected_version=sandbox.meta.resource_version,
                annotations={
                    marks.POLICY_OPERATION: application.operation_id,
                    marks.POLICY_SNAPSHOT: marks.json_digest(asdict(application.snapshot)),
                },
                request_id=operation_request_id(application.operation_id),
            )
        except GatewayFailure as failure:
            if failure.category is Category.CONFLICT:
                _moved()
            if failure.category is Category.REFUSED or (
                failure.category is Category.PRECONDITION and not failure.replay_refused
            ):
                raise ConfigurationRefused(
                    Detail(
                        "", "INVALID_VALUE", "the gateway rejects this change of a running Sandbox"
                    )
                ) from failure
            raise
        return await self.observe(target, application.snapshot)

    async def _read(self, target: Target) -> tuple[SandboxRecord, PolicyRecord]:
        async def read() -> SandboxRecord | None:
            return await self._gateway.get_sandbox(target.workspace, target.sandbox)

        sandbox = await read_proved(self._gateway, target.workspace, read)
        if sandbox is None:
            raise NotVisible("the Sandbox")
        annotations = marks.sandbox_annotations(target.revision)
        key = marks.difference(annotations, sandbox.meta.annotations)
        if key is not None:
            raise OwnershipConflict("Sandbox", f"annotations.{key}")
        status = await self._gateway.policy_status(target.workspace, target.sandbox)
        if status is None:
            raise NotVisible("the Sandbox's policy")
        return sandbox, status


def candidate(target: Target, snapshot: PolicySnapshot, current: Document) -> Document:
    """Return the complete policy that a snapshot means, on the static and the generated part of the current one. Pure."""
    if snapshot.driver_id != target.driver_id:
        raise DriverRefusal("SANDBOX_DRIVER_MISMATCH", Tempo.PERMANENT)
    rules = (
        *parse_document(snapshot.defaults, "/defaults"),
        *parse_document(snapshot.additions, "/additions"),
    )
    check(rules, "")
    static = {key: value for key, value in current.items() if key != "network_policies"}
    generated = {
        key: value
        for key, value in current.get("network_policies", {}).items()
        if key in RESERVED_RULES
    }
    wanted = {rule.key: wire_rule(rule) for rule in rules}
    return canonical_policy({**static, "network_policies": {**wanted, **generated}})


def observation(
    sandbox: SandboxRecord, status: PolicyRecord, wanted: Document
) -> PolicyObservation:
    """Judge a policy status against the candidate; loaded counts only for the version that is active. Pure."""
    state = _STATES.get(status.status, "pending")
    if state == "loaded" and status.active_version != status.version:
        state = "pending"
    policies = {
        key: value
        for key, value in status.policy.get("network_policies", {}).items()
        if not key.startswith(PROVIDER_RULE_PREFIX)
    }
    shown = canonical_policy({**status.policy, "network_policies": policies})
    return PolicyObservation(
        provider_version=str(sandbox.meta.resource_version),
        policy_version=status.version,
        load_state=state,
        matches=adoption.first_difference(wanted, shown, "policy") is None,
    )


def operation_request_id(operation_id: str) -> str:
    """Return the request id of an operation, so that its repetition is a replay."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"openclaw.dev/policy-operation/{operation_id}"))


def _moved() -> NoReturn:
    raise DriverRefusal(
        "RECONCILIATION_PENDING", Tempo.RETRY, "the Sandbox changed since it was observed"
    )


def recommendations(chunks: Sequence[Document], limit: int) -> tuple[PolicyRecommendation, ...]:
    """Return the readable suggestions, newest first, at most `limit`; what does not fit a plain shape is left out. Pure."""
    bounded = max(1, min(limit, _MAX_RECOMMENDATIONS))
    ordered = sorted(chunks, key=lambda chunk: str(chunk.get("id", "")))
    ordered.sort(key=lambda chunk: str(chunk.get("last_seen_time", "")), reverse=True)
    found = (_recommendation(chunk) for chunk in ordered)
    return tuple(item for item in found if item is not None)[:bounded]


def _recommendation(chunk: Document) -> PolicyRecommendation | None:
    rule = chunk.get("proposed_rule", {})
    endpoints, binaries = rule.get("endpoints", []), rule.get("binaries", [])
    if len(endpoints) != 1 or len(binaries) > 1:
        return None
    ports = endpoints[0].get("ports", []) or [endpoints[0].get("port", 0)]
    host = str(endpoints[0].get("host", ""))
    binary = str(binaries[0].get("path", "")) if binaries else str(chunk.get("binary", ""))
    plain = (
        len(ports) == 1
        and 1 <= ports[0] <= _MAX_PORT
        and _HOST.fullmatch(host)
        and _BINARY.fullmatch(binary)
        and _ID.fullmatch(str(chunk.get("id", "")))
    )
    if not plain:
        return None
    status = str(chunk.get("status", ""))
    hits = chunk.get("hit_count")
    return PolicyRecommendation(
        id=str(chunk["id"]),
        state=status if status in _LIFECYCLE else "unknown",
        host=host,
        port=ports[0],
        binary=binary,
        reason=normalised(str(chunk.get("rationale", "")))[:_REASON_MAX],
        observations=hits if isinstance(hits, int) and hits > 0 else None,
    )
