"""Decisions leave the process as they are made, to whoever listens; a slow listener loses the oldest, never delays traffic."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oce.sandboxd.egress.model import Decision

BACKLOG = 4096


class Subscription:
    """One listener's bounded queue."""

    def __init__(self) -> None:
        self._queue: deque[Decision] = deque(maxlen=BACKLOG)
        self._arrived = asyncio.Event()

    def push(self, decision: Decision) -> None:
        """Add a decision; the oldest goes when full."""
        self._queue.append(decision)
        self._arrived.set()

    async def next(self) -> list[Decision]:
        """Return everything that has arrived, at least one."""
        await self._arrived.wait()
        self._arrived.clear()
        batch = list(self._queue)
        self._queue.clear()
        return batch


class DecisionHub:
    """Hands decisions to all listeners."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def publish(self, decision: Decision) -> None:
        """Hand out one decision."""
        for subscription in self._subscriptions:
            subscription.push(decision)

    def subscribe(self) -> Subscription:
        """Start listening."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop listening."""
        self._subscriptions.discard(subscription)
