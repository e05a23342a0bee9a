"""One task per Sandbox: it compares what was asked for with what runs, and makes the next step.

The record says what is wanted (`facts.desired`: running, stopped, deleted) and under which `intent`, a number that each Start,
Stop and Delete raises. Only the actor writes phases that follow from the machine, and only while the intent it acted under is
still current: a late effect never undoes a newer wish (design invariant 9). Every step may be interrupted by a crash and is
simply taken again, so there is no state without a way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from oce.sandboxd.api.stubs import Proto, pb, policy_pb, timestamp
from oce.sandboxd.egress.model import EgressError, NotInstalledError, SandboxEgress
from oce.sandboxd.lifecycle import folders
from oce.sandboxd.lifecycle.policies import network_policy, policy_hash
from oce.sandboxd.lifecycle.providers import bindings, effective_policy, files, views_of
from oce.sandboxd.lifecycle.rendering import host_paths, launch_of
from oce.sandboxd.lifecycle.restarts import Restart, after_exit, policy_of
from oce.sandboxd.lifecycle.templates import MissingConfigError
from oce.sandboxd.lifecycle.trust import host_roots
from oce.sandboxd.place import ExitStatus, PlaceError
from oce.sandboxd.state.refusals import Refusal
from oce.sandboxd.state.store import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from oce.sandboxd.config import GatewayConfig
    from oce.sandboxd.egress.model import EgressClient
    from oce.sandboxd.lifecycle.clock import Clock
    from oce.sandboxd.lifecycle.logs import LogBook
    from oce.sandboxd.lifecycle.providers import ProviderView
    from oce.sandboxd.place import Launch, Place, RunningSandbox
    from oce.sandboxd.state.directory import StateDirectory
    from oce.sandboxd.state.store import Record, Store, Transaction

log = logging.getLogger(__name__)

RUNNING, STOPPED, DELETED = "running", "stopped", "deleted"
STOP_GRACE = 10.0
DELETE_GRACE = 3.0
RETRY = 1.0
PROVISIONING_LIMIT = 120.0


@dataclass(slots=True, kw_only=True)
class Machine:
    """What every actor works with. `changed` is called with a Sandbox's id after each write of its record."""

    store: Store
    place: Place
    egress: EgressClient
    clock: Clock
    config: GatewayConfig
    directory: StateDirectory
    logs: LogBook
    changed: Callable[[str], None]
    launches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is in force for a running Sandbox, proven by the egress process's answer."""

    generation: int
    policy_hash: str
    providers: Mapping[str, tuple[int, int]]
    """Provider id to (provider version, profile version)."""


class SetupError(Exception):
    """The wanted configuration cannot be put into force; waiting does not help."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Actor:
    """Drives one Sandbox."""

    def __init__(self, machine: Machine, sandbox_id: str) -> None:
        self._m = machine
        self.sandbox_id = sandbox_id
        self.running: RunningSandbox | None = None
        self.observed: Observed | None = None
        self._launch: Launch | None = None
        self._wake = asyncio.Event()
        self._helpers: set[asyncio.Task[None]] = set()
        self._exit: asyncio.Task[ExitStatus] | None = None
        self._restart_at: float | None = None
        self._ready = False
        self._egress_due = True

    def wake(self) -> None:
        """Look at the record again soon."""
        self._wake.set()

    def egress_lost(self) -> None:
        """Hand this Sandbox to a newly started egress process."""
        self._egress_due = True
        self.observed = None
        self._wake.set()

    async def run(self) -> None:
        """Drive until the Sandbox is deleted; a cancelled actor leaves the Sandbox running."""
        try:
            while not await self._steadily(self._adopt):
                pass
            while self._record() is not None:
                await self._steadily(self._step)
        finally:
            self._release()

    async def _steadily(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Take a step; a failure nobody foresaw is logged and the step is taken again later."""
        try:
            await step()
        except Exception:
            log.exception("sandbox %s: step failed, retried", self.sandbox_id)
            await self._m.clock.sleep(RETRY)
            return False
        return True

    def _record(self) -> Record | None:
        return self._m.store.read.by_id(Kind.SANDBOX, self.sandbox_id)

    async def _set(self, intent: int, change: Callable[[Proto, dict[str, Any]], None]) -> bool:
        """Change status and facts while `intent` is current; return whether it was."""

        def work(tx: Transaction) -> bool:
            record = tx.by_id(Kind.SANDBOX, self.sandbox_id)
            if record is None or record.facts["intent"] != intent:
                return False
            status = pb.SandboxStatus.FromString(record.status)
            facts = dict(record.facts)
            change(status, facts)
            tx.update(replace(record, status=status.SerializeToString(), facts=facts), bump=False)
            return True

        done = await self._m.store.write(work)
        self._m.changed(self.sandbox_id)
        return done

    # --- adoption ------------------------------------------------------------------------------

    async def _adopt(self) -> None:
        record = self._record()
        if record is None:
            return
        found = await self._m.place.adopt(self.sandbox_id)
        expected = record.facts.get("instance")
        if found is not None and found.instance_id == expected and self._render(record, expected):
            self._hold(found)
            self._ready = False
            log.info("sandbox %s: adopted", self.sandbox_id)
            return
        ended = self._m.place.last_exit(self.sandbox_id)
        await self._m.place.discard(self.sandbox_id)
        was_up = pb.SandboxStatus.FromString(record.status).phase == pb.SANDBOX_PHASE_READY
        if record.facts["desired"] == RUNNING and was_up and not record.facts.get("ended"):
            await self._after(record, ended or ExitStatus(code=None))

    def _render(self, record: Record, instance: str) -> bool:
        """Recompute the launch of an adopted Sandbox, so that its egress configuration can be rebuilt."""
        try:
            self._launch = self._launch_for(record, instance, b"")
        except Refusal:
            return False
        return True

    # --- steps ---------------------------------------------------------------------------------

    async def _step(self) -> None:
        self._wake.clear()
        record = self._record()
        if record is None:
            return
        desired = record.facts["desired"]
        if desired == DELETED:
            await self._delete()
        elif desired == STOPPED:
            await self._stop(record)
        elif record.facts.get("ended"):
            await self._wait()
        elif self.running is None:
            await self._start_when_due(record)
        else:
            await self._keep(record)

    async def _wait(self, seconds: float | None = None) -> None:
        """Wait for a wake-up, for the end of the main process, or for that long."""
        waiting: set[asyncio.Future[Any]] = {asyncio.ensure_future(self._wake.wait())}
        if seconds is not None:
            waiting.add(asyncio.ensure_future(self._m.clock.sleep(seconds)))
        own = set(waiting)
        if self._exit is not None:
            waiting.add(self._exit)
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in own:
                future.cancel()

    async def _start_when_due(self, record: Record) -> None:
        due = record.facts.get("restart_at")
        if due is not None and due > self._m.clock.now():
            await self._wait(due - self._m.clock.now())
            return
        intent = record.facts["intent"]
        instance = str(uuid.uuid4())
        began = self._m.clock.now()

        def begin(status: Proto, facts: dict[str, Any]) -> None:
            facts["instance"] = instance
            facts.setdefault("provisioning_since", began)
            status.main_process_instance_id = instance
            status.ClearField("next_restart_time")

        if not await self._set(intent, begin):
            return
        try:
            await self._launch_now(record, instance)
        except ConnectionError:
            since = record.facts.get("provisioning_since", began)
            if self._m.clock.now() - since > PROVISIONING_LIMIT:
                await self._fail(
                    intent, "ProvisioningTimedOut", "the egress process is not reachable"
                )
                return
            await self._condition(intent, "DependenciesNotReady", "waiting for the egress process")
            await self._wait(RETRY)
        except SetupError as error:
            await self._fail(intent, error.reason, str(error))
        except ValueError as error:
            await self._fail(intent, "ConfigurationInvalid", str(error))
        except (EgressError, PlaceError) as error:
            if record.facts.get("streak"):
                await self._after(record, ExitStatus(code=None))
            else:
                await self._fail(intent, "DependenciesNotReady", str(error))

    async def _launch_now(self, record: Record, instance: str) -> None:
        certificate = await self._m.egress.certificate(self.sandbox_id)
        self._views_files(record)
        try:
            launch = self._launch_for(record, instance, certificate)
            provider_files = [item for view in self._views(record) for item in files(view)]
        except Refusal as error:
            raise SetupError("ConfigurationInvalid", error.message) from error
        except MissingConfigError as error:
            raise SetupError("ConfigurationInvalid", str(error)) from error
        await asyncio.to_thread(self._m.directory.make_sandbox, self.sandbox_id)
        await asyncio.to_thread(
            folders.write_files, self._m.directory.provider_files(self.sandbox_id), provider_files
        )
        self._launch = launch
        async with self._m.launches:
            self._hold(await self._m.place.start(launch))
        self._ready = False

    def _hold(self, running: RunningSandbox) -> None:
        self.running = running
        self.observed = None
        self._egress_due = True
        self._exit = asyncio.ensure_future(running.wait())
        task = asyncio.ensure_future(self._pump(running))
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    async def _pump(self, running: RunningSandbox) -> None:
        with contextlib.suppress(ConnectionError, PlaceError):
            async for stream, line in running.output():
                self._m.logs.append_output(self.sandbox_id, self._m.clock.now(), stream, line)

    async def _keep(self, record: Record) -> None:
        if self._exit is not None and self._exit.done():
            await self._collect_exit(record)
            return
        retry: float | None = None
        try:
            await self._synchronise(record)
        except (ConnectionError, NotInstalledError):
            retry = RETRY
            self._egress_due = True
        except (EgressError, SetupError, PlaceError) as error:
            log.warning("sandbox %s: configuration not in force: %s", self.sandbox_id, error)
            reason = error.reason if isinstance(error, SetupError) else "DependenciesNotReady"
            await self._condition(record.facts["intent"], reason, str(error))
            retry = None if isinstance(error, SetupError) else RETRY
        if self._exit is None or not self._exit.done():
            await self._wait(retry)

    # --- configuration -------------------------------------------------------------------------

    def _views(self, record: Record) -> Sequence[ProviderView]:
        spec = pb.Sandbox.FromString(record.payload).spec
        return views_of(self._m.store.read, record.workspace, list(spec.providers))

    def _launch_for(self, record: Record, instance: str, certificate: bytes) -> Launch:
        spec = pb.Sandbox.FromString(record.payload).spec
        return launch_of(
            sandbox_id=self.sandbox_id,
            instance_id=instance,
            spec=spec,
            policy=self._policy(record)[1],
            views=self._views(record),
            config=self._m.config,
            workspace=self._m.directory.workspace(self.sandbox_id),
            provider_files=self._m.directory.provider_files(self.sandbox_id),
            roots=host_roots(),
            ca=certificate,
        )

    def _views_files(self, record: Record) -> None:
        """Refuse a launch whose attached provider or profile vanished: it would run without what it was promised."""
        spec = pb.Sandbox.FromString(record.payload).spec
        found = {view.name for view in self._views(record)}
        for name in spec.providers:
            if name not in found:
                raise SetupError(
                    "ConfigurationInvalid", f"provider '{name}' or its profile is gone"
                )

    async def _synchronise(self, record: Record) -> None:
        """Put policy, bindings and provider files into force when they differ from what is."""
        running, launch = self.running, self._launch
        if running is None or launch is None:
            return
        revision, base = self._policy(record)
        views = self._views(record)
        effective = effective_policy(base, views)
        wanted = Observed(
            generation=0,
            policy_hash=policy_hash(effective),
            providers={view.id: (view.version, view.profile_version) for view in views},
        )
        if (
            self._egress_due
            or self.observed is None
            or replace(self.observed, generation=0) != wanted
        ):
            try:
                provider_files = [item for view in views for item in files(view)]
                policy = network_policy(effective)
            except MissingConfigError as error:
                raise SetupError("ConfigurationInvalid", str(error)) from error
            except Refusal as error:
                await self._revision(revision, error.message)
                raise SetupError("ConfigurationInvalid", error.message) from error
            generation = await self._m.store.write(lambda tx: tx.next("generation"))
            await asyncio.to_thread(
                folders.write_files,
                self._m.directory.provider_files(self.sandbox_id),
                provider_files,
            )
            message = SandboxEgress(
                sandbox_id=self.sandbox_id,
                workspace=record.workspace,
                sandbox_name=record.name,
                generation=generation,
                policy=policy,
                bindings=bindings(base, views),
                mounts=host_paths(launch, self._m.place.shown()),
            )
            if self._egress_due:
                await self._m.egress.install(message, await running.egress_descriptors())
            else:
                await self._m.egress.update(message)
            self._egress_due = False
            self.observed = replace(wanted, generation=generation)
        await self._revision(revision, "")
        if not self._ready:
            await self._become_ready(record, revision)

    def _policy(self, record: Record) -> tuple[int, Proto]:
        """Return the newest policy revision's number and content."""
        revisions = self._m.store.read.page(
            Kind.POLICY, workspace=record.workspace, parent=self.sandbox_id
        )
        newest = max(revisions, key=lambda item: int(item.name))
        return int(newest.name), policy_pb.SandboxPolicy.FromString(newest.payload)

    async def _revision(self, revision: int, error: str) -> None:
        """Record whether a policy revision is loaded; what it replaced is superseded."""
        reader = self._m.store.read
        record = self._record()
        if record is None:
            return
        wanted = "failed" if error else "loaded"
        revisions = reader.page(Kind.POLICY, workspace=record.workspace, parent=self.sandbox_id)
        if all(
            item.facts["status"] == (wanted if int(item.name) == revision else "superseded")
            for item in revisions
            if int(item.name) <= revision
        ):
            return

        def work(tx: Transaction) -> None:
            for item in tx.page(Kind.POLICY, workspace=record.workspace, parent=self.sandbox_id):
                facts = dict(item.facts)
                if int(item.name) == revision:
                    facts |= {"status": wanted, "error": error, "loaded": self._m.clock.now()}
                elif int(item.name) < revision and (not error or facts["status"] == "pending"):
                    facts["status"] = "superseded"
                tx.update(replace(item, facts=facts), bump=False)
            if error:
                return
            current = tx.by_id(Kind.SANDBOX, self.sandbox_id)
            if current is not None:
                status = pb.SandboxStatus.FromString(current.status)
                status.current_policy_version = revision
                tx.update(replace(current, status=status.SerializeToString()), bump=False)

        await self._m.store.write(work)
        self._m.changed(self.sandbox_id)

    async def _become_ready(self, record: Record, revision: int) -> None:
        now = self._m.clock.now()
        observed = self.observed

        def ready(status: Proto, facts: dict[str, Any]) -> None:
            if status.phase != pb.SANDBOX_PHASE_READY:
                facts["started"] = now
                status.main_process_started_time.CopyFrom(timestamp(now))
            facts.pop("restart_at", None)
            facts.pop("provisioning_since", None)
            status.phase = pb.SANDBOX_PHASE_READY
            status.ClearField("exit_code")
            status.ClearField("restart_count")
            status.ClearField("next_restart_time")
            status.configuration_activated = True
            admission = status.configuration_admission
            admission.instance_id = facts["instance"]
            admission.state = pb.CONFIGURATION_ADMISSION_STATE_ACCEPTED
            admission.policy_version = revision
            admission.policy_hash = observed.policy_hash if observed else ""
            set_ready(status, ready=True, reason="DependenciesReady", message="", now=now)

        self._ready = await self._set(record.facts["intent"], ready)

    # --- endings -------------------------------------------------------------------------------

    async def _collect_exit(self, record: Record) -> None:
        exit_task = self._exit
        if exit_task is None:
            return
        try:
            status = exit_task.result()
        except (PlaceError, ConnectionError):
            status = ExitStatus(code=None)
        self._release()
        await self._m.place.discard(self.sandbox_id)
        await self._after(record, status)

    async def _after(self, record: Record, ended: ExitStatus) -> None:
        """Apply the restart rule to an ended main process."""
        spec = pb.Sandbox.FromString(record.payload).spec
        now = self._m.clock.now()
        verdict = after_exit(
            policy_of(spec.restart_policy),
            code=ended.code,
            ran_for=now - record.facts.get("started", now),
            streak=record.facts.get("streak", 0),
        )

        def change(status: Proto, facts: dict[str, Any]) -> None:
            if ended.code is None:
                status.ClearField("exit_code")
            else:
                status.exit_code = ended.code
            if isinstance(verdict, Restart):
                facts["streak"] = verdict.streak
                facts["restarts"] = facts.get("restarts", 0) + 1
                facts["restart_at"] = now + verdict.delay
                status.phase = pb.SANDBOX_PHASE_STARTING
                status.restart_count = facts["restarts"]
                status.next_restart_time.CopyFrom(timestamp(facts["restart_at"]))
                reason = "MainProcessFailed" if ended.code != 0 else "MainProcessCompleted"
            else:
                facts["ended"] = True
                succeeded = verdict.succeeded
                status.phase = pb.SANDBOX_PHASE_COMPLETED if succeeded else pb.SANDBOX_PHASE_ERROR
                reason = "MainProcessCompleted" if succeeded else "MainProcessFailed"
            if ended.code is None:
                reason = "ControlSupervisorExited"
            set_ready(status, ready=False, reason=reason, message=_exit_text(ended), now=now)

        await self._set(record.facts["intent"], change)
        if not isinstance(verdict, Restart):
            with contextlib.suppress(ConnectionError, EgressError):
                await self._m.egress.remove(self.sandbox_id)

    async def _fail(self, intent: int, reason: str, message: str) -> None:
        now = self._m.clock.now()

        def change(status: Proto, facts: dict[str, Any]) -> None:
            facts["ended"] = True
            status.phase = pb.SANDBOX_PHASE_ERROR
            set_ready(status, ready=False, reason=reason, message=message, now=now)

        log.warning("sandbox %s: %s: %s", self.sandbox_id, reason, message)
        await self._set(intent, change)

    async def _condition(self, intent: int, reason: str, message: str) -> None:
        now = self._m.clock.now()
        await self._set(
            intent,
            lambda status, _facts: set_ready(
                status, ready=False, reason=reason, message=message, now=now
            ),
        )

    async def _end(self, grace: float) -> None:
        running = self.running
        if running is not None:
            with contextlib.suppress(PlaceError, ConnectionError):
                await running.stop(grace)
        self._release()
        await self._m.place.discard(self.sandbox_id)
        await self._m.egress.remove(self.sandbox_id)

    async def _stop(self, record: Record) -> None:
        status = pb.SandboxStatus.FromString(record.status)
        if status.phase != pb.SANDBOX_PHASE_STOPPED:
            await self._retrying_end(STOP_GRACE)
            now = self._m.clock.now()

            def stopped(status: Proto, facts: dict[str, Any]) -> None:
                facts.pop("restart_at", None)
                status.phase = pb.SANDBOX_PHASE_STOPPED
                status.ClearField("next_restart_time")
                set_ready(status, ready=False, reason="ContainerStopped", message="", now=now)

            await self._set(record.facts["intent"], stopped)
        await self._wait()

    async def _retrying_end(self, grace: float) -> None:
        while True:
            try:
                await self._end(grace)
            except (ConnectionError, EgressError, PlaceError) as error:
                log.warning("sandbox %s: not gone yet: %s", self.sandbox_id, error)
                await self._m.clock.sleep(RETRY)
            else:
                return

    async def _delete(self) -> None:
        await self._retrying_end(DELETE_GRACE)
        await asyncio.to_thread(folders.remove, self._m.directory.sandboxes / self.sandbox_id)

        def work(tx: Transaction) -> None:
            record = tx.by_id(Kind.SANDBOX, self.sandbox_id)
            if record is not None:
                tx.delete(record)

        await self._m.store.write(work)
        self._m.logs.forget(self.sandbox_id)
        self._m.changed(self.sandbox_id)

    def _release(self) -> None:
        self.running = None
        self.observed = None
        self._ready = False
        if self._exit is not None:
            self._exit.cancel()
            self._exit = None
        for task in self._helpers:
            task.cancel()


def _exit_text(ended: ExitStatus) -> str:
    if ended.code is None:
        return "the main process ended and nobody saw how"
    return f"the main process ended with {ended.code}"


def set_ready(status: Proto, *, ready: bool, reason: str, message: str, now: float) -> None:
    """Set the `Ready` condition; its time moves only when the answer does."""
    wanted = "True" if ready else "False"
    for condition in status.conditions:
        if condition.type == "Ready":
            break
    else:
        condition = status.conditions.add(type="Ready")
    if condition.status != wanted:
        condition.transition_time.CopyFrom(timestamp(now))
    condition.status, condition.reason, condition.message = wanted, reason, message
