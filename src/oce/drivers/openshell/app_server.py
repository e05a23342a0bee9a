"""The one question the Driver asks a serving Codex app-server: whether it is signed in by its token (mission document 000).

It goes over the WebSocket whose authenticated handshake has just succeeded: `initialize`, then `getAuthStatus` without token and without
refresh. Only the exact triple counts; anything missing, other or malformed is "not yet". Nothing is logged in, refreshed or kept.
The frames are read by hand because the handshake is: small, bounded, text only (RFC 6455 §5).
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oce.domain.resources import Json

_MAX_MESSAGE: Final = 64 * 1024
_MAX_MESSAGES: Final = 64
"""Notifications that may come before the answer."""
_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
_LENGTH_16, _LENGTH_64 = 126, 127
_CLIENT: Final = {"name": "openclaw-enterprise", "title": "OpenClaw Enterprise", "version": "1"}


class _Malformed(Exception):  # noqa: N818 - a word of the reader, never seen outside
    """The peer does not speak the protocol."""


class Conversation:
    """JSON messages over an upgraded connection; `received` is what came together with the handshake's answer."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._received = received

    async def send(self, message: Json) -> None:
        """Send one message as a masked text frame."""
        await self._frame(_TEXT, json.dumps(message, separators=(",", ":")).encode())

    async def answer(self, number: int) -> Json:
        """Return the result of one request, whatever notifications come first; None for an error or anything unusable."""
        for _ in range(_MAX_MESSAGES):
            message = json.loads(await self._message())
            if isinstance(message, dict) and message.get("id") == number:
                return message.get("result")
        return None

    async def _message(self) -> bytes:
        parts = b""
        while True:
            final, opcode, payload = await self._read_frame()
            if opcode == _CLOSE:
                raise _Malformed
            if opcode == _PING:
                await self._frame(_PONG, payload)
            elif opcode != _PONG:
                parts += payload
                if len(parts) > _MAX_MESSAGE:
                    raise _Malformed
                if final:
                    return parts

    async def _read_frame(self) -> tuple[bool, int, bytes]:
        first, second = await self._exactly(2)
        length = second & 0x7F
        if second & 0x80 or first & 0x70:  # a masked or extended frame of a server
            raise _Malformed
        if length == _LENGTH_16:
            (length,) = struct.unpack("!H", await self._exactly(2))
        elif length == _LENGTH_64:
            (length,) = struct.unpack("!Q", await self._exactly(8))
        if length > _MAX_MESSAGE:
            raise _Malformed
        return bool(first & 0x80), first & 0x0F, await self._exactly(length)

    async def _exactly(self, count: int) -> bytes:
        taken, self._received = self._received[:count], self._received[count:]
        missing = count - len(taken)
        return taken + (await self._reader.readexactly(missing) if missing else b"")

    async def _frame(self, opcode: int, payload: bytes) -> None:
        mask = os.urandom(4)
        size = len(payload)
        if size < _LENGTH_16:
            head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
        else:
            head = struct.pack("!BBH", 0x80 | opcode, 0x80 | _LENGTH_16, size)
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        self._writer.write(head + mask + masked)
        await self._writer.drain()


async def signed_in_with_pat(conversation: Conversation) -> bool:
    """Ask; True only for the exact triple. Whatever breaks on the way is False: the peer serves, it is not signed in yet."""
    try:
        await conversation.send(
            {"id": 1, "method": "initialize", "params": {"clientInfo": _CLIENT}}
        )
        if not isinstance(await conversation.answer(1), dict):
            return False
        await conversation.send({"method": "initialized"})
        await conversation.send(
            {
                "id": 2,
                "method": "getAuthStatus",
                "params": {"includeToken": False, "refreshToken": False},
            }
        )
        return is_pat(await conversation.answer(2))
    except (_Malformed, ValueError, RecursionError, asyncio.IncompleteReadError, OSError):
        return False


def is_pat(result: Json) -> bool:
    """Tell whether an auth status is exactly a personal access token's. Pure."""
    return (
        isinstance(result, dict)
        and result.get("authMethod") == "personalAccessToken"
        and "authToken" in result
        and result["authToken"] is None
        and result.get("requiresOpenaiAuth") is True
    )
