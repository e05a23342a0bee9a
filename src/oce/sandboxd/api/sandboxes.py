"""Sandboxes: create, read, stop, start, delete, watch (reference/openshell-gateway.md a.8, a.9, b.2).

A method only records a wish and wakes the Sandbox's actor; the answer shows the record as it is then.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from oce.sandboxd.api import checks
from oce.sandboxd.api.calls import Query, Stream
from oce.sandboxd.api.execs import log_message
from oce.sandboxd.api.objects import listed, sandbox_response, show, stamp
from oce.sandboxd.api.services import new_service
from oce.sandboxd.api.stubs import Proto, pb, policy_pb, unknown_field
from oce.sandboxd.api.templates import wanted_sandbox
from oce.sandboxd.lifecycle.policies import check_policy, completed, network_policy
from oce.sandboxd.lifecycle.providers import (
    effective_policy,
    environment,
    view_of,
    views_of,
)
from oce.sandboxd.lifecycle.rendering import host_folder, local_settings
from oce.sandboxd.lifecycle.status import DELETED, RUNNING, STOPPED, intend, set_ready
from oce.sandboxd.state.refusals import Refusal, Status, invalid, missing, precondition
from oce.sandboxd.state.store import Kind, Record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from oce.sandboxd.api.calls import Call, Method
    from oce.sandboxd.api.gateway import Gateway
    from oce.sandboxd.lifecycle.logs import LogLine
    from oce.sandboxd.state.store import Reader, Transaction

_TAIL = 200
_DELETION_MOMENT = 2.0
_TERMINAL = frozenset(
    {pb.SANDBOX_PHASE_ERROR, pb.SANDBOX_PHASE_COMPLETED, pb.SANDBOX_PHASE_STOPPED}
)


def find_sandbox(reader: Reader, call: Call, name: str) -> Record:
    """Return a Sandbox that the caller may see; anything else is NOT_FOUND, so that existence is not told (a.2)."""
    checks.active_workspace(reader, call.workspace, writing=False)
    record = reader.named(Kind.SANDBOX, call.workspace, name)
    if record is None or not call.principal.may_enter(record.workspace):
        raise missing("sandbox", name)
    return record


def check_attachable(reader: Reader, workspace: str, names: Sequence[str], policy: Proto) -> None:
    """Refuse providers that are missing, collide in the environment, or whose layer contradicts the policy."""
    owners: dict[str, str] = {}
    for name in names:
        record = reader.named(Kind.PROVIDER, workspace, name)
        if record is None:
            raise precondition(f"provider '{name}' not found")
        view = view_of(reader, record)
        if view is None:
            raise precondition(f"provider '{name}' has no profile")
        for key in environment(view):
            if key in owners:
                raise precondition(
                    f"providers '{owners[key]}' and '{name}' both set the variable {key}"
                )
            owners[key] = name
    network_policy(effective_policy(policy, views_of(reader, workspace, names)))


def write_sandbox(tx: Transaction, record: Record, message: Proto) -> Record:
    """Store a changed spec or metadata under a new resource version."""
    stored = pb.Sandbox()
    stored.CopyFrom(message)
    stored.ClearField("status")
    return tx.update(replace(record, payload=stored.SerializeToString()), bump=True)


class Sandboxes:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        wake = self._wake
        return {
            "CreateSandbox": self._g.mutation(self._create, settled=wake),
            "GetSandbox": Query(handle=self._get),
            "ListSandboxes": Query(handle=self._list, spans=True),
            "DeleteSandbox": self._g.mutation(
                self._delete, settled=self._wake_deleted, finish=self._deleted
            ),
            "StopSandbox": self._g.mutation(self._stop, settled=wake),
            "StartSandbox": self._g.mutation(self._start, settled=wake),
            "WatchSandbox": Stream(handle=self._watch),
        }

    def _wake(self, _call: Call, response: Proto) -> None:
        self._g.supervisor.wake(response.sandbox.metadata.id)

    def _wake_deleted(self, _call: Call, response: Proto) -> None:
        if response.sandbox_id:
            self._g.supervisor.wake(response.sandbox_id)

    async def _deleted(self, response: Proto) -> Proto:
        """Say COMPLETED when it is gone within a moment, so that callers need not poll."""
        if await self._g.supervisor.gone(response.sandbox_id, _DELETION_MOMENT):
            response.outcome = pb.DELETION_OUTCOME_COMPLETED
        return response

    def _create(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        request, workspace = call.request, call.workspace
        checks.active_workspace(tx, workspace)
        for part, where in (
            (request.spec, "spec"),
            *((item, "service_exposures") for item in request.service_exposures),
        ):
            found = unknown_field(part, where)
            if found is not None:
                raise invalid(found, "is not a field this gateway knows")
        if request.await_main_process_attachment:
            raise invalid("await_main_process_attachment", "is not supported by this gateway")
        message = wanted_sandbox(tx, call)
        spec = message.spec
        name = request.name or checks.generated_name(
            lambda wanted: tx.named(Kind.SANDBOX, workspace, wanted) is not None
        )
        checks.routable_name(name, "name")
        checks.labels(request.labels)
        checks.check_annotations(request.annotations)
        checks.sandbox_spec(spec)
        if tx.named(Kind.SANDBOX, workspace, name) is not None:
            raise Refusal(Status.ALREADY_EXISTS, f"sandbox '{name}' already exists")
        policy = completed(
            spec.policy if spec.HasField("policy") else policy_pb.SandboxPolicy(version=1)
        )
        check_policy(policy)
        check_attachable(tx, workspace, list(spec.providers), policy)
        for mount in local_settings(spec.template).mounts:
            host_folder(self._g.config, mount)
        record = self._insert(tx, call, name, message, policy)
        for exposure in request.service_exposures:
            new_service(
                tx,
                record,
                name=exposure.service,
                port=exposure.target_port,
                mode=exposure.authorization_mode,
                now=record.created,
            )
        return sandbox_response(tx, self._g.config, record)

    def _insert(
        self, tx: Transaction, call: Call, name: str, message: Proto, policy: Proto
    ) -> Record:
        now = self._g.clock.now()
        request = call.request
        record = Record(
            kind=Kind.SANDBOX,
            id=str(uuid.uuid4()),
            workspace=call.workspace,
            name=name,
            created=now,
            facts={"desired": RUNNING, "intent": 1, "provisioning_since": now},
        )
        message.metadata.labels.update(request.labels)
        message.metadata.annotations.update(request.annotations)
        stamp(message.metadata, record)
        status = pb.SandboxStatus(phase=pb.SANDBOX_PHASE_PROVISIONING)
        set_ready(status, ready=False, reason="DependenciesNotReady", message="", now=now)
        record = replace(
            record, payload=message.SerializeToString(), status=status.SerializeToString()
        )
        tx.insert(record)
        tx.insert(
            Record(
                kind=Kind.POLICY,
                id=str(uuid.uuid4()),
                workspace=call.workspace,
                parent=record.id,
                name="1",
                payload=policy.SerializeToString(),
                facts={"status": "pending", "error": "", "provenance": {}},
                created=now,
            )
        )
        return record

    async def _get(self, call: Call) -> Proto:
        reader = self._g.store.read
        return sandbox_response(
            reader, self._g.config, find_sandbox(reader, call, call.request.name)
        )

    async def _list(self, call: Call) -> Proto:
        shown, token = listed(self._g.store.read, call, Kind.SANDBOX)
        return pb.ListSandboxesResponse(sandboxes=shown, next_page_token=token)

    def _intend(self, tx: Transaction, record: Record, desired: str, phase: int) -> Record:
        facts = dict(record.facts)
        status = pb.SandboxStatus.FromString(record.status)
        intend(status, facts, desired=desired, phase=phase, now=self._g.clock.now())
        return tx.update(
            replace(record, facts=facts, status=status.SerializeToString()), bump=False
        )

    def _stop(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        record = find_sandbox(tx, call, call.request.name)
        if record.facts["desired"] == DELETED:
            raise precondition(f"sandbox '{record.name}' is being deleted")
        if record.facts["desired"] != STOPPED:
            record = self._intend(tx, record, STOPPED, pb.SANDBOX_PHASE_STOPPING)
        return sandbox_response(tx, self._g.config, record)

    def _start(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        checks.active_workspace(tx, call.workspace)
        record = find_sandbox(tx, call, call.request.name)
        if record.facts["desired"] == DELETED:
            raise precondition(f"sandbox '{record.name}' is being deleted")
        status = pb.SandboxStatus.FromString(record.status)
        up = {pb.SANDBOX_PHASE_READY, pb.SANDBOX_PHASE_PROVISIONING}
        if record.facts["desired"] != RUNNING or status.phase not in up:
            record = self._intend(tx, record, RUNNING, pb.SANDBOX_PHASE_STARTING)
        return sandbox_response(tx, self._g.config, record)

    def _delete(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        checks.active_workspace(tx, call.workspace, writing=False)
        record = tx.named(Kind.SANDBOX, call.workspace, call.request.name)
        if record is None:
            if call.request.allow_missing:
                return pb.DeleteSandboxResponse(outcome=pb.DELETION_OUTCOME_ALREADY_ABSENT)
            raise missing("sandbox", call.request.name)
        if record.facts["desired"] != DELETED:
            record = self._intend(tx, record, DELETED, pb.SANDBOX_PHASE_DELETING)
        return pb.DeleteSandboxResponse(outcome=pb.DELETION_OUTCOME_ACCEPTED, sandbox_id=record.id)

    async def _watch(self, call: Call) -> AsyncGenerator[Proto, None]:
        """Yield the Sandbox now and after each change, and log lines when asked; ends when it is gone."""
        request = call.request
        if request.resume_after_cursor:
            raise Refusal(Status.OUT_OF_RANGE, "the cursor is not known to this gateway")
        if request.follow_events:
            raise invalid("follow_events", "is not supported by this gateway")
        sandbox_id = find_sandbox(self._g.store.read, call, request.sandbox).id
        changed = asyncio.Event()
        self._g.supervisor.subscribe(sandbox_id, changed)
        self._g.logs.subscribe(sandbox_id, changed)
        watch = _Watch(request, self._g.logs.lines(sandbox_id))
        try:
            while (record := self._g.store.read.by_id(Kind.SANDBOX, sandbox_id)) is not None:
                changed.clear()
                message = show(record)
                for event in watch.status(message):
                    yield event
                for event in watch.logs(sandbox_id, self._g.logs.lines(sandbox_id)):
                    yield event
                if watch.done(message):
                    return
                await changed.wait()
        finally:
            self._g.supervisor.unsubscribe(sandbox_id, changed)
            self._g.logs.unsubscribe(sandbox_id, changed)


class _Watch:
    """What one watcher has been told."""

    def __init__(self, request: Proto, lines: Sequence[LogLine]) -> None:
        self._request = request
        self._last = b""
        tail = request.log_tail_lines or _TAIL
        self._sequence = lines[-tail].sequence - 1 if len(lines) >= tail else 0

    def status(self, message: Proto) -> Iterator[Proto]:
        text = message.SerializeToString(deterministic=True)
        if text != self._last and (self._request.follow_status or not self._last):
            yield pb.SandboxStreamEvent(sandbox=message)
        self._last = text

    def logs(self, sandbox_id: str, lines: Sequence[LogLine]) -> Iterator[Proto]:
        if not self._request.follow_logs:
            return
        for line in lines:
            if line.sequence > self._sequence:
                self._sequence = line.sequence
                yield pb.SandboxStreamEvent(log=log_message(sandbox_id, line))

    def done(self, message: Proto) -> bool:
        ended = self._request.stop_on_terminal and message.status.phase in _TERMINAL
        return ended or not (self._request.follow_status or self._request.follow_logs)
