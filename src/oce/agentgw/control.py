"""The control socket: Compute asks whether a switch is complete. JSON lines over a unix socket of mode 0600.

``{"op": "status", "agentId": …}`` reads the route document again and answers ``{"generation", "revisionId", "draining", "connections",
"turns"}``: the generation in force, which is the predecessor's until it is drained. ``{"op": "drain", …}`` does the same and is the word
for "begin now". Anything else answers ``{"error": …}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from oce.agentgw.routes import AGENT_ID

if TYPE_CHECKING:
    from pathlib import Path

    from oce.agentgw.switch import Switchboard

MAX_LINE_BYTES = 4096
_OPERATIONS = frozenset({"status", "drain"})


def reply(line: bytes, switchboard: Switchboard) -> dict[str, Any]:
    """Answer one line."""
    try:
        request = json.loads(line)
    except ValueError:
        return {"error": "not JSON"}
    if not isinstance(request, dict) or request.get("op") not in _OPERATIONS:
        return {"error": "op"}
    agent_id = request.get("agentId")
    if not isinstance(agent_id, str) or not AGENT_ID.fullmatch(agent_id):
        return {"error": "agentId"}
    switch = switchboard.agent(agent_id)
    serving = switch.serving
    return {
        "generation": 0 if serving is None else serving.generation,
        "revisionId": None if serving is None else serving.revision_id,
        "draining": switch.draining,
        "connections": switch.connections,
        "turns": switch.turns,
    }


async def listen(path: Path, switchboard: Switchboard) -> asyncio.Server:
    """Serve the control socket; a stale socket file of an earlier process is replaced. Raises OSError."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            while line := await reader.readline():
                writer.write(json.dumps(reply(line, switchboard)).encode() + b"\n")
                await writer.drain()
        writer.close()

    path.unlink(missing_ok=True)  # noqa: ASYNC240 - once, before anything is served
    before = os.umask(0o177)
    try:
        return await asyncio.start_unix_server(serve, path, limit=MAX_LINE_BYTES)
    finally:
        os.umask(before)
