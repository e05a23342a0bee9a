"""Asking the API whether a service key may use an Agent, and remembering the answer for a short while.

The API decides; this module only keeps what it said: a yes for half a minute, a no for a second, and, while the API cannot be reached,
an earlier yes for at most a quarter of an hour (design §6). A key is never kept: entries are found by a SHA-256 of it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from oce.agentgw import errors, log

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

MAX_ENTRIES = 4096
ASK_SECONDS = 5.0
_NO = {401: errors.unauthenticated, 403: errors.forbidden, 404: errors.not_found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Who uses which Agent."""

    principal_id: str
    namespace_id: str
    agent_id: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The API said no; ``status`` is 401, 403 or 404."""

    status: int


class ApiUnreachableError(Exception):
    """The API gave no usable answer."""


class Asker(Protocol):
    """Asks the API once."""

    async def __call__(self, api_key: str, namespace: str, agent: str) -> Allowed | Denied:
        """Return the API's answer. Raises ApiUnreachableError."""


@dataclass(frozen=True, slots=True)
class _Entry:
    answer: Allowed | Denied
    at: float


class AccessBook:
    """Decides by asking and remembering. ``clock`` is monotonic seconds."""

    def __init__(
        self,
        ask: Asker,
        *,
        clock: Callable[[], float],
        yes_seconds: float,
        outage_seconds: float,
        no_seconds: float,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._yes = yes_seconds
        self._outage = outage_seconds
        self._no = no_seconds
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Allowed | Denied]] = {}

    async def check(self, api_key: str, namespace: str, agent: str) -> Allowed:
        """Return who the caller is. Raises Refusal: 401, 403, 404, or 503 when nobody can say."""
        key = _digest(api_key, namespace, agent)
        entry = self._entries.get(key)
        answer = None if entry is None else self._fresh(entry)
        if answer is None:
            answer = await self._fetch(key, entry, self._ask(api_key, namespace, agent))
        if isinstance(answer, Denied):
            refusal = _NO[answer.status]()
            raise refusal
        return answer

    def _fresh(self, entry: _Entry) -> Allowed | Denied | None:
        limit = self._yes if isinstance(entry.answer, Allowed) else self._no
        return entry.answer if self._clock() - entry.at < limit else None

    async def _fetch(
        self,
        key: bytes,
        entry: _Entry | None,
        question: Coroutine[Any, Any, Allowed | Denied],
    ) -> Allowed | Denied:
        """Ask once for all who ask the same at the same time."""
        task = self._asking.get(key)
        if task is None:
            task = asyncio.create_task(question)
            self._asking[key] = task
            task.add_done_callback(lambda done: self._asked(key, done))
        else:
            question.close()
        try:
            # A caller who leaves must not take the answer from those who wait with him.
            return await asyncio.shield(task)
        except ApiUnreachableError as error:
            if (
                entry is not None
                and isinstance(entry.answer, Allowed)
                and self._clock() - entry.at < self._outage
            ):
                return entry.answer
            raise errors.unavailable(
                "It could not be checked whether this key is allowed."
            ) from error

    def _asked(self, key: bytes, task: asyncio.Task[Allowed | Denied]) -> None:
        self._asking.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._entries[key] = _Entry(task.result(), self._clock())
        self._entries.move_to_end(key)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)


def _digest(api_key: str, namespace: str, agent: str) -> bytes:
    """Identify a question; length-delimited, so that no two questions meet."""
    digest = hashlib.sha256()
    for part in (api_key, namespace, agent):
        data = part.encode()
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest.digest()


class ApiAsker:
    """Asks ``POST {api_url}/internal/agent-access`` on the private listener."""

    def __init__(self, client: httpx.AsyncClient, url: str, token_file: Path) -> None:
        self._client = client
        self._url = url.rstrip("/") + "/internal/agent-access"
        self._token_file = token_file

    async def __call__(self, api_key: str, namespace: str, agent: str) -> Allowed | Denied:
        """Ask. Raises ApiUnreachableError. The token is read each time, so that it can be rotated."""
        try:
            token = self._token_file.read_text().strip()
            response = await self._client.post(
                self._url,
                json={"apiKey": api_key, "namespace": namespace, "agent": agent},
                headers={"authorization": f"Bearer {token}"},
                timeout=ASK_SECONDS,
            )
            if response.status_code != httpx.codes.OK:
                log.event("gateway.access_check_failed", status=response.status_code)
                raise ApiUnreachableError
            return _answer(response.json())
        except (httpx.HTTPError, OSError, ValueError) as error:
            log.event("gateway.access_check_failed", kind=type(error).__name__)
            raise ApiUnreachableError from error


def _answer(document: object) -> Allowed | Denied:
    """Read the API's answer. Raises ValueError."""
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("allowed"), bool):
        raise ValueError("allowed")  # noqa: TRY004 - malformed data, not a caller's type error
    if not data["allowed"]:
        if data.get("status") not in _NO:
            raise ValueError("status")
        return Denied(int(data["status"]))
    values = [data.get(key) for key in ("principalId", "namespaceId", "agentId")]
    if not all(isinstance(value, str) and value for value in values):
        raise ValueError("identity")
    return Allowed(
        principal_id=str(values[0]), namespace_id=str(values[1]), agent_id=str(values[2])
    )
