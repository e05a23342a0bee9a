"""Raw bytes both ways between two pipes, until both ends are done; one broken end breaks the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from oce.sandboxd.egress.pipe import BrokenPipeEnd
from oce.sandboxd.egress.swap import MarkFoundError

if TYPE_CHECKING:
    from oce.sandboxd.egress.pipe import Pipe

SILENCE_SECONDS = 3600.0


class Scanner(Protocol):
    """Looks at what a client sends before it goes on (`swap.BodyScanner`)."""

    def feed(self, piece: bytes) -> bytes:
        """Return what may be sent now. Raises MarkFoundError."""

    def end(self) -> bytes:
        """Return what was held back, now that nothing follows."""


async def splice(client: Pipe, upstream: Pipe, scanner: Scanner | None = None) -> None:
    """Relay until both directions ended; `scanner` looks at what the client sends."""
    proper = False
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_one_way(client, upstream, scanner))
            group.create_task(_one_way(upstream, client, None))
        proper = True
    except* (BrokenPipeEnd, TimeoutError, MarkFoundError):
        pass
    finally:
        for pipe in (client, upstream):
            if proper:
                pipe.close()
            else:
                pipe.abort()


async def _one_way(source: Pipe, sink: Pipe, scanner: Scanner | None) -> None:
    while True:
        piece = source.take(len(source.buffer))
        if piece:
            sink.write(scanner.feed(piece) if scanner else piece)
            await sink.drain()
        elif not await source.more(SILENCE_SECONDS):
            break
    if source.broken:
        raise BrokenPipeEnd("one side broke off")
    if scanner is not None:
        sink.write(scanner.end())
    sink.finish()
