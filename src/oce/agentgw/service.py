"""What the Agent Gateway's paths mean.

``GET /namespaces/{ns}/agents/{agt}`` upgrades and relays; ``POST …/turns`` runs one turn and streams its events; ``GET /healthz`` and
``/readyz`` answer monitors. Order of checks: origin, credentials, permission, existence: nothing about an Agent is told to somebody who
may not use it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from oce.agentgw import errors, log
from oce.agentgw.conversation import Conversation, open_socket
from oce.agentgw.errors import Refusal
from oce.agentgw.relay import Tunnel
from oce.agentgw.upstream import TrustStore, accept_value, dial

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oce.agentgw.access import AccessBook, Allowed
    from oce.agentgw.front import Exchange
    from oce.agentgw.routes import RouteReader, Target
    from oce.agentgw.switch import AgentSwitch, Lease, Switchboard

_T = TypeVar("_T")
KEEP_ALIVE_SECONDS = 15.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5
PAUSE_GROWTH = 1.5
MAX_INPUT_CHARACTERS = 200_000
_PATH = re.compile(r"/namespaces/([^/?#]+)/agents/([^/?#]+?)(/turns)?")
_THREAD = re.compile(r"[A-Za-z0-9-]{1,64}")
_KEY = re.compile(r"[!-~]{1,512}")
_WEBSOCKET_KEY = re.compile(r"[A-Za-z0-9+/]{22}==")
_NAME_LIMIT = 200


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """The body of ``POST …/turns``."""

    text: str
    thread_id: str | None


class GatewayService:
    """Handles every request; holds no state of its own."""

    def __init__(
        self,
        *,
        access: AccessBook,
        switchboard: Switchboard,
        reader: RouteReader,
        turn_seconds: float,
        start_seconds: float,
    ) -> None:
        self._access = access
        self._switchboard = switchboard
        self._reader = reader
        self._turn_seconds = turn_seconds
        self._start_seconds = start_seconds
        self._trust = TrustStore()

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request. Raises Refusal."""
        if "origin" in exchange.headers:
            raise errors.origin_refused()
        if exchange.method == "GET" and exchange.target in {"/healthz", "/readyz"}:
            self._monitor(exchange)
            return
        path = _PATH.fullmatch(exchange.target)
        if path is None:
            raise errors.not_found()
        wanted = "POST" if path[3] else "GET"
        if exchange.method != wanted:
            raise Refusal(405, "METHOD_NOT_ALLOWED", f"This path answers {wanted}.")
        allowed = await self._authorize(exchange, _name(path[1]), _name(path[2]))
        if path[3]:
            await self._turn(exchange, allowed)
        else:
            await self._relay(exchange, allowed)

    def _monitor(self, exchange: Exchange) -> None:
        if exchange.target == "/readyz" and not self._reader.usable():
            raise errors.unavailable("The route documents cannot be read.")
        exchange.answer({"status": "ok"})

    async def _authorize(self, exchange: Exchange, namespace: str, agent: str) -> Allowed:
        key = exchange.header("x-api-key")
        if "authorization" in exchange.headers or not _KEY.fullmatch(key):
            raise errors.unauthenticated()
        return await self._access.check(key, namespace, agent)

    async def _connected(
        self, agent: AgentSwitch, allowed: Allowed, connect: Callable[[Target], Awaitable[_T]]
    ) -> tuple[_T, Lease]:
        """Connect to the active revision under a lease; wait a while for a Harness that starts, and follow the route meanwhile.

        Raises Refusal.
        """
        end, pause = time.monotonic() + self._start_seconds, FIRST_PAUSE_SECONDS
        while True:
            lease = await agent.acquire(allowed.namespace_id)
            try:
                return await connect(lease.target), lease
            except BaseException as error:
                lease.release()
                if not isinstance(error, errors.Starting) or time.monotonic() + pause > end:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * PAUSE_GROWTH, LONGEST_PAUSE_SECONDS)

    async def _relay(self, exchange: Exchange, allowed: Allowed) -> None:
        key = _websocket_key(exchange)
        agent = self._switchboard.agent(allowed.agent_id)
        while True:
            (protocol, early), lease = await self._connected(
                agent, allowed, lambda target: dial(target, key, self._trust)
            )
            harness = protocol.transport
            if harness is None or harness.is_closing():
                lease.release()
                raise errors.not_answering()
            tunnel = Tunnel(exchange.client, harness, on_end=lease.release)
            if lease.occupy(tunnel):
                break
            harness.abort()
        exchange.upgrade(accept_value(key), tunnel)
        protocol.splice(tunnel.harness_data, tunnel.harness_lost, tunnel.hold_client)
        if early:
            tunnel.harness_data(early)
        harness.resume_reading()
        log.event(
            "gateway.relayed",
            agent_id=allowed.agent_id,
            revision_id=lease.revision_id,
            principal_id=allowed.principal_id,
            request_id=exchange.request_id,
        )

    async def _turn(self, exchange: Exchange, allowed: Allowed) -> None:
        request = parse_turn(exchange.body)
        agent = self._switchboard.agent(allowed.agent_id)
        thread = request.thread_id
        if thread is not None and thread in agent.threads:
            raise Refusal(409, "RESOURCE_CONFLICT", "A turn of this thread is still running.")
        if thread is not None:
            agent.threads.add(thread)
        began = time.monotonic()
        try:
            conversation, lease = await self._converse(agent, allowed)
            try:
                await self._run_turn(exchange, conversation, request)
            finally:
                # The caller may leave while we close; that must neither leak the socket nor the lease.
                try:
                    await asyncio.shield(conversation.end())
                finally:
                    lease.release()
                    log.event(
                        "gateway.turn",
                        agent_id=allowed.agent_id,
                        revision_id=lease.revision_id,
                        principal_id=allowed.principal_id,
                        request_id=exchange.request_id,
                        duration_ms=round((time.monotonic() - began) * 1000, 1),
                    )
        finally:
            if thread is not None:
                agent.threads.discard(thread)

    async def _converse(self, agent: AgentSwitch, allowed: Allowed) -> tuple[Conversation, Lease]:
        while True:
            socket, lease = await self._connected(
                agent, allowed, lambda target: open_socket(target, self._trust)
            )
            conversation = Conversation(socket)
            if lease.occupy(conversation):
                return conversation, lease
            await conversation.end()

    async def _run_turn(
        self, exchange: Exchange, conversation: Conversation, request: TurnRequest
    ) -> None:
        try:
            await conversation.open_thread(request.thread_id)
        except (OSError, TimeoutError) as error:
            raise errors.not_answering() from error
        exchange.start_events()
        await exchange.send_event("thread", {"threadId": conversation.thread_id})
        keep_alive = asyncio.create_task(_keep_alive(exchange))
        try:
            async with (
                asyncio.timeout(self._turn_seconds),
                aclosing(conversation.run(request.text)) as events,
            ):
                async for event in events:
                    await exchange.send_event(event.name, event.data)
        except TimeoutError:
            message = f"The turn took longer than {self._turn_seconds:g} s and was interrupted."
            await exchange.send_event("failed", {"code": "TURN_TIMEOUT", "message": message})
        finally:
            keep_alive.cancel()
        exchange.end_events()


async def _keep_alive(exchange: Exchange) -> None:
    while True:
        await asyncio.sleep(KEEP_ALIVE_SECONDS)
        await exchange.send_comment()


def parse_turn(body: bytes) -> TurnRequest:
    """Read the body of a turn; a closed object. Raises Refusal 400."""
    try:
        document = json.loads(body)
    except ValueError as error:
        raise errors.invalid("The body is not JSON.") from error
    if not isinstance(document, dict):
        raise errors.invalid("The body is not a JSON object.")
    for key in document:
        if key not in {"input", "threadId"}:
            raise errors.invalid(
                "The body has an unknown member; `input` and `threadId` are known."
            )
    text, thread = document.get("input"), document.get("threadId")
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_INPUT_CHARACTERS:
        raise errors.invalid(f"`input` is a text of 1 to {MAX_INPUT_CHARACTERS} characters.")
    if thread is not None and not (isinstance(thread, str) and _THREAD.fullmatch(thread)):
        raise errors.invalid("`threadId` is an id that an earlier turn answered.")
    return TurnRequest(text=text, thread_id=thread)


def _name(segment: str) -> str:
    """Decode an id or a name from the path. Raises Refusal 404."""
    try:
        name = unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise errors.not_found() from error
    if not name or len(name) > _NAME_LIMIT or not name.isprintable():
        raise errors.not_found()
    return name


def _websocket_key(exchange: Exchange) -> str:
    """Check an upgrade request (RFC 6455 §4.2.1). Raises Refusal 400."""
    key = exchange.header("sec-websocket-key")
    if (
        exchange.header("upgrade").lower() != "websocket"
        or "upgrade" not in exchange.header("connection").lower()
        or exchange.header("sec-websocket-version") != "13"
        or not _WEBSOCKET_KEY.fullmatch(key)
    ):
        raise errors.invalid("This path is a WebSocket (version 13).")
    return key
