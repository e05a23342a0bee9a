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
from itertools import count
from typing import TYPE_CHECKING, Any

from oce.sandboxd.api.stubs import Proto, pb
from oce.sandboxd.egress.model import EgressError, NotInstalledError, SandboxEgress
from oce.sandboxd.lifecycle import folders, status
from oce.sandboxd.lifecycle.configuration import (
    SetupError,
    configuration_of,
    mark_failed,
    mark_loaded,
    needs_marking,
)
from oce.sandboxd.lifecycle.rendering import host_paths, launch_of
from oce.sandboxd.lifecycle.restarts import Ended, Restart, after_exit, policy_of
from oce.sandboxd.lifecycle.status import DELETED, STOPPED
from oce.sandboxd.lifecycle.trust import host_roots
from oce.sandboxd.place import ExitStatus, MissingRightError, PlaceError
from oce.sandboxd.state.refusals import Refusal
from oce.sandboxd.state.store import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from oce.sandboxd.config import GatewayConfig
    from oce.sandboxd.egress.model import EgressClient
    from oce.sandboxd.lifecycle.clock import Clock
    from oce.sandboxd.lifecycle.configuration import Configuration
    from oce.sandboxd.lifecycle.logs import LogBook
    from oce.sandboxd.place import Launch, Place, RunningSandbox
    from oce.sandboxd.state.directory import StateDirectory
    from oce.sandboxd.state.store import Record, Store, Transaction

log = logging.getLogger(__name__)

STOP_GRACE = 10.0
DELETE_GRACE = 3.0
RETRY = 1.0
PROVISIONING_LIMIT = 120.0
CONFINEMENT_UNAVAILABLE = "ConfinementUnavailable"
"""Reason of the Ready condition when this machine lacks a right that confinement needs; ours, control planes match it."""
_LAUNCHES = 8


@dataclass(slots=True, kw_only=True)
class Machine:
    """What every actor works with.

    `changed` is called with a Sandbox's id after each write of its record. `generations` grows also over restarts.
    """

    store: Store
    place: Place
    egress: EgressClient
    clock: Clock
    config: GatewayConfig
    directory: StateDirectory
    logs: LogBook
    changed: Callable[[str], None]
    generations: Iterator[int] = field(default_factory=lambda: count(1))
    launches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LAUNCHES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is in force for a running Sandbox, proven by the egress process's answer."""

    generation: int
    policy_hash: str
    providers: Mapping[str, tuple[int, int]]
    """Provider id to (provider version, profile version)."""
    mark: tuple[object, ...]


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

    def _note(self, level: str, message: str) -> None:
        """Tell the gateway's log and the Sandbox's own."""
        log.info("sandbox %s: %s", self.sandbox_id, message)
        self._m.logs.append(
            self.sandbox_id,
            time=self._m.clock.now(),
            level=level,
            target="lifecycle",
            message=message,
            source="gateway",
        )

    def _record(self) -> Record | None:
        return self._m.store.read.by_id(Kind.SANDBOX, self.sandbox_id)

    async def _set(
        self,
        intent: int,
        change: Callable[[Proto, dict[str, Any]], None],
        also: Callable[[Transaction], None] | None = None,
    ) -> bool:
        """Change status and facts (and `also` something) while `intent` is current; return whether it was."""

        def work(tx: Transaction) -> bool:
            record = tx.by_id(Kind.SANDBOX, self.sandbox_id)
            if record is None or record.facts["intent"] != intent:
                return False
            message = pb.SandboxStatus.FromString(record.status)
            facts = dict(record.facts)
            change(message, facts)
            tx.update(replace(record, status=message.SerializeToString(), facts=facts), bump=False)
            if also is not None:
                also(tx)
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
        instance = record.facts.get("instance")
        if found is not None and found.instance_id == instance and self._rendered(record):
            self._hold(found)
            self._note("INFO", "adopted by a restarted gateway")
            return
        exited = self._m.place.last_exit(self.sandbox_id)
        await self._m.place.discard(self.sandbox_id)
        was_up = pb.SandboxStatus.FromString(record.status).phase == pb.SANDBOX_PHASE_READY
        if record.facts["desired"] == status.RUNNING and was_up and not record.facts.get("ended"):
            await self._after(record, exited or ExitStatus(code=None))

    def _rendered(self, record: Record) -> bool:
        """Recompute an adopted Sandbox's launch, from which its egress configuration is rebuilt; False: impossible now."""
        try:
            self._launch = self._render(record, record.facts["instance"], b"")
        except (Refusal, SetupError) as error:
            # A Sandbox about to be stopped or deleted needs no egress configuration.
            log.warning("sandbox %s: not adopted: %s", self.sandbox_id, error)
            return False
        return True

    def _render(self, record: Record, instance: str, certificate: bytes) -> Launch:
        wanted = configuration_of(self._m.store.read, record)
        return launch_of(
            sandbox_id=self.sandbox_id,
            instance_id=instance,
            spec=pb.Sandbox.FromString(record.payload).spec,
            policy=wanted.policy,
            views=wanted.views,
            config=self._m.config,
            workspace=self._m.directory.workspace(self.sandbox_id),
            provider_files=self._m.directory.provider_files(self.sandbox_id),
            shown=self._m.place.shown(),
            roots=host_roots(),
            ca=certificate,
        )

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
        own: set[asyncio.Future[Any]] = {asyncio.ensure_future(self._wake.wait())}
        if seconds is not None:
            own.add(asyncio.ensure_future(self._m.clock.sleep(seconds)))
        waiting = own if self._exit is None else own | {self._exit}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in own:
                future.cancel()

    async def _start_when_due(self, record: Record) -> None:
        now = self._m.clock.now()
        due = record.facts.get("restart_at", now)
        if due > now:
            await self._wait(due - now)
            return
        intent = record.facts["intent"]
        instance = str(uuid.uuid4())
        began = await self._set(
            intent, lambda message, facts: status.begin(message, facts, instance=instance, now=now)
        )
        if not began:
            return
        try:
            await self._start(record, instance)
        except ConnectionError:
            if now - record.facts.get("provisioning_since", now) > PROVISIONING_LIMIT:
                await self._fail(intent, "ProvisioningTimedOut", "the egress process is away")
                return
            await self._condition(intent, "DependenciesNotReady", "waiting for the egress process")
            await self._wait(RETRY)
        except SetupError as error:
            await self._fail(intent, error.reason, str(error))
        except (Refusal, ValueError) as error:
            await self._fail(intent, "ConfigurationInvalid", str(error))
        except MissingRightError as error:
            await self._fail(intent, CONFINEMENT_UNAVAILABLE, str(error))
        except (EgressError, PlaceError) as error:
            if record.facts.get("streak"):
                await self._after(record, ExitStatus(code=None))
            else:
                await self._fail(intent, "DependenciesNotReady", str(error))

    async def _start(self, record: Record, instance: str) -> None:
        certificate = await self._m.egress.certificate(self.sandbox_id)
        launch = self._render(record, instance, certificate)
        await asyncio.to_thread(self._m.directory.make_sandbox, self.sandbox_id)
        await self._write_files(configuration_of(self._m.store.read, record))
        async with self._m.launches:
            running = await self._m.place.start(launch)
        self._launch = launch
        self._hold(running)
        self._note("INFO", "main process started")

    async def _write_files(self, wanted: Configuration) -> None:
        folder = self._m.directory.provider_files(self.sandbox_id)
        await asyncio.to_thread(folders.write_files, folder, wanted.files)

    def _hold(self, running: RunningSandbox) -> None:
        self.running = running
        self.observed = None
        self._egress_due = True
        self._ready = False
        self._exit = asyncio.ensure_future(running.wait())
        task = asyncio.ensure_future(self._pump(running))
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    async def _pump(self, running: RunningSandbox) -> None:
        with contextlib.suppress(ConnectionError, PlaceError):
            async for stream, line in running.output():
                self._m.logs.append_output(self.sandbox_id, self._m.clock.now(), stream, line)

    async def _keep(self, record: Record) -> None:
        """Keep a running Sandbox's configuration in force, until something happens."""
        if self._exit is not None and self._exit.done():
            await self._collect_exit(record, self._exit)
            return
        retry: float | None = None
        try:
            await self._synchronise(record)
        except (ConnectionError, NotInstalledError):
            self._egress_due = True
            retry = RETRY
        except SetupError as error:
            await self._refused(record, error)
        except (EgressError, PlaceError) as error:
            await self._condition(record.facts["intent"], "DependenciesNotReady", str(error))
            retry = RETRY
        if self._exit is None or not self._exit.done():
            await self._wait(retry)

    async def _refused(self, record: Record, error: SetupError) -> None:
        text = str(error)
        self._note("ERROR", f"configuration not in force: {text}")
        await self._m.store.write(lambda tx: mark_failed(tx, record, text))
        if not self._ready:
            await self._condition(record.facts["intent"], error.reason, text)

    async def _synchronise(self, record: Record) -> None:
        """Put policy, bindings and provider files into force when they differ from what is."""
        running, launch = self.running, self._launch
        if running is None or launch is None:
            return
        wanted = configuration_of(self._m.store.read, record)
        if self._egress_due or self.observed is None or self.observed.mark != wanted.mark:
            await self._write_files(wanted)
            message = SandboxEgress(
                sandbox_id=self.sandbox_id,
                workspace=record.workspace,
                sandbox_name=record.name,
                generation=next(self._m.generations),
                policy=wanted.network,
                bindings=wanted.bindings,
                mounts=host_paths(launch, self._m.place.shown()),
            )
            if self._egress_due:
                await self._m.egress.install(message, await running.egress_descriptors())
            else:
                await self._m.egress.update(message)
            self._egress_due = False
            self.observed = Observed(
                generation=message.generation,
                policy_hash=wanted.policy_hash,
                providers=wanted.providers,
                mark=wanted.mark,
            )
        if not self._ready or needs_marking(self._m.store.read, record, wanted.revision):
            await self._in_force(record, wanted)

    async def _in_force(self, record: Record, wanted: Configuration) -> None:
        now = self._m.clock.now()
        self._ready = await self._set(
            record.facts["intent"],
            lambda message, facts: status.become_ready(
                message, facts, revision=wanted.revision, policy_hash=wanted.policy_hash, now=now
            ),
            lambda tx: mark_loaded(tx, record, wanted.revision, now),
        )

    # --- endings -------------------------------------------------------------------------------

    async def _collect_exit(self, record: Record, ended: asyncio.Task[ExitStatus]) -> None:
        try:
            exited = ended.result()
        except (PlaceError, ConnectionError):
            exited = ExitStatus(code=None)
        self._release()
        await self._m.place.discard(self.sandbox_id)
        await self._after(record, exited)

    async def _after(self, record: Record, exited: ExitStatus) -> None:
        """Apply the restart rule to an ended main process."""
        now = self._m.clock.now()
        spec = pb.Sandbox.FromString(record.payload).spec
        verdict = after_exit(
            policy_of(spec.restart_policy),
            code=exited.code,
            ran_for=now - record.facts.get("started", now),
            streak=record.facts.get("streak", 0),
        )
        self._note("INFO", _ending_text(exited, verdict))
        await self._set(
            record.facts["intent"],
            lambda message, facts: status.end(
                message, facts, verdict=verdict, exited=exited, now=now
            ),
        )
        if not isinstance(verdict, Restart):
            with contextlib.suppress(ConnectionError, EgressError):
                await self._m.egress.remove(self.sandbox_id)

    async def _fail(self, intent: int, reason: str, message: str) -> None:
        self._note("ERROR", f"{reason}: {message}")
        now = self._m.clock.now()
        await self._set(
            intent,
            lambda found, facts: status.fail(found, facts, reason=reason, message=message, now=now),
        )

    async def _condition(self, intent: int, reason: str, message: str) -> None:
        now = self._m.clock.now()
        await self._set(
            intent,
            lambda found, _facts: status.set_ready(
                found, ready=False, reason=reason, message=message, now=now
            ),
        )

    async def _end(self, grace: float) -> None:
        """End everything of it; returns when nothing is left, however often that must be tried."""
        while True:
            try:
                if self.running is not None:
                    with contextlib.suppress(PlaceError, ConnectionError):
                        await self.running.stop(grace)
                self._release()
                await self._m.place.discard(self.sandbox_id)
                await self._m.egress.remove(self.sandbox_id)
            except (ConnectionError, EgressError, PlaceError) as error:
                log.warning("sandbox %s: not gone yet: %s", self.sandbox_id, error)
                await self._m.clock.sleep(RETRY)
            else:
                return

    async def _stop(self, record: Record) -> None:
        if pb.SandboxStatus.FromString(record.status).phase != pb.SANDBOX_PHASE_STOPPED:
            await self._end(STOP_GRACE)
            now = self._m.clock.now()
            await self._set(
                record.facts["intent"],
                lambda message, facts: status.stopped(message, facts, now=now),
            )
        await self._wait()

    async def _delete(self) -> None:
        await self._end(DELETE_GRACE)
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


def _ending_text(exited: ExitStatus, verdict: Restart | Ended) -> str:
    how = "nobody saw how" if exited.code is None else f"with {exited.code}"
    then = f"restarts in {verdict.delay:g} s" if isinstance(verdict, Restart) else "stays down"
    return f"main process ended, {how}; {then}"
