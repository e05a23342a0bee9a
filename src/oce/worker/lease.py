"""Keeping a claim while effects run, and knowing when it is not ours any more.

Renewed before every external effect and every third of the lease. The last *confirmed* lease counts from when its renewal was sent, on
our monotonic clock: a renewal that nobody answers can never let an effect run past the moment another worker could take over
(reference/worker-console.md §3.5, failure case BR-14).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from oce.store.errors import StoreError
from oce.store.queue import ClaimLost, Step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from oce.store.queue import Claim

    Beat = Callable[[Sequence[Step]], Awaitable[None]]

FRESH_SHARE: Final = 0.1
"""A lease confirmed within this share of itself needs no renewal: short effects in a row cannot outlive it."""
_PAUSE: Final = 0.05


class LeaseKeeper:
    """The lease of one claim. `beat` renews it in the database and raises ClaimLost or StoreError."""

    def __init__(self, beat: Beat, *, lease: float, sent: float) -> None:
        self._beat = beat
        self._lease = lease
        self._sent = sent
        self._abandoned: set[asyncio.Future[None]] = set()
        self._publishing = False

    def left(self) -> float:
        """Return how many seconds the last confirmed lease still runs."""
        return self._sent + self._lease - time.monotonic()

    async def renew(self, steps: Sequence[Step] = ()) -> None:
        """Confirm the lease before an effect. Raises ClaimLost; the effect must then not be started."""
        if not steps and self.left() > self._lease * (1 - FRESH_SHARE):
            return
        while True:
            sent = time.monotonic()
            if await self._answered(steps):
                self._sent = max(self._sent, sent)
                return
            await asyncio.sleep(min(_PAUSE, max(0.0, self.left())))

    async def keep(self) -> None:
        """Renew until cancelled; raise ClaimLost when the claim is not ours any more."""
        while not self._publishing:
            await asyncio.sleep(max(0.0, min(self._lease / 3 - self._age(), self.left())))
            if self._age() < self._lease / 3:
                continue
            try:
                await self.renew()
            except ClaimLost:
                if not self._publishing:
                    raise
        await asyncio.sleep(max(0.0, self.left()))
        raise ClaimLost

    def publish(self) -> None:
        """Stop renewing: the transition that follows ends the claim, and only the lapse of the lease may interrupt it."""
        self._publishing = True

    def _age(self) -> float:
        return time.monotonic() - self._sent

    async def _answered(self, steps: Sequence[Step]) -> bool:
        """Send one renewal; False when the database did not take it and there is time to try again."""
        left = self.left()
        if left <= 0:
            raise ClaimLost
        task = asyncio.ensure_future(self._beat(steps))
        try:
            await asyncio.wait({task}, timeout=left)
        finally:
            if not task.done():
                # Not awaited: on a silent connection even the cancellation may take long.
                task.cancel()
                self._abandoned.add(task)
                task.add_done_callback(self._forget)
        if not task.done() or task.cancelled():
            raise ClaimLost
        error = task.exception()
        if error is None:
            return True
        if isinstance(error, StoreError):
            return False
        raise error

    def _forget(self, task: asyncio.Future[None]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()


class StepRecorder:
    """The `step` that a pass hands to Compute: records progress and confirms the lease in one statement.

    What an earlier pass recorded is not written again, so that a wait of minutes does not fill the stream. The first record of a
    deployment is committed before its first effect: it is how a later pass knows that something may exist.
    """

    def __init__(self, claim: Claim, keeper: LeaseKeeper) -> None:
        self._keeper = keeper
        self._known = dict(claim.steps)
        self._records = claim.revision_id is not None
        self._current: str | None = None
        self._since = time.monotonic()
        self._blamed: list[Step] = []

    async def __call__(self, step: str) -> None:
        """Enter a step. Raises ClaimLost."""
        if step == self._current or not self._records:
            await self._keeper.renew()
            return
        steps = [*self._blamed, *self._leave("succeeded", None)]
        self._blamed = []
        self._current, self._since = step, time.monotonic()
        if step not in self._known:
            self._known[step] = "started"
            steps.append(Step(step=step, outcome="started"))
        await self._keeper.renew(steps)

    @property
    def started(self) -> bool:
        """Whether this deployment ever entered a step, in this pass or an earlier one."""
        return bool(self._known)

    def blame(self, code: str) -> None:
        """Say that the refusal came from the present step, so that the clean-up that follows does not look like its cause."""
        self._blamed = self._leave("failed", code)
        self._current = None

    def end(self, outcome: str, code: str | None) -> list[Step]:
        """Return the last records, for the transition that ends the pass."""
        if self._blamed or self._failed:
            return [*self._blamed, *self._leave("succeeded", None)]
        return self._leave(outcome, code)

    @property
    def _failed(self) -> bool:
        return any(mark.startswith("failed") for mark in self._known.values())

    def _leave(self, outcome: str, code: str | None) -> list[Step]:
        step = self._current
        mark = outcome if code is None else f"{outcome} {code}"
        if step is None or self._known.get(step) == mark:
            return []
        self._known[step] = mark
        spent = round((time.monotonic() - self._since) * 1000)
        return [Step(step=step, outcome=outcome, code=code, duration_ms=spent)]
