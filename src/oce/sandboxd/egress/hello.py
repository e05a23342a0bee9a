"""The server name in a TLS ClientHello, read without answering it.

Only what the decision needs: is this TLS, is the hello complete, which name does it ask for. A hello may come in several
records and segments (post-quantum key shares do not fit one). RFC 8446 §4.1.2, RFC 6066 §3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MAX_HELLO = 65536

_HANDSHAKE_RECORD = 0x16
_CLIENT_HELLO = 0x01
_RECORD_HEADER = 5
_MESSAGE_HEADER = 4
_MAJOR = 3
_SERVER_NAME = 0
_HOST_NAME = 0
_VERSION_AND_RANDOM = 34


class HelloState(Enum):
    """How far a hello got: more bytes needed, no TLS at all, malformed, or complete."""

    MORE = "more"
    NOT_TLS = "not tls"
    BROKEN = "broken"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Hello:
    """The state, and when DONE the lower-case name without trailing dot (None: the client sent none)."""

    state: HelloState
    name: str | None = None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) != count:
            raise ValueError
        self._at += count
        return piece

    def vector(self, width: int) -> bytes:
        return self.take(int.from_bytes(self.take(width)))

    @property
    def rest(self) -> int:
        return len(self._data) - self._at


def read_hello(data: bytes | bytearray) -> Hello:
    """Judge the first bytes of a connection."""
    if data[:1] and data[0] != _HANDSHAKE_RECORD:
        return Hello(HelloState.NOT_TLS)
    message = bytearray()
    at = 0
    while True:
        if len(data) < at + _RECORD_HEADER:
            return Hello(HelloState.MORE if len(data) <= MAX_HELLO else HelloState.BROKEN)
        if data[at] != _HANDSHAKE_RECORD or data[at + 1] != _MAJOR:
            return Hello(HelloState.BROKEN)
        size = int.from_bytes(data[at + 3 : at + 5])
        end = at + _RECORD_HEADER + size
        if len(data) < end:
            return Hello(HelloState.MORE if end <= MAX_HELLO else HelloState.BROKEN)
        message += data[at + _RECORD_HEADER : end]
        at = end
        if len(message) < _MESSAGE_HEADER:
            continue
        needed = _MESSAGE_HEADER + int.from_bytes(message[1:4])
        if message[0] != _CLIENT_HELLO or needed > MAX_HELLO:
            return Hello(HelloState.BROKEN)
        if len(message) >= needed:
            return _parse(bytes(message[_MESSAGE_HEADER:needed]))


def _parse(body: bytes) -> Hello:
    try:
        reader = _Reader(body)
        reader.take(_VERSION_AND_RANDOM)
        reader.vector(1)
        reader.vector(2)
        reader.vector(1)
        if not reader.rest:
            return Hello(HelloState.DONE)
        extensions = _Reader(reader.vector(2))
        while extensions.rest:
            kind = int.from_bytes(extensions.take(2))
            content = extensions.vector(2)
            if kind == _SERVER_NAME:
                return Hello(HelloState.DONE, _host_name(content))
    except (ValueError, UnicodeDecodeError):
        return Hello(HelloState.BROKEN)
    return Hello(HelloState.DONE)


def _host_name(content: bytes) -> str:
    names = _Reader(_Reader(content).vector(2))
    if int.from_bytes(names.take(1)) != _HOST_NAME:
        raise ValueError
    name = names.vector(2)
    if names.rest or not name or b"\0" in name:
        raise ValueError
    return name.decode("ascii").lower().removesuffix(".")
