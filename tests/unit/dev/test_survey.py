"""Failure case BR-11: a stranger that answers 200 on our ports, and marks that a dead program left, prove nothing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, ClassVar

from oce.dev.state import StateDirectory
from oce.dev.survey import survey

if TYPE_CHECKING:
    from pathlib import Path


class _Stranger(asyncio.Protocol):
    """Answers 200 to the first byte of anything."""

    open: ClassVar[set[_Stranger]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.discard(self)

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        self.transport.close()


async def test_strangers_and_stale_marks_are_not_taken_for_ours(tmp_path: Path):
    state = StateDirectory(tmp_path / "s")
    state.prepare()
    async with AsyncExitStack() as stack:
        base = None
        while base is None:
            base = await _occupy(stack)
        state.ports(base)
        for name in ("worker.ready", "worker.alive"):
            (state.run / name).touch()
        (state.run / "lock").write_text("[1, 1]")
        data = state.postgres / "data"
        data.mkdir(parents=True)
        (data / "postmaster.pid").write_text("1\n")
        found = {one.component: one for one in await survey(state)}
    assert not any(one.serving for one in found.values())
    for name in ("sandboxd", "api", "agent-gateway"):
        assert "in use by another process" in found[name].evidence
    assert found["worker"].evidence == "its process does not run"
    assert found["supervisor"].evidence == "nobody holds the lock"
    assert found["postgresql"].evidence == "no server of this directory runs"


async def _occupy(stack: AsyncExitStack) -> int | None:
    """Listen on four consecutive ports; None when one of them is somebody else's."""
    loop = asyncio.get_running_loop()
    first = await loop.create_server(_Stranger, "127.0.0.1", 0)
    stack.push_async_callback(_close, first)
    base = int(first.sockets[0].getsockname()[1])
    for offset in (1, 2, 3):
        try:
            stack.push_async_callback(
                _close, await loop.create_server(_Stranger, "127.0.0.1", base + offset)
            )
        except OSError:
            return None
    return base


async def _close(server: asyncio.Server) -> None:
    server.close()
    await server.wait_closed()
    async with asyncio.timeout(5):
        while _Stranger.open:  # noqa: ASYNC110 - the loop's own turns are what is waited for
            await asyncio.sleep(0)
