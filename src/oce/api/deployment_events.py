"""A deployment as a stream of server-sent events, so that nobody has to poll.

`step` events carry the recorded steps with their sequence number as the event id (`Last-Event-ID` goes on from there), `deployment` events
the whole view whenever its status or attempt changes; the stream ends after the terminal one. Every look re-authorizes, so a revoked
key loses the stream. The database is read with a growing pause; nothing is kept between looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oce.api.errors import error_document
from oce.api.refusals import translate
from oce.api.render import (
    deployment_view,
)
from oce.core.revisions import queries
from oce.domain.clock import timestamp
from oce.domain.resources import DeploymentStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oce.core.platform import Actor, Platform
    from oce.core.revisions.queries import DeploymentStep

PAUSE_MIN: Final = 0.05
PAUSE_MAX: Final = 1.0
HEARTBEAT: Final = 10.0
_GROWTH: Final = 1.3
_TERMINAL: Final = frozenset((DeploymentStatus.SUCCEEDED, DeploymentStatus.FAILED))
_BATCH: Final = 500


def frame(name: str, data: object, identifier: int | None = None) -> bytes:
    """Return one event."""
    head = f"event: {name}\n" + ("" if identifier is None else f"id: {identifier}\n")
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


def _step(step: DeploymentStep) -> dict[str, Any]:
    shown = {
        "seq": step.seq,
        "at": timestamp(step.at),
        "step": step.step,
        "outcome": step.outcome,
        "code": step.code,
        "durationMs": step.duration_ms,
    }
    return {name: value for name, value in shown.items() if value is not None}


class Watch:
    """One follower of one deployment."""

    def __init__(
        self, platform: Platform, actor: Actor, namespace: str, agent: str, revision: str
    ) -> None:
        self._platform = platform
        self._actor = actor
        self._place = (namespace, agent, revision)

    async def begin(self) -> None:
        """Refuse before the stream starts, as an ordinary answer. Raises what the deployment's read raises."""
        await queries.deployment(self._platform, self._actor, *self._place)

    async def frames(self, after: int) -> AsyncIterator[bytes]:
        """Yield the events after that sequence number."""
        try:
            async for piece in self._follow(after):
                yield piece
        except Exception as error:  # noqa: BLE001 # the answer has begun: the refusal becomes its last event
            refusal = translate(error)
            yield frame("error", error_document(refusal, self._actor.request_id)["error"])

    async def _follow(self, after: int) -> AsyncIterator[bytes]:
        clock = self._platform.clock
        told: object = None
        pause = PAUSE_MIN
        quiet_since = clock.monotonic()
        while True:
            # The view is read first: steps recorded before a terminal state are then never missed.
            found = await queries.deployment(self._platform, self._actor, *self._place)
            pieces: list[bytes] = []
            while True:
                steps = await queries.deployment_steps(
                    self._platform, self._actor, *self._place, after=after
                )
                for step in steps:
                    after = step.seq
                    pieces.append(frame("step", _step(step), after))
                if len(steps) < _BATCH:
                    break
            view = deployment_view(found)
            if view != told:
                told = view
                pieces.append(frame("deployment", view, after))
            for piece in pieces:
                yield piece
            if found.status in _TERMINAL:
                return
            if pieces:
                pause, quiet_since = PAUSE_MIN, clock.monotonic()
            elif clock.monotonic() - quiet_since >= HEARTBEAT:
                quiet_since = clock.monotonic()
                yield b": still here\n\n"
            await clock.sleep(pause)
            pause = min(PAUSE_MAX, pause * _GROWTH)
