"""Failure case BR-11: a stranger that answers 200 on our ports, and marks that a dead program left, prove nothing."""

from __future__ import annotations

import socketserver
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from oce.dev.state import StateDirectory
from oce.dev.survey import survey

if TYPE_CHECKING:
    from pathlib import Path


class _Stranger(socketserver.BaseRequestHandler):
    """Answers 200 to the first byte of anything."""

    def handle(self) -> None:
        if self.request.recv(1):
            self.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


async def test_strangers_and_stale_marks_are_not_taken_for_ours(tmp_path: Path):
    state = StateDirectory(tmp_path / "s")
    state.prepare()
    with ExitStack() as stack:
        base = None
        while base is None:
            base = _occupy(stack)
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


def _occupy(stack: ExitStack) -> int | None:
    """Listen on four consecutive ports; None when one of them is somebody else's."""
    base = 0
    for offset in range(4):
        try:
            server = socketserver.ThreadingTCPServer(
                ("127.0.0.1", base and base + offset), _Stranger
            )
        except OSError:
            return None
        base = base or int(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        for undo in (server.server_close, thread.join, server.shutdown):
            stack.callback(undo)
    return base
