"""Finding messages in a stream of WebSocket frames (RFC 6455 §5) without changing the stream.

The relay forwards bytes as they come and lets this scanner look at them, for two reasons: a close frame may only be inserted between
frames, and turns can only be counted in whole messages. It never re-encodes anything.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_FIN = 0x80
_RESERVED = 0x70
_OPCODE = 0x0F
_MASKED = 0x80
_LENGTH = 0x7F
_LENGTH_16 = 126
_LENGTH_64 = 127
_TEXT = 1
_CONTINUATION = 0
_CONTROL = 8
_CLOSE = 8
PROTOCOL_ERROR = 1002
MESSAGE_TOO_BIG = 1009


class FrameError(Exception):
    """The peer broke the protocol; ``code`` is the close code it deserves."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


def close_frame(code: int, reason: str) -> bytes:
    """Render an unmasked close frame, as a server sends it."""
    payload = struct.pack("!H", code) + reason.encode()[:120]
    return bytes((_FIN | _CLOSE, len(payload))) + payload


def text_frame(text: str, mask: bytes) -> bytes:
    """Render a masked text frame, as a client sends it."""
    payload = text.encode()
    if len(payload) < _LENGTH_16:
        head = bytes((_FIN | _TEXT, _MASKED | len(payload)))
    else:
        head = bytes((_FIN | _TEXT, _MASKED | _LENGTH_16)) + struct.pack("!H", len(payload))
    return head + mask + _unmask(payload, mask)


def _unmask(payload: bytes, mask: bytes) -> bytes:
    """XOR with the repeated mask, as one big integer: a hundred times faster than byte by byte."""
    repeated = (mask * (len(payload) // 4 + 1))[: len(payload)]
    both = int.from_bytes(payload, "little") ^ int.from_bytes(repeated, "little")
    return both.to_bytes(len(payload), "little")


@dataclass(slots=True)
class _Frame:
    final: bool
    opcode: int
    length: int
    mask: bytes


class FrameScanner:
    """Follows one direction of a connection."""

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        self._buffer = bytearray()
        self._frame: _Frame | None = None
        self._message: list[bytes] | None = None
        self._message_bytes = 0
        # How many of the bytes fed last belong to a close frame; 0 until the peer closes.
        self.close_bytes = 0

    @property
    def at_boundary(self) -> bool:
        """Whether everything seen so far ends with a whole frame."""
        return not self._buffer and self._frame is None

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the text messages that are complete now. Raises FrameError."""
        self._buffer += data
        messages: list[bytes] = []
        while True:
            if self._frame is None:
                self._frame = self._take_head()
                if self._frame is None:
                    return messages
            if len(self._buffer) < self._frame.length:
                return messages
            payload = bytes(self._buffer[: self._frame.length])
            del self._buffer[: self._frame.length]
            message = self._take_payload(self._frame, payload)
            self._frame = None
            if message is not None:
                messages.append(message)

    def _take_head(self) -> _Frame | None:
        buffer = self._buffer
        if len(buffer) < 2:  # noqa: PLR2004 - the shortest head
            return None
        first, second = buffer[0], buffer[1]
        if first & _RESERVED or bool(second & _MASKED) != self._masked:
            raise FrameError(PROTOCOL_ERROR)
        length, size = second & _LENGTH, 2
        if length == _LENGTH_16:
            size = 4
        elif length == _LENGTH_64:
            size = 10
        total = size + (4 if self._masked else 0)
        if len(buffer) < total:
            return None
        if size > 2:  # noqa: PLR2004 - an extended length follows
            length = int.from_bytes(buffer[2:size], "big")
        if length > MAX_MESSAGE_BYTES:
            raise FrameError(MESSAGE_TOO_BIG)
        mask = bytes(buffer[size:total])
        if first & _OPCODE == _CLOSE:
            self.close_bytes = len(buffer)
        del buffer[:total]
        return _Frame(final=bool(first & _FIN), opcode=first & _OPCODE, length=length, mask=mask)

    def _take_payload(self, frame: _Frame, payload: bytes) -> bytes | None:
        if frame.opcode >= _CONTROL:
            return None
        if frame.opcode == _TEXT:
            self._message, self._message_bytes = [], 0
        elif frame.opcode != _CONTINUATION:
            self._message = None
        if self._message is None:
            return None
        self._message_bytes += len(payload)
        if self._message_bytes > MAX_MESSAGE_BYTES:
            raise FrameError(MESSAGE_TOO_BIG)
        self._message.append(_unmask(payload, frame.mask) if frame.mask else payload)
        if not frame.final:
            return None
        message, self._message = b"".join(self._message), None
        return message
