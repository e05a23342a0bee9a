"""One turn of a conversation with Codex, for people with curl.

Runs the JSON-RPC exchange with the app-server over a WebSocket of its own: initialize, start or resume the thread, start the turn,
and translate what happens into a handful of events. Whatever the Agent asks a person is refused: nobody is there to answer. It ends with
the turn, at its own deadline, or when the caller leaves; in the last two cases the turn is interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from oce.agentgw import errors, log
from oce.agentgw.upstream import STARTING_STATUSES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from oce.agentgw.routes import Target
    from oce.agentgw.upstream import TrustStore

DIAL_SECONDS = 10.0
CALL_SECONDS = 30.0
INTERRUPT_SECONDS = 5.0
CLOSE_SECONDS = 2.0
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_OUTPUT_CHARACTERS = 65_536
_CLIENT = {"name": "openclaw-enterprise-gateway", "title": "OpenClaw Enterprise", "version": "1"}
_CAPABILITIES = {"experimentalApi": True}  # for thread/backgroundTerminals/clean
# Legacy and present spellings of "no" in the app-server's approval answers.
_DECLINED: dict[str, dict[str, Any]] = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "mcpServer/elicitation/request": {"action": "decline"},
    "execCommandApproval": {"decision": "denied"},
    "applyPatchApproval": {"decision": "denied"},
}
_METHOD_NOT_FOUND = -32601
_TOOLS = frozenset(
    {"commandExecution", "fileChange", "mcpToolCall", "webSearch", "dynamicToolCall"}
)
_OPEN_POLICY = {"type": "externalSandbox", "networkAccess": "enabled"}


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """One event for the caller: ``delta``, ``tool``, ``completed`` or ``failed``."""

    name: str
    data: dict[str, Any]


class Conversation:
    """A connection to a Harness on which one turn is run; an Occupant of its lease."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._thread = ""
        self._turn = ""
        self._unread: list[dict[str, Any]] = []
        self._usage: dict[str, Any] | None = None
        self._text = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def thread_id(self) -> str:
        """The thread's id, once :meth:`open_thread` returned."""
        return self._thread

    @property
    def turns(self) -> int:
        """How many turns are not finished: one, as long as this object exists."""
        return 1

    def drain(self) -> None:
        """Nothing to do: it ends with its turn anyway."""

    def interrupt(self) -> None:
        """Ask the Harness to stop the turn."""
        self._spawn(self._interrupt())

    def close(self) -> None:
        """End now."""
        self._spawn(self._socket.close())

    async def end(self) -> None:
        """Close the socket and wait for what was started on the side."""
        with contextlib.suppress(WebSocketException, OSError):
            await self._socket.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Any) -> None:  # noqa: ANN401 - a coroutine of any kind
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _interrupt(self) -> None:
        """Stop the turn and the commands it left running: Codex keeps those in background terminals otherwise."""
        if self._turn:
            with contextlib.suppress(WebSocketException, OSError):
                thread = {"threadId": self._thread}
                await self._send("turn/interrupt", {**thread, "turnId": self._turn})
                await self._send("thread/backgroundTerminals/clean", thread)

    async def open_thread(self, thread_id: str | None) -> None:
        """Introduce ourselves and start or resume the thread. Raises Refusal 404, 503."""
        await self._call("initialize", {"clientInfo": _CLIENT, "capabilities": _CAPABILITIES})
        await self._socket.send(json.dumps({"method": "initialized"}))
        if thread_id is None:
            result = await self._call("thread/start", {"approvalPolicy": "never"})
        else:
            params = {"threadId": thread_id, "approvalPolicy": "never", "excludeTurns": True}
            try:
                result = await self._call("thread/resume", params)
            except _CallRefused as error:
                raise errors.not_found("thread") from error
        thread = result.get("thread")
        if not isinstance(thread, dict) or not isinstance(thread.get("id"), str):
            raise errors.unavailable("The Agent's Harness answered unexpectedly.")
        self._thread = thread["id"]

    async def run(self, text: str) -> AsyncGenerator[TurnEvent, None]:
        """Run one turn; the last event is ``completed`` or ``failed``. Leaving early interrupts the turn."""
        finished = False
        try:
            await self._start_turn(text)
            while not finished:
                event = self._translate(await self._next())
                if event is not None:
                    finished = event.name in {"completed", "failed"}
                    yield event
        except _CallRefused:
            finished = True
            yield _failed("HARNESS_REFUSED", "The Harness refused the turn.")
        except (ConnectionClosed, OSError):
            finished = True
            yield _failed("HARNESS_DISCONNECTED", "The Harness went away before the turn ended.")
        finally:
            if not finished:
                await asyncio.shield(self._abandon())

    async def _abandon(self) -> None:
        """Interrupt a turn that nobody waits for and see it end, so that no successor starts beside it."""
        await self._interrupt()
        with contextlib.suppress(TimeoutError, WebSocketException, OSError):
            async with asyncio.timeout(INTERRUPT_SECONDS):
                ended = cleaned = False
                while not (ended and cleaned):
                    message = await self._next()
                    ended = ended or message.get("method") == "turn/completed"
                    cleaned = cleaned or message.get("id") == self._number

    async def _start_turn(self, text: str) -> None:
        result = await self._call(
            "turn/start",
            {
                "threadId": self._thread,
                "input": [{"type": "text", "text": text}],
                "approvalPolicy": "never",
                "sandboxPolicy": _OPEN_POLICY,
            },
        )
        turn = result.get("turn")
        self._turn = str(turn.get("id")) if isinstance(turn, dict) else ""

    def _translate(self, message: dict[str, Any]) -> TurnEvent | None:
        params = message.get("params")
        if not isinstance(params, dict) or params.get("threadId") != self._thread:
            return None
        method = message.get("method")
        item = params.get("item")
        if method == "item/agentMessage/delta":
            return TurnEvent("delta", {"text": str(params.get("delta", ""))})
        if method == "thread/tokenUsage/updated":
            self._usage = _usage(params.get("tokenUsage"))
        elif method in {"item/started", "item/completed"} and isinstance(item, dict):
            if item.get("type") in _TOOLS:
                return TurnEvent("tool", _tool(item))
            if item.get("type") == "agentMessage" and method == "item/completed":
                self._text = str(item.get("text", ""))
        elif method == "turn/completed":
            return self._completed(params.get("turn"))
        return None

    def _completed(self, turn: object) -> TurnEvent | None:
        if not isinstance(turn, dict) or turn.get("id") != self._turn:
            return None
        if turn.get("status") == "interrupted":
            return _failed("TURN_INTERRUPTED", "The turn was interrupted.")
        if turn.get("status") != "completed":
            error = turn.get("error")
            message = error.get("message") if isinstance(error, dict) else None
            return _failed("TURN_FAILED", str(message or "The turn failed."))
        data: dict[str, Any] = {"threadId": self._thread, "text": self._text}
        if self._usage is not None:
            data["usage"] = self._usage
        return TurnEvent("completed", data)

    async def _next(self) -> dict[str, Any]:
        return self._unread.pop(0) if self._unread else await self._receive()

    async def _receive(self) -> dict[str, Any]:
        """Read one message; requests of the Harness are answered here and not returned."""
        while True:
            message = json.loads(await self._socket.recv())
            if not isinstance(message, dict):
                continue
            if "id" in message and "method" in message:
                await self._decline(message)
                continue
            return message

    async def _decline(self, request: dict[str, Any]) -> None:
        log.event("gateway.request_declined", method=str(request["method"])[:64])
        answer: dict[str, Any] = {"id": request["id"]}
        if request["method"] in _DECLINED:
            answer["result"] = _DECLINED[request["method"]]
        else:
            answer["error"] = {"code": _METHOD_NOT_FOUND, "message": "Nobody can answer."}
        await self._socket.send(json.dumps(answer))

    async def _send(self, method: str, params: dict[str, Any]) -> int:
        self._number += 1
        request = {"id": self._number, "method": method, "params": params}
        await self._socket.send(json.dumps(request))
        return self._number

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer; notifications that come first are kept. Raises _CallRefused."""
        number = await self._send(method, params)
        async with asyncio.timeout(CALL_SECONDS):
            while True:
                message = await self._receive()
                if message.get("id") != number:
                    self._unread.append(message)
                    continue
                if "error" in message:
                    raise _CallRefused(method)
                result = message.get("result")
                return result if isinstance(result, dict) else {}


class _CallRefused(Exception):  # noqa: N818 - an answer, not a crash
    """The Harness answered a request with an error."""


def _failed(code: str, message: str) -> TurnEvent:
    return TurnEvent("failed", {"code": code, "message": message})


def _usage(found: object) -> dict[str, Any] | None:
    last = found.get("last") if isinstance(found, dict) else None
    return last if isinstance(last, dict) else None


def _tool(item: dict[str, Any]) -> dict[str, Any]:
    """Describe a tool item; ``output`` is cut, the whole of it is in the Agent's own thread."""
    name = item.get("command") or item.get("tool") or item.get("query") or item["type"]
    data: dict[str, Any] = {"command": str(name), "status": str(item.get("status", "inProgress"))}
    if item.get("exitCode") is not None:
        data["exitCode"] = item["exitCode"]
    if item.get("aggregatedOutput") is not None:
        data["output"] = str(item["aggregatedOutput"])[:MAX_OUTPUT_CHARACTERS]
    return data


async def open_socket(target: Target, trust: TrustStore) -> ClientConnection:
    """Connect to a Harness. Raises Starting, Refusal 503."""
    tls = trust.context(target)
    try:
        return await connect(
            target.url,
            host=target.connect[0],
            port=target.connect[1],
            ssl=tls,
            server_hostname=None if tls is None else target.host,
            additional_headers={"authorization": f"Bearer {target.token}"},
            compression=None,
            proxy=None,
            open_timeout=DIAL_SECONDS,
            close_timeout=CLOSE_SECONDS,
            max_size=MAX_MESSAGE_BYTES,
        )
    except (OSError, TimeoutError, WebSocketException) as error:
        log.event("gateway.dial_failed", kind=type(error).__name__)
        status = error.response.status_code if isinstance(error, InvalidStatus) else None
        if status in STARTING_STATUSES or isinstance(error, ConnectionRefusedError):
            raise errors.Starting from error
        raise errors.not_answering() from error
