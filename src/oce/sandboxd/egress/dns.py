"""DNS answers for a Sandbox: A and AAAA of any valid name, made up here; no question is ever passed on.

Denied names are answered too. That costs nothing (nothing leaves), and a client meets an explained refusal at once instead of
retrying a name that "does not exist". Other record types exist for no name. RFC 1035, RFC 6761 (localhost).
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from oce.sandboxd.egress.names import address_v4, address_v6, valid_name

MAX_QUERY = 4096
TTL = 30

_HEADER = struct.Struct("!HHHHHH")
_QUESTION = struct.Struct("!HH")
_RECORD = struct.Struct("!HHHIH")
_A, _AAAA, _IN = 1, 28, 1
_NAME_POINTER = 0xC00C
_RESPONSE, _OPCODE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x7800, 0x0100, 0x0080
_NO_ERROR, _FORMAT_ERROR, _NO_SUCH_NAME, _NOT_IMPLEMENTED = 0, 1, 3, 4
_MAX_LABEL = 63
_LOCAL = {_A: socket.inet_aton("127.0.0.1"), _AAAA: (1).to_bytes(16)}


@dataclass(frozen=True, slots=True)
class Answer:
    """The datagram to send back, and the name that was asked for when it got (or could get) an address."""

    message: bytes
    name: str | None


def answer(query: bytes, *, ipv4: bool = True, ipv6: bool = True) -> Answer | None:
    """Answer one query message; None for what deserves no answer (a response, or no header)."""
    if len(query) < _HEADER.size or len(query) > MAX_QUERY:
        return None
    ident, flags, questions, *_ = _HEADER.unpack_from(query)
    if flags & _RESPONSE:
        return None
    if flags & _OPCODE:
        return Answer(_reply(ident, flags, b"", _NOT_IMPLEMENTED), None)
    parsed = _question(query) if questions == 1 else None
    if parsed is None:
        return Answer(_reply(ident, flags, b"", _FORMAT_ERROR), None)
    name, kind, group, end = parsed
    question = query[_HEADER.size : end]
    if group != _IN or not valid_name(name) or name.endswith(".arpa"):
        return Answer(_reply(ident, flags, question, _NO_SUCH_NAME), None)
    data = _address(name, kind, ipv4=ipv4, ipv6=ipv6)
    local = name == "localhost" or name.endswith(".localhost")
    return Answer(_reply(ident, flags, question, _NO_ERROR, kind, data), None if local else name)


def _address(name: str, kind: int, *, ipv4: bool, ipv6: bool) -> bytes:
    if name == "localhost" or name.endswith(".localhost"):
        return _LOCAL.get(kind, b"")
    if kind == _A and ipv4:
        return address_v4(name)
    if kind == _AAAA and ipv6:
        return address_v6(name)
    return b""


def _question(query: bytes) -> tuple[str, int, int, int] | None:
    labels: list[str] = []
    at = _HEADER.size
    while True:
        if at >= len(query):
            return None
        size = query[at]
        at += 1
        if size == 0:
            break
        label = query[at : at + size]
        if size > _MAX_LABEL or len(label) != size or not label.isascii():
            return None
        labels.append(label.decode("ascii").lower())
        at += size
    if at + _QUESTION.size > len(query):
        return None
    kind, group = _QUESTION.unpack_from(query, at)
    return ".".join(labels), kind, group, at + _QUESTION.size


def _reply(
    ident: int, flags: int, question: bytes, code: int, kind: int = 0, data: bytes = b""
) -> bytes:
    bits = _RESPONSE | (flags & (_OPCODE | _RECURSION_DESIRED)) | _RECURSION_AVAILABLE | code
    head = _HEADER.pack(ident, bits, 1 if question else 0, 1 if data else 0, 0, 0)
    if not data:
        return head + question
    return head + question + _RECORD.pack(_NAME_POINTER, kind, _IN, TTL, len(data)) + data
