"""Draft policy: what the denials of a Sandbox suggest, and a person's answer to it (reference/openshell-gateway.md b.9).

A suggestion is the narrowest rule that would lift one kind of denied connection. It takes effect only through an approval, which
carries the review token of exactly the policy that was shown; a suggestion that the policy meanwhile allows is no longer shown.
Nothing is approved by itself, proposals from inside the Sandbox are not taken, and nothing is edited or undone here.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import uuid
from typing import TYPE_CHECKING

from oce.policy.decide import Connection, Judge
from oce.sandboxd.api import checks
from oce.sandboxd.api.calls import Query
from oce.sandboxd.api.configs import replace_policy
from oce.sandboxd.api.sandboxes import find_sandbox
from oce.sandboxd.api.stubs import Proto, pb, policy_pb, timestamp
from oce.sandboxd.lifecycle.configuration import newest_policy
from oce.sandboxd.lifecycle.policies import check_policy, network_policy, policy_hash
from oce.sandboxd.lifecycle.providers import effective_policy, views_of
from oce.sandboxd.state.refusals import Refusal, invalid, missing, precondition
from oce.sandboxd.state.store import Kind, Record

if TYPE_CHECKING:
    from oce.sandboxd.api.calls import Call, Method
    from oce.sandboxd.api.gateway import Gateway
    from oce.sandboxd.lifecycle.denials import Denial
    from oce.sandboxd.state.store import Reader, Transaction

PENDING, APPROVED, REJECTED = "pending", "approved", "rejected"
_STATES = ("", PENDING, APPROVED, REJECTED)
_WELL_KNOWN = frozenset({22, 80, 443})
_SOME, _MANY = 3, 10
_MAX_REASON = 1024
_NOT_NAME = re.compile(r"[^a-z0-9]+")


def endpoint_of(denial: Denial) -> Proto:
    """Return the place that a suggestion opens. Pure."""
    return policy_pb.NetworkEndpoint(
        host=denial.host,
        ports=[denial.port],
        enforcement=policy_pb.NETWORK_ENFORCEMENT_MODE_ENFORCE,
    )


def rule_name(policy: Proto, denial: Denial) -> str:
    """Return the key of the rule that a suggestion makes or adds its program to. Pure.

    A rule opens each of its places to each of its programs, so a program is added only to a rule of exactly this one place; another
    rule that happens to have the name (`a.b` and `a-b` share theirs) is left alone.
    """
    name = f"allow_{_NOT_NAME.sub('_', denial.host.lower()).strip('_')}_{denial.port}"
    taken = name in policy.network_policies
    if taken and list(policy.network_policies[name].endpoints) != [endpoint_of(denial)]:
        return f"{name}_{denial.id[-8:]}"
    return name


def is_private(host: str) -> bool:
    """Whether a host is an address outside the public network, which no rule alone opens."""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def confidence(denial: Denial) -> float:
    """Return how sure a suggestion is, by the protocol's formula. Pure."""
    value = 0.5
    value += 0.1 if denial.hits >= _SOME else 0
    value += 0.2 if denial.hits >= _MANY else 0
    value += 0.15 if denial.port in _WELL_KNOWN else 0
    value -= 0.2 if is_private(denial.host) else 0
    return min(max(value, 0.1), 0.95)


def candidate(policy: Proto, denial: Denial) -> Proto:
    """Return the policy with the suggested access added; a rule of ours for the same place gets the program. Pure."""
    result = policy_pb.SandboxPolicy()
    result.CopyFrom(policy)
    name = rule_name(policy, denial)
    rule = result.network_policies[name]
    rule.name = rule.name or name
    if not rule.endpoints:
        rule.endpoints.append(endpoint_of(denial))
    known = {binary.path for binary in rule.binaries}
    rule.binaries.extend(
        policy_pb.NetworkBinary(path=path) for path in denial.binaries if path not in known
    )
    return result


def review_token(chunk_id: str, revision: str, current: str) -> str:
    """Return the token that an approval of this suggestion against this policy must carry."""
    return hashlib.sha256(f"{chunk_id}\0{revision}\0{current}".encode()).hexdigest()[:32]


class Suggestions:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            "GetDraftPolicy": Query(handle=self._get),
            "ApproveDraftChunk": self._g.mutation(self._approve, settled=self._wake),
            "RejectDraftChunk": self._g.mutation(self._reject),
            "ClearDraftChunks": self._g.mutation(self._clear, settled=self._cleared),
        }

    def _wake(self, call: Call, _response: Proto) -> None:
        record = self._g.store.read.named(Kind.SANDBOX, call.workspace, call.request.sandbox)
        if record is not None:
            self._g.supervisor.wake(record.id)

    async def _get(self, call: Call) -> Proto:
        request = call.request
        if request.status_filter not in _STATES:
            raise invalid("status_filter", "must be pending, approved or rejected")
        reader = self._g.store.read
        sandbox = find_sandbox(reader, call, request.sandbox)
        pending = self._pending(reader, sandbox)
        decided = self._decided(reader, sandbox)
        chunks = [
            *(self._chunk(reader, sandbox, denial) for denial in pending),
            *(chunk for key, chunk in decided.items() if key not in {item.id for item in pending}),
        ]
        response = pb.GetDraftPolicyResponse(
            chunks=[chunk for chunk in chunks if request.status_filter in {"", chunk.status}],
            rolling_summary=(
                f"{len(pending)} pending, from {sum(item.hits for item in pending)} denied connections"
            ),
            draft_version=self._g.logs.denials.version(sandbox.id),
        )
        if pending:
            response.last_analyzed_time.CopyFrom(timestamp(max(item.last for item in pending)))
        return response

    def _decided(self, reader: Reader, sandbox: Record) -> dict[str, Proto]:
        rows = reader.page(Kind.SUGGESTION, workspace=sandbox.workspace, parent=sandbox.id)
        return {row.name: pb.PolicyChunk.FromString(row.payload) for row in rows}

    def _pending(self, reader: Reader, sandbox: Record) -> list[Denial]:
        """Return the denials that nobody answered and that the newest policy would still deny."""
        _, policy = newest_policy(reader, sandbox)
        names = list(pb.Sandbox.FromString(sandbox.payload).spec.providers)
        views = views_of(reader, sandbox.workspace, names)
        judge = Judge(network_policy(effective_policy(policy, views)))
        decided = self._decided(reader, sandbox)
        result = []
        for denial in self._g.logs.denials.of(sandbox.id):
            answer = decided.get(denial.id)
            # A suggestion that was approved and is denied again (the policy was replaced since) asks again.
            answered = answer is not None and (
                answer.status == REJECTED
                or denial.last <= answer.decided_time.ToNanoseconds() / 1e9
            )
            connection = Connection(denial.host, denial.port, denial.binaries)
            if not answered and not judge.connection(connection).allowed:
                result.append(denial)
        return result

    def _chunk(self, reader: Reader, sandbox: Record, denial: Denial) -> Proto:
        revision, policy = newest_policy(reader, sandbox)
        wanted = candidate(policy, denial)
        current = policy_hash(policy)
        chunk = pb.PolicyChunk(
            id=denial.id,
            status=PENDING,
            rule_name=rule_name(policy, denial),
            rationale=f"denied {denial.hits} times: {denial.reason}",
            confidence=confidence(denial),
            stage="connect",
            hit_count=min(denial.hits, 2**31 - 1),
            binary=", ".join(denial.binaries),
            created_time=timestamp(denial.first),
            first_seen_time=timestamp(denial.first),
            last_seen_time=timestamp(denial.last),
            review_token=review_token(denial.id, revision.name, current),
            current_effective_policy_hash=current,
            candidate_effective_policy_hash=policy_hash(wanted),
            current_effective_policy=policy,
            candidate_effective_policy=wanted,
        )
        chunk.proposed_rule.name = chunk.rule_name
        chunk.proposed_rule.endpoints.append(endpoint_of(denial))
        for path in denial.binaries:
            chunk.proposed_rule.binaries.add(path=path)
        if is_private(denial.host):
            chunk.security_notes = (
                "not a public address: it stays refused without an operator's override"
            )
        try:
            check_policy(wanted)
        except Refusal as refusal:
            chunk.validation_result = f"cannot be approved: {refusal.message}"
        return chunk

    def _one(self, tx: Transaction, sandbox: Record, chunk_id: str) -> Denial:
        for denial in self._pending(tx, sandbox):
            if denial.id == chunk_id:
                return denial
        raise missing("pending draft chunk", chunk_id)

    def _approve(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        request = call.request
        checks.active_workspace(tx, call.workspace)
        sandbox = find_sandbox(tx, call, request.sandbox)
        denial = self._one(tx, sandbox, request.chunk_id)
        chunk = self._chunk(tx, sandbox, denial)
        if request.review_token != chunk.review_token:
            raise precondition("the policy changed since this suggestion was shown; read it again")
        version, digest = replace_policy(
            tx,
            sandbox,
            chunk.candidate_effective_policy,
            provenance={"openshell.nvidia.com/draft-chunk": denial.id},
            now=self._g.clock.now(),
        )
        self._decide(tx, sandbox, chunk, APPROVED)
        return pb.ApproveDraftChunkResponse(policy_version=version, policy_hash=digest)

    def _reject(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        request = call.request
        if len(request.reason) > _MAX_REASON:
            raise invalid("reason", f"is longer than {_MAX_REASON} characters")
        checks.active_workspace(tx, call.workspace)
        sandbox = find_sandbox(tx, call, request.sandbox)
        chunk = self._decided(tx, sandbox).get(request.chunk_id)
        if chunk is None or chunk.status != APPROVED:
            chunk = self._chunk(tx, sandbox, self._one(tx, sandbox, request.chunk_id))
        chunk.rejection_reason = request.reason
        self._decide(tx, sandbox, chunk, REJECTED)
        return pb.RejectDraftChunkResponse()

    def _decide(self, tx: Transaction, sandbox: Record, chunk: Proto, state: str) -> None:
        """Record a person's answer; the policies that were shown with the suggestion are not kept."""
        now = self._g.clock.now()
        chunk.status = state
        chunk.decided_time.CopyFrom(timestamp(now))
        for field in ("review_token", "current_effective_policy", "candidate_effective_policy"):
            chunk.ClearField(field)
        earlier = tx.named(Kind.SUGGESTION, sandbox.workspace, chunk.id, sandbox.id)
        if earlier is not None:
            tx.delete(earlier)
        tx.insert(
            Record(
                kind=Kind.SUGGESTION,
                id=str(uuid.uuid4()),
                workspace=sandbox.workspace,
                parent=sandbox.id,
                name=chunk.id,
                payload=chunk.SerializeToString(),
                created=now,
            )
        )

    def _clear(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        checks.active_workspace(tx, call.workspace)
        sandbox = find_sandbox(tx, call, call.request.sandbox)
        return pb.ClearDraftChunksResponse(chunks_cleared=len(self._pending(tx, sandbox)))

    def _cleared(self, call: Call, _response: Proto) -> None:
        reader = self._g.store.read
        sandbox = reader.named(Kind.SANDBOX, call.workspace, call.request.sandbox)
        if sandbox is not None:
            pending = [denial.id for denial in self._pending(reader, sandbox)]
            self._g.logs.denials.drop(sandbox.id, pending)
