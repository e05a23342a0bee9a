"""The worker's private listener: `GET /metrics` and nothing else (reference/worker-console.md §10).

The gauges come from one read-only statement per scrape; when it fails the scrape fails (503), there is no stale value. The listener is
tiny on purpose: the worker serves no API, and what it does serve has no parameters.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from oce.observability.metrics import CONTENT_TYPE, render
from oce.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

_LIMIT: Final = 8192
_SECONDS: Final = 5.0
_CONNECTIONS: Final = 16
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class Exposition:
    """Answers scrapes; `refresh` sets the gauges and raises StoreError when it cannot."""

    def __init__(self, registry: CollectorRegistry, refresh: Callable[[], Awaitable[None]]) -> None:
        self._registry = registry
        self._refresh = refresh
        self._slots = asyncio.Semaphore(_CONNECTIONS)

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Bind. Raises OSError."""
        return await asyncio.start_server(self._connection, host, port, limit=_LIMIT)

    async def answer(self, head: bytes) -> tuple[int, bytes]:
        """Return status and body for a request head."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != len(("method", "target", "version")) or not words[2].startswith(
            b"HTTP/1."
        ):
            return 400, b""
        if words[1].partition(b"?")[0] != b"/metrics":
            return 404, b""
        if words[0] != b"GET":
            return 405, b""
        try:
            await self._refresh()
        except StoreError:
            return 503, b""
        return 200, render(self._registry)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(
                ConnectionError,
                asyncio.IncompleteReadError,
                asyncio.LimitOverrunError,
                TimeoutError,
            ):
                async with asyncio.timeout(_SECONDS), self._slots:
                    status, body = await self.answer(await reader.readuntil(b"\r\n\r\n"))
                    head = (
                        f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: {CONTENT_TYPE}\r\n"
                        f"content-length: {len(body)}\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
                    )
                    writer.write(head.encode() + body)
                    await writer.drain()
        finally:
            writer.close()
