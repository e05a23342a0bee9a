"""A strict HTTP/1.1 reader: heads and bodies that have one meaning, or an error.

Two readers that disagree about where a message ends are a hole, so everything ambiguous is refused: both lengths, a repeated
length, other transfer codings, folded lines, bare line feeds, spaces before colons, nominated end-to-end fields. Bodies come out
decoded and go on re-framed, so no foreign framing is passed through. RFC 9112; cases BR-26, reference/fault-kinds.md 16.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oce.sandboxd.egress.pipe import BrokenPipeEnd

if TYPE_CHECKING:
    from oce.sandboxd.egress.pipe import Pipe

MAX_REQUEST_HEAD = 16 * 1024
MAX_RESPONSE_HEAD = 64 * 1024
MAX_FIELDS = 128
MAX_CHUNK_LINE = 256
MAX_TRAILERS = 8 * 1024

CHUNKED = -1
UNTIL_END = -2

Fields = list[tuple[bytes, bytes]]

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([!-~]+) HTTP/1\.([01])")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t -~\x80-\xff]*))?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_BARE_FEED = re.compile(rb"(?<!\r)\n")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?")
_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"upgrade",
        b"transfer-encoding",
        b"alt-svc",
    }
)
_END_TO_END = frozenset(
    {
        b"host",
        b"authorization",
        b"content-length",
        b"content-type",
        b"content-encoding",
        b"cookie",
        b"expect",
    }
)
_NO_TRAILER = _HOP | _END_TO_END | {b"trailer", b"set-cookie"}


class HttpError(Exception):
    """A message that must not be passed on; `status` answers a client, the text says what is wrong without repeating it."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem


@dataclass(slots=True, kw_only=True)
class RequestHead:
    """A request as it was read: upper-case method, raw target, lower-case field names, hop-by-hop fields removed.

    `body` is a length, CHUNKED, or 0; `old` means HTTP/1.0, which has no chunks; `upgrade` the lower-case protocol asked for ("" if none).
    """

    method: str
    target: str
    fields: Fields
    host: str
    body: int
    old: bool
    keep_alive: bool
    expects_continue: bool
    upgrade: str


@dataclass(slots=True, kw_only=True)
class ResponseHead:
    """A response as it was read; `body` may be UNTIL_END."""

    status: int
    reason: bytes
    fields: Fields
    body: int
    keep_alive: bool
    upgrade: str


async def read_head(pipe: Pipe, limit: int, first: float, whole: float) -> bytes | None:
    """Return the bytes up to the empty line, None when the peer ended between messages.

    `first` seconds for the first byte, `whole` for the rest. Raises HttpError, TimeoutError, BrokenPipeEnd.
    """
    while not pipe.buffer:
        if not await pipe.more(first):
            return None
    while True:
        end = pipe.buffer.find(b"\r\n\r\n")
        if 0 <= end <= limit:
            head = pipe.take(end + 4)
            return head[:-4]
        if end > limit or len(pipe.buffer) > limit:
            raise HttpError(431, "the header block is too large")
        if _BARE_FEED.search(pipe.buffer):
            raise HttpError(400, "a line ends without carriage return")
        if not await pipe.more(whole):
            raise BrokenPipeEnd("the peer ended inside a header block")


def parse_request(head: bytes) -> RequestHead:
    """Parse a head without its empty line. Raises HttpError."""
    lines = head.removeprefix(b"\r\n").split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        raise HttpError(400, "the request line is malformed")
    fields = _fields(lines[1:])
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) != 1:
        raise HttpError(400, "there is not exactly one Host")
    old = match[3] == b"0"
    nominated = _nominated(fields)
    body = _framing(fields, response=False)
    if old and body == CHUNKED:
        raise HttpError(400, "HTTP/1.0 has no chunked bodies")
    upgrade = _upgrade(fields, nominated)
    if upgrade and body:
        raise HttpError(400, "an upgrade request has a body")
    return RequestHead(
        method=match[1].decode("ascii").upper(),
        target=match[2].decode("ascii"),
        fields=_end_to_end(fields, nominated),
        host=hosts[0].decode("latin-1"),
        body=body,
        old=old,
        keep_alive=b"close" not in nominated and not old,
        expects_continue=_expects(fields),
        upgrade=upgrade,
    )


def parse_response(head: bytes, method: str) -> ResponseHead:
    """Parse a response head to a request with this method. Raises HttpError."""
    lines = head.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(lines[0])
    if match is None:
        raise HttpError(502, "the status line is malformed")
    fields = _fields(lines[1:])
    status = int(match[2])
    nominated = _nominated(fields)
    body = _framing(fields, response=True)
    if method == "HEAD" or status in (204, 304) or status < 200:  # noqa: PLR2004 - HTTP's own numbers
        body = 0
    return ResponseHead(
        status=status,
        reason=match[3] or b"",
        fields=_end_to_end(fields, nominated),
        body=body,
        keep_alive=match[1] == b"1" and b"close" not in nominated and body != UNTIL_END,
        upgrade=_upgrade(fields, nominated),
    )


def _fields(lines: list[bytes]) -> Fields:
    if len(lines) > MAX_FIELDS:
        raise HttpError(431, "there are too many header fields")
    fields: Fields = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise HttpError(400, "a header field is malformed")
        fields.append((match[1].lower(), match[2]))
    return fields


def _listed(fields: Fields, name: bytes) -> list[bytes]:
    return [
        item.strip(b" \t").lower()
        for field, value in fields
        if field == name
        for item in value.split(b",")
        if item.strip(b" \t")
    ]


def _nominated(fields: Fields) -> frozenset[bytes]:
    nominated = frozenset(_listed(fields, b"connection"))
    if nominated & _END_TO_END:
        raise HttpError(400, "Connection names a field that belongs to the message")
    return nominated


def _framing(fields: Fields, *, response: bool) -> int:
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = _listed(fields, b"transfer-encoding")
    if codings:
        if lengths:
            raise HttpError(400, "there are both Content-Length and Transfer-Encoding")
        if codings != [b"chunked"]:
            raise HttpError(400, "the transfer coding is not chunked")
        return CHUNKED
    if any(name == b"transfer-encoding" for name, _ in fields):
        raise HttpError(400, "Transfer-Encoding is empty")
    if not lengths:
        return UNTIL_END if response else 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise HttpError(400, "Content-Length is repeated or malformed")
    return int(lengths[0])


def _upgrade(fields: Fields, nominated: frozenset[bytes]) -> str:
    if b"upgrade" not in nominated:
        return ""
    asked = _listed(fields, b"upgrade")
    # Only the one protocol that becomes a plain byte stream; h2c and the like are simply not taken up.
    return "websocket" if asked == [b"websocket"] else ""


def _expects(fields: Fields) -> bool:
    expected = _listed(fields, b"expect")
    if expected and expected != [b"100-continue"]:
        raise HttpError(417, "the expectation is not known")
    return bool(expected)


def _end_to_end(fields: Fields, nominated: frozenset[bytes]) -> Fields:
    return [(n, v) for n, v in fields if n not in _HOP and n not in nominated]


def render_fields(fields: Fields) -> bytes:
    """Return the field lines, each ended."""
    return b"".join([n + b": " + v + b"\r\n" for n, v in fields])


class BodyReader:
    """Reads one body off a pipe, decoded. `trailers` are known after the end."""

    def __init__(self, pipe: Pipe, framing: int, timeout: float) -> None:
        self._pipe = pipe
        self._left = max(framing, 0)
        self._framing = framing
        self._timeout = timeout
        self._in_chunk = False
        self.trailers: Fields = []
        self.done = framing == 0

    async def read(self) -> bytes:
        """Return the next piece as soon as there is one, b"" at the end.

        Raises BrokenPipeEnd for a cut-off body, HttpError for malformed framing, TimeoutError.
        """
        while not self.done:
            piece = self.buffered()
            if piece or self.done:
                return piece
            if not await self._pipe.more(self._timeout):
                if self._framing == UNTIL_END and not self._pipe.broken:
                    self.done = True
                    break
                raise BrokenPipeEnd("the body was cut off")
        return b""

    def buffered(self) -> bytes:
        """Return what is already here, decoded; b"" when nothing is (or the body is over: see `done`)."""
        if self._framing == UNTIL_END:
            return self._pipe.take(len(self._pipe.buffer))
        if self._framing != CHUNKED:
            piece = self._pipe.take(self._left)
            self._left -= len(piece)
            self.done = self._left == 0
            return piece
        return self._chunks()

    def _chunks(self) -> bytes:
        pieces: list[bytes] = []
        while self._pipe.buffer and not self.done:
            if self._left:
                piece = self._pipe.take(self._left)
                self._left -= len(piece)
                pieces.append(piece)
            elif not self._frame():
                break
        return b"".join(pieces)

    def _frame(self) -> bool:
        """Consume framing bytes at the start of the buffer; False when more are needed."""
        buffer = self._pipe.buffer
        if self._in_chunk:
            if len(buffer) < len(b"\r\n"):
                return False
            if self._pipe.take(2) != b"\r\n":
                raise HttpError(400, "a chunk is longer than it says")
            self._in_chunk = False
            return True
        end = buffer.find(b"\r\n", 0, MAX_CHUNK_LINE)
        if end < 0:
            if len(buffer) >= MAX_CHUNK_LINE or b"\n" in buffer:
                raise HttpError(400, "a chunk size is malformed")
            return False
        match = _CHUNK.fullmatch(bytes(buffer[:end]))
        if match is None:
            raise HttpError(400, "a chunk size is malformed")
        self._left = int(match[1], 16)
        if self._left:
            self._pipe.take(end + 2)
            self._in_chunk = True
            return True
        return self._end(end + 2)

    def _end(self, at: int) -> bool:
        buffer = self._pipe.buffer
        if buffer[at : at + 2] == b"\r\n":
            self._pipe.take(at + 2)
            self.done = True
            return True
        end = buffer.find(b"\r\n\r\n", at)
        if end < 0:
            if len(buffer) - at > MAX_TRAILERS:
                raise HttpError(431, "the trailers are too large")
            return False
        self.trailers = _fields(bytes(buffer[at:end]).split(b"\r\n"))
        if any(name in _NO_TRAILER for name, _ in self.trailers):
            raise HttpError(400, "a trailer is not allowed there")
        self._pipe.take(end + 4)
        self.done = True
        return True


def frame(piece: bytes, framing: int) -> bytes:
    """Return a body piece as it goes out under this framing."""
    return b"%x\r\n%b\r\n" % (len(piece), piece) if framing == CHUNKED else piece


def frame_end(framing: int, trailers: Fields) -> bytes:
    """Return what ends the body under this framing."""
    return b"0\r\n" + render_fields(trailers) + b"\r\n" if framing == CHUNKED else b""
