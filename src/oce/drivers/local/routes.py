"""The route document: which revision of an Agent the Agent Gateway serves, or none.

Compute writes it and the Agent Gateway only reads it, so that routing survives a restart of either. It is written 0600 because it
carries the raw transport token. A generation grows with every change and never repeats; the same route is never written twice.

The high-water mark beside it stops a late writer: once revision 7 was routed, a pass that still believes in revision 6 cannot bring it
back (design §9, invariants 1 and 9), whatever delayed it. The gateway's control socket tells whether a change has been carried out.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oce.contracts.refusals import DriverRefusal
from oce.domain.failures import Tempo
from oce.drivers.local.files import locked, make_private, remove_file, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from oce.domain.secret import SecretText

VERSION: Final = 1
_REPLY_LIMIT: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the active revision's Harness answers. `connect` is the `host:port` this machine dials; `url` names the peer."""

    url: str
    connect: str
    ca_bundle: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose route it is."""

    namespace_id: str
    namespace_name: str
    agent_id: str
    agent_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """What the Agent Gateway says about an Agent's route right now."""

    generation: int
    revision_id: str | None
    draining: bool


def route_document(
    owner: Owner,
    *,
    generation: int,
    revision_id: str | None,
    target: Target | None,
    token: SecretText,
    drain_seconds: int,
) -> dict[str, Any]:
    """Return the document; without a target nothing is served (fail closed)."""
    return {
        "version": VERSION,
        "namespaceId": owner.namespace_id,
        "namespaceName": owner.namespace_name,
        "agentId": owner.agent_id,
        "agentName": owner.agent_name,
        "generation": generation,
        "revisionId": revision_id,
        "target": None if target is None else target.url,
        "connect": None if target is None else target.connect,
        "caFile": None,
        "caBundle": None if target is None else target.ca_bundle,
        "transportToken": token.reveal(),
        "drainSeconds": drain_seconds,
    }


class RouteDirectory:
    """The route documents of this machine. Blocking; callers run it in a thread."""

    def __init__(self, directory: Path, *, drain_seconds: int) -> None:
        self._directory = directory
        self._drain_seconds = drain_seconds

    def ensure_fail_closed(self, owner: Owner, token: SecretText) -> None:
        """Write a route to nowhere for an Agent that has none yet; an existing route is left alone."""
        with self._locked(owner.agent_id):
            if self.read(owner.agent_id) is None:
                self._write(owner, None, None, token, previous=None)

    def publish(
        self, owner: Owner, *, revision_id: str, number: int, target: Target, token: SecretText
    ) -> int:
        """Route the Agent to a revision and return the route's generation; repeating it changes nothing.

        Raises DriverRefusal(ACTIVE_REVISION_CHANGED) when a later revision was routed before.
        """
        with self._locked(owner.agent_id):
            if number < self._high_water(owner.agent_id):
                raise DriverRefusal("ACTIVE_REVISION_CHANGED", Tempo.RETRY)
            previous = self.read(owner.agent_id)
            # The mark goes first: after a crash between the two writes the older revision stays refused.
            write_atomic(self._mark(owner.agent_id), json.dumps({"revision": number}).encode())
            return self._write(owner, revision_id, target, token, previous=previous)

    def withdraw(self, agent_id: str, revision_id: str) -> bool:
        """Route the Agent nowhere if it is routed to this revision; return whether it was."""
        with self._locked(agent_id):
            found = self.read(agent_id)
            if found is None or found["revisionId"] != revision_id:
                return False
            nowhere = dict.fromkeys(("revisionId", "target", "connect", "caFile", "caBundle"))
            document = {**found, **nowhere, "generation": found["generation"] + 1}
            self._store(agent_id, document)
            return True

    def remove(self, agent_id: str) -> None:
        """Forget an Agent's route; absent is fine."""
        for path in (self._path(agent_id), self._mark(agent_id), self._lock(agent_id)):
            remove_file(path)

    def read(self, agent_id: str) -> dict[str, Any] | None:
        """Return the document, or None when there is none."""
        try:
            found = json.loads(self._path(agent_id).read_bytes())
        except FileNotFoundError:
            return None
        if not isinstance(found, dict) or found.get("agentId") != agent_id:
            raise ValueError("a route document does not belong to its Agent")
        return found

    def _write(
        self,
        owner: Owner,
        revision_id: str | None,
        target: Target | None,
        token: SecretText,
        *,
        previous: dict[str, Any] | None,
    ) -> int:
        generation = 0 if previous is None else int(previous["generation"])
        document = route_document(
            owner,
            generation=generation,
            revision_id=revision_id,
            target=target,
            token=token,
            drain_seconds=self._drain_seconds,
        )
        if document == previous:
            return generation
        document["generation"] = generation + 1
        self._store(owner.agent_id, document)
        return generation + 1

    def _store(self, agent_id: str, document: dict[str, Any]) -> None:
        write_atomic(self._path(agent_id), json.dumps(document, separators=(",", ":")).encode())

    def _high_water(self, agent_id: str) -> int:
        try:
            return int(json.loads(self._mark(agent_id).read_bytes())["revision"])
        except FileNotFoundError:
            return 0

    def _locked(self, agent_id: str) -> Any:  # noqa: ANN401 # contextlib's own manager type
        make_private(self._directory)
        return locked(self._lock(agent_id))

    def _path(self, agent_id: str) -> Path:
        return self._directory / f"{agent_id}.json"

    def _mark(self, agent_id: str) -> Path:
        return self._directory / f".{agent_id}.mark"

    def _lock(self, agent_id: str) -> Path:
        return self._directory / f".{agent_id}.lock"


async def gateway_status(socket: Path, agent_id: str, *, timeout: float = 2.0) -> GatewayStatus:  # noqa: ASYNC109 # the bound is ours, not the caller's
    """Ask the Agent Gateway's control socket. Raises OSError when it does not answer usefully in time."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=_REPLY_LIMIT)
            try:
                request = {"op": "status", "agentId": agent_id}
                writer.write(json.dumps(request).encode() + b"\n")
                await writer.drain()
                reply = json.loads(await reader.readline())
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (ValueError, TimeoutError) as error:
        raise ConnectionError("the Agent Gateway's control socket gave no usable answer") from error
    if not isinstance(reply, dict) or not isinstance(reply.get("generation"), int):
        return GatewayStatus(generation=0, revision_id=None, draining=False)
    return GatewayStatus(
        generation=reply["generation"],
        revision_id=reply.get("revisionId"),
        draining=bool(reply.get("draining")),
    )
