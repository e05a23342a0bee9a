"""The engine: N lanes in one process, one claim each; wake-up, sweeping, lease, publication, shutdown.

One idle lane watches (a notification or the poll floor wakes it) and wakes the next as soon as it found something, so that an idle
worker costs one query per poll and a burst uses every lane. The database keeps lanes of one Agent apart; the engine does not know
Agents. A pass is a task of its own: when the lease runs out it is cancelled and nothing of it is published.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import structlog

from oce.store.errors import StoreError, StoreUnavailable
from oce.store.queue import ClaimLost, WorkKind, WorkQueue
from oce.store.work import WORK_CHANNEL
from oce.worker.classify import bounded, classify, own_words, readiness_delay, unknown_fault
from oce.worker.health import Health
from oce.worker.lease import LeaseKeeper, StepRecorder
from oce.worker.outcomes import Instead, Pending, Permanent, Retry, Success

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from oce.observability.metrics import WorkerMetrics
    from oce.store.database import Database
    from oce.store.queue import Claim, Step
    from oce.worker.outcomes import Outcome
    from oce.worker.settings import WorkerSettings

_LOG = structlog.get_logger()
_T = TypeVar("_T")
_RECONNECT_FIRST: Final = 0.05
_RECONNECT_MAX: Final = 5.0
_DOUBTFUL: Final = 0.25
"""Pause between two looks at a database that did not answer."""
_ABANDON_AFTER: Final = 0.5
"""How long a cancelled pass may take to end before its lane goes on without it."""
OPERATIONS: Final = {
    WorkKind.NAMESPACE_ENSURE: "namespace.ensure",
    WorkKind.NAMESPACE_DELETE: "namespace.delete",
    WorkKind.AGENT_REVISION: "agent_revision.reconcile",
    WorkKind.AGENT_STOP: "agent.stop",
    WorkKind.AGENT_DELETE: "agent.delete",
    WorkKind.UNSUPPORTED: "work.reconcile",
}
_LABELS: Final = {Success: "success", Pending: "pending", Retry: "retry", Permanent: "permanent"}
_STEP_OUTCOMES: Final = {
    Success: "succeeded",
    Pending: "pending",
    Retry: "retry",
    Permanent: "failed",
}
_TIMED: Final = {
    "REVISION_ACTIVATED": "deploy",
    "REVISION_ALREADY_ACTIVE": "deploy",  # finished by another pass than selected it
    "AGENT_STOPPED": "stop",
}


class Pass(Protocol):
    """One kind of work."""

    async def run(self, claim: Claim, step: StepRecorder) -> Outcome:
        """Do one bounded pass; call `step` before every external effect."""

    async def refused(self, claim: Claim, step: StepRecorder, outcome: Permanent) -> Outcome:
        """Clean up before a permanent failure is published; return what to publish."""


class Chore(Protocol):
    """Something a worker does all the time beside its passes, without a claim; every worker may repeat it."""

    async def run(self) -> None:
        """Go on until cancelled."""


class Engine:
    """Runs passes until told to stop; `passes` is set once before, because passes publish through this engine's queue."""

    def __init__(
        self,
        db: Database,
        settings: WorkerSettings,
        *,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._db = db
        self.passes: Mapping[WorkKind, Pass] = {}
        self.chores: Sequence[Chore] = ()
        self._settings = settings
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._doubt = asyncio.Event()
        self._watch = asyncio.Lock()
        self._abandoned: set[asyncio.Task[None]] = set()
        self.queue = WorkQueue(db, lease_seconds=settings.lease, max_attempts=settings.max_attempts)
        self.health = Health(
            readiness=settings.readiness_path,
            liveness=settings.liveness_path,
            throttle=settings.health,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; then cancel passes, hand their claims back and return."""
        self._wake.set()
        tasks = [
            asyncio.create_task(self._listen(), name="worker-listen"),
            asyncio.create_task(self._sweep(), name="worker-sweep"),
            asyncio.create_task(self._report(), name="worker-health"),
            *(asyncio.create_task(one.run(), name=type(one).__name__) for one in self.chores),
            *(
                asyncio.create_task(self._lane(), name=f"worker-lane-{number}")
                for number in range(self._settings.lanes)
            ),
        ]
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.health.withdraw()
            for task in (stopped, *tasks):
                task.cancel()
            await asyncio.gather(stopped, *tasks, return_exceptions=True)
        for task in done - {stopped}:
            task.result()
            raise RuntimeError(f"{task.get_name()} ended by itself")

    async def process(self, claim: Claim) -> str:
        """Run one claimed pass to its publication and return the outcome's label. Cancelling it hands the claim back."""
        begun = time.monotonic()
        keeper = LeaseKeeper(
            lambda steps: self.queue.heartbeat(claim, steps),
            lease=self._settings.lease,
            sent=claim.sent,
        )
        label = "error"
        outcome: list[Outcome] = []
        work = asyncio.create_task(self._pass(claim, keeper, begun, outcome))
        keep = asyncio.create_task(keeper.keep())
        try:
            await asyncio.wait({work, keep}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                label = _LABELS[type(outcome[0])]
            else:
                await self._abandon(work)
                label = self._lost(claim)
        except ClaimLost:
            label = self._lost(claim)
        except Exception as error:  # noqa: BLE001 - a lane outlives every pass; the lease hands the work on
            _LOG.error(
                "worker.error", code="WORKER_UNAVAILABLE", **_identity(claim), exc_info=error
            )
        except asyncio.CancelledError:
            await self._hand_back(claim, work)
            raise
        finally:
            keep.cancel()
            await asyncio.wait({keep})
            if not keep.cancelled():
                keep.exception()
            self._record(claim, label, begun, outcome)
        return label

    async def _pass(
        self, claim: Claim, keeper: LeaseKeeper, begun: float, published: list[Outcome]
    ) -> None:
        step = StepRecorder(claim, keeper)
        outcome = await self._guarded(claim, step)
        outcome = bounded(
            outcome,
            age=claim.age + time.monotonic() - begun,
            convergence_timeout=self._settings.convergence_timeout,
            attempt=claim.attempt,
            max_attempts=self._settings.max_attempts,
        )
        if isinstance(outcome, Permanent):
            step.blame(outcome.code)
            async with asyncio.timeout(self._settings.pass_limit):
                outcome = await self.passes[claim.kind].refused(claim, step, outcome)
        keeper.publish()
        try:
            await self._publish_while(keeper, claim, step, outcome)
        except Instead as other:
            outcome = other.outcome
            await self._publish_while(keeper, claim, step, outcome)
        published.append(outcome)

    async def _publish_while(
        self, keeper: LeaseKeeper, claim: Claim, step: StepRecorder, outcome: Outcome
    ) -> None:
        """Publish; when the database was away and wrote nothing, try again as long as the lease lasts."""
        steps = step.end(
            _STEP_OUTCOMES[type(outcome)], None if isinstance(outcome, Success) else outcome.code
        )
        while True:
            try:
                await self._publish(claim, steps, outcome)
            except StoreUnavailable:
                if keeper.left() <= _RECONNECT_FIRST:
                    raise
                await asyncio.sleep(_RECONNECT_FIRST)
            else:
                return

    async def _guarded(self, claim: Claim, step: StepRecorder) -> Outcome:
        try:
            async with asyncio.timeout(self._settings.pass_limit):
                return await self.passes[claim.kind].run(claim, step)
        except ClaimLost:
            raise
        except Exception as error:  # noqa: BLE001 - the classifier has an answer for everything a pass can raise
            if unknown_fault(error):
                _LOG.warning("worker.pass-fault", **_identity(claim), exc_info=error)
            elif reason := own_words(error):
                _LOG.warning("worker.pass-refused", **_identity(claim), **reason)
            return classify(error)

    async def _publish(self, claim: Claim, steps: Sequence[Step], outcome: Outcome) -> None:
        """Write the outcome under the live claim; one transaction with everything that must come true with it."""
        queue = self.queue
        match outcome:
            case Success():
                if outcome.apply is None:
                    await queue.complete(claim, outcome.reason, data=outcome.data, steps=steps)
                    return
                async with self._db.transact() as tx:
                    await outcome.apply(tx)
                    await queue.complete(
                        claim, outcome.reason, data=outcome.data, steps=steps, tx=tx
                    )
            case Pending():
                delay = readiness_delay(claim.age) if outcome.delay is None else outcome.delay
                await queue.defer(
                    claim,
                    outcome.code,
                    delay=delay,
                    refusal=outcome.refusal,
                    refusal_data=outcome.refusal_data,
                    repeat_evidence=outcome.refusal is not None,
                    steps=steps,
                )
            case Retry():
                await queue.retry(claim, outcome.code, steps=steps)
            case Permanent():
                await queue.fail(claim, outcome.code, data=outcome.data, steps=steps)

    async def _lane(self) -> None:
        while True:
            async with self._watch:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.poll):
                        await self._wake.wait()
                self._wake.clear()
                self.health.progress()
            try:
                claim = await self._claimed()
            except StoreError as error:
                self._unavailable(error)
                await asyncio.sleep(self._settings.poll)
                continue
            if claim is None:
                continue
            self._wake.set()
            await self.process(claim)
            self.health.progress()
            self._wake.set()

    async def _listen(self) -> None:
        """Hear about new work; reconnect for ever. A replaced line wakes a lane, because it may have missed something."""
        pause = _RECONNECT_FIRST
        while True:
            try:
                async with self._db.listen(WORK_CHANNEL) as listener:
                    self._line(up=True)
                    pause = _RECONNECT_FIRST
                    while await listener.wait(self._settings.listen_idle):
                        self._wake.set()
            except (StoreError, OSError) as error:
                _LOG.error("worker.error", code="WORKER_UNAVAILABLE", exc_info=error)
                self._line(up=False)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _RECONNECT_MAX)

    def _line(self, *, up: bool) -> None:
        self.health.listening = up
        self.health.report()
        self._wake.set()

    async def _sweep(self) -> None:
        while True:
            try:
                found = await self._answered(self.queue.recover_stale())
                if found.requeued or found.failed:
                    _LOG.warning("worker.recovered", count=found.requeued + found.failed)
                    self._wake.set()
            except StoreError as error:
                self._unavailable(error)
            await asyncio.sleep(self._settings.sweep)

    async def _report(self) -> None:
        while True:
            try:
                pending = await self._answered(self.queue.pending())
                self.health.reading = True
                _LOG.debug("worker.health", pending=pending)
            except StoreError as error:
                if self.health.reading:
                    _LOG.error("worker.error", code="HEALTH_UNAVAILABLE", exc_info=error)
                self.health.reading = False
            self.health.report()
            self._doubt.clear()
            if not self.health.reading:
                await asyncio.sleep(_DOUBTFUL)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.health):
                    await self._doubt.wait()

    async def _answered(self, call: Awaitable[_T]) -> _T:
        """Bound a query by our own clock: a silent connection is given up, and discarded by the cancellation."""
        try:
            async with asyncio.timeout(self._settings.database_timeout):
                return await call
        except TimeoutError as error:
            raise StoreUnavailable("no answer in time") from error

    def _unavailable(self, error: Exception) -> None:
        """Note an outage; one line for it, however many lanes notice."""
        if self.health.reading:
            _LOG.error("worker.error", code="WORKER_UNAVAILABLE", exc_info=error)
        self.health.reading = False
        self.health.report()
        self._doubt.set()

    def _lost(self, claim: Claim) -> str:
        _LOG.error("worker.error", code="CLAIM_LOST", **_identity(claim))
        return "claim_lost"

    async def _hand_back(self, claim: Claim, work: asyncio.Task[None]) -> None:
        """Shut down in order: the effect ends first, then the claim goes back; if it does not end, the lease decides."""
        await self._abandon(work, self._settings.shutdown_grace)
        if work.done():
            await self._release(claim)

    async def _release(self, claim: Claim) -> None:
        with suppress(ClaimLost, StoreError, TimeoutError):
            async with asyncio.timeout(self._settings.shutdown_grace):
                await self.queue.release(claim)

    async def _claimed(self) -> Claim | None:
        """Ask for work; a shutdown in the middle waits for the answer and hands back what it brings, or nobody would have it."""
        asking = asyncio.create_task(self._answered(self.queue.claim()))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await asyncio.wait({asking}, timeout=self._settings.shutdown_grace)
            if not asking.done():
                asking.cancel()
                asking.add_done_callback(lambda task: task.cancelled() or task.exception())
            elif asking.exception() is None and (claim := asking.result()) is not None:
                await self._release(claim)
            raise

    async def _abandon(self, work: asyncio.Task[None], grace: float = _ABANDON_AFTER) -> None:
        work.cancel()
        await asyncio.wait({work}, timeout=grace)
        if not work.done():
            self._abandoned.add(work)
        work.add_done_callback(self._forget)

    def _forget(self, work: asyncio.Task[None]) -> None:
        self._abandoned.discard(work)
        if not work.cancelled():
            work.exception()

    def _record(self, claim: Claim, label: str, begun: float, outcome: list[Outcome]) -> None:
        seconds = time.monotonic() - begun
        fields: dict[str, object] = {
            **_identity(claim),
            "operation": OPERATIONS[claim.kind],
            "outcome": label,
            "duration_ms": seconds * 1000,
            "elapsed_ms": (claim.age + seconds) * 1000,
        }
        if outcome:
            found = outcome[0]
            fields["code"] = found.reason if isinstance(found, Success) else found.code
            if isinstance(found, Permanent) and found.hint_code is not None:
                fields["hint_code"] = found.hint_code
        _LOG.info("worker.completed", **fields)
        if self._metrics is None:
            return
        self._metrics.attempt(work_kind=claim.kind, outcome=label, seconds=seconds)
        if outcome and isinstance(outcome[0], Success) and outcome[0].reason in _TIMED:
            self._metrics.operation(
                operation=_TIMED[outcome[0].reason], seconds=claim.age + seconds
            )


def _identity(claim: Claim) -> dict[str, object]:
    named = {
        "work_id": claim.key,
        "attempt": claim.attempt,
        "namespace_id": claim.namespace_id,
        "agent_id": claim.agent_id,
        "revision_id": claim.revision_id,
    }
    return {name: value for name, value in named.items() if value is not None}
