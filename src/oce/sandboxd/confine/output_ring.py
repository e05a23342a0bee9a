"""The last lines that a Sandbox's main process wrote: bounded, so that a workload cannot fill the host.

Kept in the keeper, because a new gateway wants them. A line is (sequence number, stream, bytes without the newline). Pure.
"""

from __future__ import annotations

import collections
import struct

MAX_LINES = 2000
MAX_BYTES = 1024 * 1024
MAX_LINE = 16 * 1024
"""A longer line is cut into pieces of this many bytes."""

_FRAME = struct.Struct("=IB")


class OutputRing:
    """A ring of lines with one unfinished line per stream."""

    def __init__(self) -> None:
        self._lines: collections.deque[tuple[int, bytes]] = collections.deque()
        self._partial = {1: b"", 2: b""}
        self._bytes = 0
        self._first = 0

    @property
    def end(self) -> int:
        """Sequence number of the next line."""
        return self._first + len(self._lines)

    def feed(self, stream: int, data: bytes) -> None:
        """Take what a stream delivered."""
        *complete, rest = (self._partial[stream] + data).split(b"\n")
        for line in complete:
            self._add_cut(stream, line)
        while len(rest) > MAX_LINE:
            self._add(stream, rest[:MAX_LINE])
            rest = rest[MAX_LINE:]
        self._partial[stream] = rest

    def finish(self, stream: int) -> None:
        """Note the end of a stream: its unfinished line is a line."""
        if self._partial[stream]:
            self._add(stream, self._partial[stream])
            self._partial[stream] = b""

    def _add_cut(self, stream: int, line: bytes) -> None:
        for start in range(0, max(len(line), 1), MAX_LINE):
            self._add(stream, line[start : start + MAX_LINE])

    def _add(self, stream: int, line: bytes) -> None:
        self._lines.append((stream, line))
        self._bytes += len(line)
        while len(self._lines) > MAX_LINES or self._bytes > MAX_BYTES:
            self._bytes -= len(self._lines.popleft()[1])
            self._first += 1

    def since(self, sequence: int) -> tuple[int, int, bytes] | None:
        """Return the oldest kept line at or after `sequence` as (its number, stream, line), or None."""
        number = max(sequence, self._first)
        if number >= self.end:
            return None
        stream, line = self._lines[number - self._first]
        return number, stream, line

    def pack(self) -> bytes:
        """Return all lines as one byte string, for the time after the keeper."""
        return b"".join(_FRAME.pack(len(line), stream) + line for stream, line in self._lines)


def unpack(data: bytes) -> list[tuple[int, bytes]]:
    """Return the (stream, line) pairs of a packed ring; a cut tail is ignored."""
    lines = []
    offset = 0
    while offset + _FRAME.size <= len(data):
        length, stream = _FRAME.unpack_from(data, offset)
        offset += _FRAME.size
        if offset + length > len(data):
            break
        lines.append((stream, data[offset : offset + length]))
        offset += length
    return lines
