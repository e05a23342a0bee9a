"""The one form of a request path that is judged and sent.

A rule is worth something only if the path it judged is the path the upstream serves. So the path is brought into one form once:
decoded, dot segments resolved, doubled slashes collapsed, `;parameters` removed; the decision is taken on that and exactly that
is sent. What cannot be brought into one unambiguous form is refused.

The query is not canonicalised: it is sent as it came and parsed only for query matchers. Source: reference/openshell-gateway.md
c.4; RFC 3986 §§5.2.4, 6.2.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_to_bytes

MAX_PATH = 4096
"""Longest accepted path in bytes."""

_PLAIN = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+/?")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_RAW = re.compile(r"[!-~]+")
_KEEP = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,=:@")
_FIRST_PRINTABLE = 0x20
_DELETE = 0x7F


class PathError(ValueError):
    """A path or query without one unambiguous meaning; the message says what is wrong and never repeats it."""


@dataclass(frozen=True, slots=True)
class CanonicalPath:
    """`match` is decoded text for rules (an accepted encoded slash stays `%2F`); `wire` is what is sent."""

    match: str
    wire: str


@lru_cache(maxsize=2048)
def canonical_path(raw: str, *, allow_encoded_slash: bool = False) -> CanonicalPath:
    """Canonicalise the path part of a request target (no query). Raises PathError."""
    if len(raw) > MAX_PATH:
        raise PathError("the path is too long")
    if raw == "/" or _PLAIN.fullmatch(raw):
        return CanonicalPath(raw, raw)
    _check_raw(raw)
    kept: list[str] = []
    pieces = raw.split("/")[1:]
    directory = False
    for piece in pieces:
        segment = _segment(piece.split(";", 1)[0], allow_encoded_slash=allow_encoded_slash)
        directory = segment in ("", ".", "..")
        if segment == "..":
            if not kept:
                raise PathError("the path leaves the root")
            kept.pop()
        elif not directory:
            kept.append(segment)
    tail = "/" if directory and kept else ""
    match = "/" + "/".join(kept) + tail
    return CanonicalPath(match, "/" + "/".join(_encode(segment) for segment in kept) + tail)


def _check_raw(raw: str) -> None:
    if not raw.startswith("/"):
        raise PathError("the path does not start with a slash")
    if not _RAW.fullmatch(raw):
        raise PathError("the path has bytes that must be percent-encoded")
    if "\\" in raw or "#" in raw or "?" in raw:
        raise PathError("the path has a character that servers read differently")
    if _BAD_ESCAPE.search(raw):
        raise PathError("the path has an incomplete percent encoding")


def _segment(piece: str, *, allow_encoded_slash: bool) -> str:
    """Decode one segment once; refuse what a second reader could decode differently."""
    slashes = piece.upper().count("%2F")
    if slashes and not allow_encoded_slash:
        raise PathError("the path has an encoded slash")
    if not slashes:
        return _decode(piece)
    # Each part is decoded alone, so that a kept slash stays apart from one that was data.
    return "%2F".join(_decode(part, whole=False) for part in re.split("%2[Ff]", piece))


def _decode(piece: str, *, whole: bool = True) -> str:
    try:
        text = unquote_to_bytes(piece).decode("utf-8")
    except UnicodeDecodeError:
        raise PathError("the path is not UTF-8") from None
    if any(ord(c) < _FIRST_PRINTABLE or ord(c) == _DELETE for c in text):
        raise PathError("the path has a control character")
    if "\\" in text:
        raise PathError("the path has an encoded backslash")
    if not whole and text in (".", ".."):
        raise PathError("the path hides a dot segment beside an encoded slash")
    if ";" in text and text.split(";", 1)[0] in (".", ".."):
        raise PathError("the path hides a dot segment before a parameter")
    _refuse_hidden(text)
    return text


def _refuse_hidden(text: str) -> None:
    """Refuse a segment that a second decoding would turn into structure."""
    again = text
    while _ESCAPE.search(again):
        again = unquote_to_bytes(again).decode("latin-1")
        hidden = again.split(";", 1)[0] in (".", "..") or any(
            c in "/\\" or ord(c) < _FIRST_PRINTABLE for c in again
        )
        if hidden:
            raise PathError("the path is encoded twice and hides a separator or dot segment")


def _encode(segment: str) -> str:
    if "%2F" in segment:
        return "%2F".join(_encode(part) for part in segment.split("%2F"))
    return "".join(
        c if c in _KEEP else "".join(f"%{byte:02X}" for byte in c.encode("utf-8")) for c in segment
    )


def query_values(raw: str) -> dict[str, list[str]]:
    """Decode a query into key → values in order, `+` as space. Raises PathError."""
    values: dict[str, list[str]] = {}
    for piece in raw.split("&"):
        if not piece:
            continue
        if _BAD_ESCAPE.search(piece):
            raise PathError("the query has an incomplete percent encoding")
        key, _, value = piece.partition("=")
        values.setdefault(_query_text(key), []).append(_query_text(value))
    return values


def _query_text(piece: str) -> str:
    try:
        return unquote_to_bytes(piece.replace("+", " ")).decode("utf-8")
    except UnicodeDecodeError:
        raise PathError("the query is not UTF-8") from None
