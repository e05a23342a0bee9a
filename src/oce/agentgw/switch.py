"""One revision at a time: who may use a route now, and when the next one begins.

A connection holds a *lease* on the route it was given. When Compute writes another route, new callers wait, leases of the predecessor
end as soon as no turn runs on them (or the drain time is over), and only when the last one ended does the successor's first caller go
through. So two revisions never serve one Agent at the same time (design §9, invariant 1).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from oce.agentgw import errors, log
from oce.agentgw.routes import Route, RouteError

if TYPE_CHECKING:
    from oce.agentgw.routes import RouteReader, Target

POLL_SECONDS = 0.5
INTERRUPT_SECONDS = 5.0
CLOSE_SECONDS = 2.0
WAIT_BEYOND_DRAIN_SECONDS = 10.0


class Occupant(Protocol):
    """What uses a lease: a relayed connection, or a turn asked for over HTTP."""

    @property
    def turns(self) -> int:
        """How many turns are not finished."""

    def drain(self) -> None:
        """End as soon as no turn runs."""

    def interrupt(self) -> None:
        """Ask the Harness to stop the running turns."""

    def close(self) -> None:
        """End now."""


class Lease:
    """The right to use one route. End it exactly once with :meth:`release`."""

    def __init__(self, agent: AgentSwitch, target: Target, revision_id: str) -> None:
        self._agent = agent
        self.target = target
        self.revision_id = revision_id
        self.revoked = False
        self.occupant: Occupant | None = None

    def occupy(self, occupant: Occupant) -> bool:
        """Attach what uses the lease; False when it was revoked meanwhile and a new one must be asked for."""
        if self.revoked:
            return False
        self.occupant = occupant
        return True

    def revoke(self) -> None:
        """Take the route back because its revision is being replaced."""
        self.revoked = True
        if self.occupant is None:
            # Still dialling: its user finds the lease revoked and starts over.
            self.release()
        else:
            self.occupant.drain()

    def release(self) -> None:
        """Give the route back; harmless when repeated."""
        self._agent.forget(self)


class AgentSwitch:
    """The routing state of one Agent."""

    def __init__(self, agent_id: str, reader: RouteReader, *, drain_limit: float) -> None:
        self._agent_id = agent_id
        self._reader = reader
        self._drain_limit = drain_limit
        self._serving: Route | None = None
        self._leases: set[Lease] = set()
        self._switching: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._waiting = 0
        self.threads: set[str] = set()

    @property
    def idle(self) -> bool:
        """Whether nothing of this Agent is in flight."""
        return not (self._leases or self._switching or self._waiting or self.threads)

    @property
    def draining(self) -> bool:
        """Whether a predecessor is still being drained."""
        return self._switching is not None

    @property
    def serving(self) -> Route | None:
        """The route in force."""
        return self._serving

    @property
    def connections(self) -> int:
        """How many leases exist."""
        return len(self._leases)

    @property
    def turns(self) -> int:
        """How many turns are not finished."""
        return sum(occupant.turns for occupant in self._occupants())

    def refresh(self) -> None:
        """Read the document again and begin a switch when it leads elsewhere."""
        if self._switching is None:
            wanted = self._read()
            if self._needs_drain(wanted):
                self._switching = asyncio.create_task(self._switch())
                self._switching.add_done_callback(self._switched)
            else:
                self._serving = wanted

    def _needs_drain(self, wanted: Route | None) -> bool:
        serving = self._serving
        if serving is None or not self._leases:
            return False
        return wanted is None or not wanted.same_place(serving)

    def _read(self) -> Route | None:
        """Read the document; one that cannot be read routes nowhere."""
        try:
            return self._reader.read(self._agent_id)
        except (RouteError, OSError) as error:
            log.event("gateway.route_unusable", agent_id=self._agent_id, detail=str(error))
            return Route(
                namespace_id="",
                agent_id=self._agent_id,
                generation=0,
                revision_id=None,
                target=None,
                drain_seconds=self._drain_limit,
            )

    async def acquire(self, namespace_id: str) -> Lease:
        """Return a lease on the active revision, after a running switch. Raises Refusal 404, 503."""
        self.refresh()
        self._waiting += 1
        try:
            await self._settle()
        finally:
            self._waiting -= 1
        route = self._read() if self._switching is not None else self._serving
        if route is None:
            raise errors.not_found()
        if route.target is None or route.revision_id is None or self._switching is not None:
            raise errors.not_serving()
        if route.namespace_id != namespace_id:
            raise errors.not_found()
        lease = Lease(self, route.target, route.revision_id)
        self._leases.add(lease)
        self._empty.clear()
        return lease

    async def _settle(self) -> None:
        """Wait while a predecessor is drained, unless its successor serves nothing. Raises Refusal 503."""
        give_up = time.monotonic() + self._drain_limit + WAIT_BEYOND_DRAIN_SECONDS
        while self._switching is not None:
            wanted = self._read()
            if wanted is None or wanted.target is None:
                return
            remaining = max(give_up - time.monotonic(), 0)
            done, _ = await asyncio.wait({self._switching}, timeout=remaining)
            if not done:
                raise errors.unavailable("The previous revision is still finishing its turns.")

    def forget(self, lease: Lease) -> None:
        """Drop a released lease."""
        self._leases.discard(lease)
        if not self._leases:
            self._empty.set()

    async def _switch(self) -> None:
        """Drain the predecessor: politely, then by interrupting its turns, then by closing."""
        serving = self._serving
        limit = self._drain_limit if serving is None else serving.drain_seconds
        began, count = time.monotonic(), len(self._leases)
        for lease in list(self._leases):
            lease.revoke()
        forced = not await self._emptied(min(limit, self._drain_limit))
        if forced:
            for occupant in self._occupants():
                occupant.interrupt()
            if not await self._emptied(INTERRUPT_SECONDS):
                await self._close_all()
        for lease in list(self._leases):
            self.forget(lease)
        log.event(
            "gateway.switched",
            agent_id=self._agent_id,
            predecessor=None if serving is None else serving.revision_id,
            connections=count,
            forced=forced,
            duration_ms=round((time.monotonic() - began) * 1000, 1),
        )

    def _occupants(self) -> list[Occupant]:
        return [lease.occupant for lease in self._leases if lease.occupant is not None]

    async def _close_all(self) -> None:
        for occupant in self._occupants():
            occupant.close()
        await self._emptied(CLOSE_SECONDS)

    async def _emptied(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _switched(self, task: asyncio.Task[None]) -> None:
        self._switching = None
        self._serving = None
        if not task.cancelled():
            self.refresh()

    async def close(self, seconds: float) -> None:
        """Drain everything for the end of the process."""
        for lease in list(self._leases):
            lease.revoke()
        if not await self._emptied(seconds):
            await self._close_all()


class Switchboard:
    """Every Agent's switch. Idle ones are forgotten; the documents hold the truth."""

    def __init__(self, reader: RouteReader, *, drain_limit: float) -> None:
        self._reader = reader
        self._drain_limit = drain_limit
        self._agents: dict[str, AgentSwitch] = {}

    def agent(self, agent_id: str) -> AgentSwitch:
        """Return an Agent's switch, its document read anew."""
        switch = self._agents.get(agent_id)
        if switch is None:
            switch = AgentSwitch(agent_id, self._reader, drain_limit=self._drain_limit)
            self._agents[agent_id] = switch
        switch.refresh()
        return switch

    @property
    def connections(self) -> int:
        """How many leases exist over all Agents."""
        return sum(each.connections for each in self._agents.values())

    async def watch(self) -> None:
        """Notice changed documents of Agents in use, for ever; nobody has to connect for a drain to begin."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for agent_id, switch in list(self._agents.items()):
                if switch.idle:
                    del self._agents[agent_id]
                else:
                    switch.refresh()

    async def close(self, seconds: float) -> None:
        """Drain every Agent for the end of the process."""
        await asyncio.gather(*(each.close(seconds) for each in self._agents.values()))
