"""Does a program of this machine serve? Each probe asks the program itself, authenticated as the one meant.

A probe answers yes or no within a short time and never raises: a foreign listener on the port, a wrong certificate and silence are all
"no" (failure case BR-11).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

_PATIENCE: Final = 2.0
_MARKER_AGE: Final = 120.0
"""A worker touches its liveness marker at least this often."""


@lru_cache(maxsize=8)
def _trust(authority: str, changed: int) -> ssl.SSLContext:
    del changed
    return ssl.create_default_context(cafile=authority)


async def answers(port: int, path: str, authority: Path | None, host: str = "127.0.0.1") -> bool:
    """Tell whether `https` (or plain http without `authority`) on that loopback port answers `path` with 200."""
    try:
        async with asyncio.timeout(_PATIENCE):
            tls = (
                None if authority is None else _trust(str(authority), authority.stat().st_mtime_ns)
            )
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                writer.write(
                    f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
                )
                await writer.drain()
                status = await reader.readline()
            finally:
                writer.close()
                with contextlib.suppress(OSError, ssl.SSLError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ssl.SSLError):
        return False
    return status.split(b" ", 2)[1:2] == [b"200"]


async def speaks(port: int, authority: Path, host: str = "127.0.0.1") -> bool:
    """Tell whether a TLS listener on that loopback port proves itself with that CA."""
    try:
        async with asyncio.timeout(_PATIENCE):
            tls = _trust(str(authority), authority.stat().st_mtime_ns)
            _, writer = await asyncio.open_connection(host, port, ssl=tls)
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()
    except (OSError, TimeoutError, ssl.SSLError):
        return False
    return True


def https(port: int, path: str, authority: Path) -> Callable[[], Awaitable[bool]]:
    """Return a probe of a TLS listener that must prove itself with that CA."""

    async def probe() -> bool:
        return await answers(port, path, authority)

    return probe


def plain_http(port: int, path: str) -> Callable[[], Awaitable[bool]]:
    """Return a probe of a loopback listener without TLS."""

    async def probe() -> bool:
        return await answers(port, path, None)

    return probe


async def never() -> bool:
    """Say no: the probe of a program that runs to its end and serves nobody."""
    return False


def present(path: Path) -> Callable[[], Awaitable[bool]]:
    """Return a probe of a file by which a program says that it is ready."""

    async def probe() -> bool:
        return path.exists()

    return probe


def marker_fresh(path: Path) -> bool:
    """Tell whether a marker exists and is not older than two minutes."""
    try:
        return time.time() - path.stat().st_mtime < _MARKER_AGE
    except OSError:
        return False
