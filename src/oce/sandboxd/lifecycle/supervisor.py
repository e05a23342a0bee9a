"""All Sandboxes of this gateway: an actor for each, the hold on the egress process, and who is told about changes.

A start of the gateway re-adopts what still runs and ends what no record knows; an end of the gateway leaves Sandboxes running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from oce.sandboxd.egress.model import EgressError
from oce.sandboxd.lifecycle.actor import Actor, Machine
from oce.sandboxd.lifecycle.providers import provider_message, vault_id
from oce.sandboxd.state.store import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oce.sandboxd.lifecycle.actor import Observed
    from oce.sandboxd.place import RunningSandbox

log = logging.getLogger(__name__)

_PAUSE = 0.2
_SPARED = 300.0
_FIRST_EGRESS = 20.0


class Supervisor:
    """Actors by Sandbox id."""

    def __init__(self, machine: Machine, revive_egress: Callable[[], Awaitable[None]]) -> None:
        """`revive_egress` returns when the egress process lives and can be reached, starting it when needed."""
        self._m = machine
        self._revive_egress = revive_egress
        self._actors: dict[str, tuple[Actor, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._egress_lives = asyncio.Event()
        self._written: dict[str, float] = {}
        self.lost_credentials: frozenset[str] = frozenset()
        """Providers whose record names a value that the vault does not have (its folder was removed)."""
        machine.changed = self.announce

    async def start(self) -> None:
        """Bring every known Sandbox under control and end the unknown ones."""
        known = [record.id for record in self._m.store.read.page(Kind.SANDBOX)]
        task = asyncio.create_task(self._watch_egress(), name="egress")
        self._tasks.add(task)
        for sandbox_id in await self._m.place.adoptable():
            if sandbox_id not in known:
                log.warning("sandbox %s runs here and is not known: ended", sandbox_id)
                await self._m.place.discard(sandbox_id)
        for sandbox_id in known:
            self.wake(sandbox_id)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._egress_lives.wait(), _FIRST_EGRESS)

    def wake(self, sandbox_id: str) -> None:
        """Let a Sandbox's actor look again, making the actor on first use."""
        held = self._actors.get(sandbox_id)
        if held is None:
            actor = Actor(self._m, sandbox_id)
            task = asyncio.create_task(actor.run(), name=f"sandbox-{sandbox_id}")
            self._actors[sandbox_id] = (actor, task)
            task.add_done_callback(lambda _task: self._actors.pop(sandbox_id, None))
        else:
            held[0].wake()
        self.announce(sandbox_id)

    def wake_all(self) -> None:
        """Let every actor look again (a shared provider or profile changed)."""
        for actor, _task in self._actors.values():
            actor.wake()

    def running(self, sandbox_id: str) -> RunningSandbox | None:
        """Return the live Sandbox, or None."""
        held = self._actors.get(sandbox_id)
        return None if held is None else held[0].running

    def observed(self, sandbox_id: str) -> Observed | None:
        """Return what is in force for it now, or None."""
        held = self._actors.get(sandbox_id)
        return None if held is None else held[0].observed

    def subscribe(self, sandbox_id: str, event: asyncio.Event) -> None:
        """Set `event` at each change of the Sandbox's record until `unsubscribe`."""
        self._watchers.setdefault(sandbox_id, set()).add(event)

    def unsubscribe(self, sandbox_id: str, event: asyncio.Event) -> None:
        """End a subscription."""
        readers = self._watchers.get(sandbox_id, set())
        readers.discard(event)
        if not readers:
            self._watchers.pop(sandbox_id, None)

    async def gone(self, sandbox_id: str, seconds: float) -> bool:
        """Wait until a Sandbox being deleted has left no record; False when that takes longer, or it is no Sandbox."""
        if not sandbox_id:
            return False
        changed = asyncio.Event()
        self.subscribe(sandbox_id, changed)
        try:
            async with asyncio.timeout(seconds):
                while self._m.store.read.by_id(Kind.SANDBOX, sandbox_id) is not None:
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return False
        finally:
            self.unsubscribe(sandbox_id, changed)
        return True

    def announce(self, sandbox_id: str) -> None:
        """Tell the watchers of a Sandbox."""
        for event in self._watchers.get(sandbox_id, ()):
            event.set()

    @property
    def egress_lives(self) -> bool:
        """Whether the egress process answers."""
        return self._egress_lives.is_set()

    async def _watch_egress(self) -> None:
        """Follow the decisions; when the stream ends, revive the process and hand it every Sandbox again."""
        first = True
        while True:
            try:
                await self._revive_egress()
                self._egress_lives.set()
                self.sweep_credentials()
                if not first:
                    for actor, _task in self._actors.values():
                        actor.egress_lost()
                first = False
                async for decision in self._m.egress.decisions():
                    self._m.logs.append_decision(decision)
            except (EgressError, OSError, TimeoutError) as error:
                log.warning("egress process: %s", error)
            except Exception:
                # Nothing may end the watch: without it a lost egress process would stay lost.
                log.exception("egress process")
            self._egress_lives.clear()
            await asyncio.sleep(_PAUSE)

    def sweep_credentials(self) -> None:
        """Forget, in the background, vault entries that no provider record names."""
        task = asyncio.create_task(self._sweep(), name="credential-sweep")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def credential_written(self, provider_id: str) -> None:
        """Spare a provider whose values are in the vault and whose record is about to be written."""
        self._written[provider_id] = self._m.clock.now()

    def credential_recorded(self, provider_id: str) -> None:
        """End the sparing: the record names the values now."""
        self._written.pop(provider_id, None)
        self.lost_credentials -= {provider_id}

    async def _sweep(self) -> None:
        recent = self._m.clock.now() - _SPARED
        self._written = {name: at for name, at in self._written.items() if at > recent}
        try:
            stored = await self._m.egress.credential_versions()
            kept = {
                vault_id(record.id, key)
                for record in self._m.store.read.page(Kind.PROVIDER)
                for key in provider_message(record).credentials
            }
            lost = kept.difference(stored)
            self.lost_credentials = frozenset(name.partition(".")[0] for name in lost)
            for name in stored:
                if name not in kept and name.partition(".")[0] not in self._written:
                    await self._m.egress.delete_credentials(name)
        except (ConnectionError, EgressError):
            log.warning("credential sweep: the egress process is away; swept at its return")

    async def close(self) -> None:
        """Let go of everything; Sandboxes and the egress process run on."""
        tasks = [*self._tasks, *(task for _actor, task in self._actors.values())]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        await self._m.place.close()
