"""Which turns run on a connection, read from the JSON-RPC messages that pass.

A message is parsed only when its bytes contain one of the few words that matter; everything else costs one search. A quoted method name
inside a text is escaped there, so the search cannot be fooled into missing a turn, and a false hit only costs a parse.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

_STARTING = frozenset({"turn/start", "review/start"})
_REMEMBERED_ENDS = 64


class TurnLedger:
    """Counts the turns of one connection: asked for and not answered yet, or running."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._running: dict[str, str] = {}
        self._ended: deque[str] = deque(maxlen=_REMEMBERED_ENDS)

    @property
    def count(self) -> int:
        """How many turns are not finished."""
        return len(self._asked) + len(self._running)

    def running(self) -> list[tuple[str, str]]:
        """Return thread id and turn id of each running turn."""
        return [(thread, turn) for turn, thread in self._running.items()]

    def from_client(self, message: bytes) -> None:
        """Look at a message on its way to the Harness."""
        if b'/start"' not in message:
            return
        document = _parse(message)
        if document.get("method") in _STARTING and "id" in document:
            self._asked.add(_key(document["id"]))

    def from_server(self, message: bytes) -> None:
        """Look at a message on its way to the client."""
        if not self._asked and b'"turn/' not in message:
            return
        document = _parse(message)
        method, params = document.get("method"), document.get("params")
        if method is None:
            self._answered(document)
        elif isinstance(params, dict) and method in {"turn/started", "turn/completed"}:
            turn = params.get("turn")
            identity = str(turn.get("id")) if isinstance(turn, dict) else ""
            if method == "turn/started":
                self._start(identity, str(params.get("threadId")))
            else:
                self._running.pop(identity, None)
                self._ended.append(identity)

    def _answered(self, document: dict[str, Any]) -> None:
        key = _key(document.get("id"))
        if key not in self._asked:
            return
        self._asked.discard(key)
        result = document.get("result")
        turn = result.get("turn") if isinstance(result, dict) else None
        if isinstance(turn, dict) and turn.get("status") == "inProgress":
            self._start(str(turn.get("id")), "")

    def _start(self, turn: str, thread: str) -> None:
        """Note a running turn; the answer (without the thread) and the notification may come in either order."""
        if turn not in self._ended:
            self._running[turn] = thread or self._running.get(turn, "")


def _key(identity: object) -> str:
    return json.dumps(identity)


def _parse(message: bytes) -> dict[str, Any]:
    try:
        document = json.loads(message)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
