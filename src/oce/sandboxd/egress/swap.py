"""Placeholders become credentials here, for the bound endpoint and nowhere else, or nothing is sent.

A Sandbox holds reserved texts instead of keys. A request that contains one leaves only if every occurrence was replaced by a
value bound to exactly this host, port and path for these programs over TLS; in header values (also inside Basic), in the path
and in the query. Bodies are never rewritten: a reserved text in a body stops the request (`BodyScanner`).

Source: reference/openshell-gateway.md c.8; cases BR-24; reference/fault-kinds.md 18, 19.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote_plus

from oce.policy.match import binary_matches, normal_host, path_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oce.sandboxd.egress.http1 import Fields
    from oce.sandboxd.egress.model import CredentialBinding

RESERVED = ("openshell:resolve:", "OPENSHELL-RESOLVE-ENV-")
"""Beginnings of placeholder texts; nothing that contains one ever leaves."""

UNAVAILABLE = "credential_unavailable"
MISMATCH = "credential_endpoint_mismatch"

_WORD = "A-Za-z0-9_"
_DECODINGS = 4


class SwapRefusedError(Exception):
    """The request must not be sent. `status` and `code` answer the client; the detail names no value."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail


class Values(Protocol):
    """Where values come from (`Vault`)."""

    def value(self, provider_id: str, key: str) -> str | None:
        """Return a value, None when it is not known."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a request goes: what a binding is compared with. `path` is the canonical path as rules see it."""

    host: str
    port: int
    path: str
    binaries: tuple[str, ...]
    encrypted: bool


@dataclass(frozen=True, slots=True)
class Message:
    """The parts of a request in which placeholders are replaced. `path` and `query` are in wire form."""

    fields: Fields
    path: str
    query: str


class Swapper:
    """The bindings of one Sandbox at one generation."""

    def __init__(self, bindings: Sequence[CredentialBinding], values: Values) -> None:
        self._values = values
        self._by_text: dict[str, list[CredentialBinding]] = {}
        for binding in bindings:
            self._by_text.setdefault(binding.placeholder, []).append(binding)
        self._bound = {
            (normal_host(endpoint.host), endpoint.port)
            for binding in bindings
            for endpoint in binding.endpoints
        }
        texts = sorted(self._by_text, key=len, reverse=True)
        self.marks = tuple(mark.encode() for mark in (*RESERVED, *texts))
        self._mark = re.compile(b"|".join(re.escape(mark) for mark in self.marks))
        whole = "|".join(re.escape(text) for text in texts) or "(?!)"
        loose = "|".join(_loose(text) for text in texts) or "(?!)"
        self._placeholder = re.compile(f"(?:{whole})(?![{_WORD}])")
        self._encoded = re.compile(f"(?:{loose})(?![{_WORD}])")

    def bound(self, host: str, port: int) -> bool:
        """Say whether some credential belongs to this host and port."""
        return (host, port) in self._bound

    def apply(self, message: Message, destination: Destination) -> Message:
        """Return the message with every placeholder replaced. Raises SwapRefusedError."""
        fields = message.fields
        if any(self._concerns(name, value) for name, value in fields):
            fields = [
                (name, self._field(name, value, destination))
                if self._concerns(name, value)
                else (name, value)
                for name, value in fields
            ]
        path, query = message.path, message.query
        if self._marked(path):
            path = self._placeholder.sub(self._quoted(destination), path)
            self._refuse_rest(path)
        if query and self._marked(query):
            query = self._encoded.sub(self._quoted(destination), query)
            self._refuse_rest(query)
        return Message(fields, path, query)

    def scanner(self) -> BodyScanner:
        """Return a scanner for one body."""
        return BodyScanner(self.marks)

    def _concerns(self, name: bytes, value: bytes) -> bool:
        if self._mark.search(value) or self._mark.search(name.upper()):
            return True
        return name == b"authorization" and value[:6].lower() == b"basic "

    def _marked(self, text: str) -> bool:
        """Look for a mark under every layer of percent encoding that somebody might undo."""
        for _ in range(_DECODINGS):
            if self._mark.search(text.encode("utf-8", "replace")):
                return True
            decoded = unquote_plus(text, errors="replace")
            if decoded == text:
                return False
            text = decoded
        return bool(self._mark.search(text.encode("utf-8", "replace")))

    def _refuse_rest(self, text: str) -> None:
        if self._marked(text):
            raise _unavailable("a placeholder of the request is not known here")

    def _field(self, name: bytes, value: bytes, destination: Destination) -> bytes:
        if self._mark.search(name.upper()):
            raise _unavailable("a placeholder stands where it cannot be replaced")
        plain = self._plain(destination)
        if self._mark.search(value):
            value = self._placeholder.sub(plain, value.decode("latin-1")).encode("latin-1")
        if name == b"authorization" and value[:6].lower() == b"basic ":
            value = self._basic(value, plain)
        if self._mark.search(value):
            raise _unavailable("a placeholder of the request is not known here")
        return value

    def _basic(self, value: bytes, plain: Callable[[re.Match[str]], str]) -> bytes:
        token = value[6:].strip()
        try:
            inside = base64.b64decode(token, validate=True)
        except (binascii.Error, ValueError):
            return value
        if not self._mark.search(inside):
            return value
        replaced = self._placeholder.sub(plain, inside.decode("latin-1")).encode("latin-1")
        if self._mark.search(replaced):
            raise _unavailable("a placeholder inside Basic credentials is not known here")
        return b"Basic " + base64.b64encode(replaced)

    def _plain(self, destination: Destination) -> Callable[[re.Match[str]], str]:
        return lambda match: self._value(match[0], destination)

    def _quoted(self, destination: Destination) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            text = unquote_plus(match[0])
            value = self._value(text, destination)
            if value in (".", "..", ""):
                raise _unavailable("the credential cannot stand in a path or query")
            return quote(value.encode("latin-1"), safe="")

        return replace

    def _value(self, text: str, destination: Destination) -> str:
        bindings = self._by_text.get(text, [])
        if not bindings:
            raise _unavailable("a placeholder of the request is not known here")
        fitting = [binding for binding in bindings if _fits(binding, destination)]
        if not fitting:
            raise SwapRefusedError(
                403, MISMATCH, "this credential is not bound to this endpoint and program"
            )
        if not destination.encrypted:
            raise SwapRefusedError(403, MISMATCH, "credentials are sent over TLS only")
        if len(fitting) > 1:
            raise _unavailable("two credentials claim this placeholder here")
        value = self._values.value(fitting[0].provider_id, fitting[0].credential_key)
        if value is None:
            raise _unavailable("the credential's value is not here")
        if any(c in value for c in "\r\n\0") or not _latin(value):
            raise _unavailable("the credential's value cannot be sent in HTTP")
        return value


def _fits(binding: CredentialBinding, destination: Destination) -> bool:
    if binding.binaries and not all(
        any(binary_matches(glob, binary) for glob in binding.binaries)
        for binary in destination.binaries
    ):
        return False
    return bool(destination.binaries) and any(
        (normal_host(endpoint.host), endpoint.port) == (destination.host, destination.port)
        and path_matches(endpoint.path, destination.path)
        for endpoint in binding.endpoints
    )


def _latin(value: str) -> bool:
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def _loose(text: str) -> str:
    """Match a text whose punctuation may be percent-encoded."""
    return "".join(
        c if c.isalnum() or c == "_" else f"(?:{re.escape(c)}|%{ord(c):02X}|%{ord(c):02x})"
        for c in text
    )


def _unavailable(detail: str) -> SwapRefusedError:
    return SwapRefusedError(500, UNAVAILABLE, detail)


class MarkFoundError(Exception):
    """A body contains a reserved text."""


class BodyScanner:
    """Looks for reserved texts in a stream, also across pieces; what could be the beginning of one is held back."""

    def __init__(self, marks: Sequence[bytes]) -> None:
        self._mark = re.compile(b"|".join(re.escape(mark) for mark in marks))
        self._marks = marks
        self._longest = max(len(mark) for mark in marks)
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what may be sent now. Raises MarkFoundError."""
        data = self._held + piece if self._held else piece
        if self._mark.search(data):
            raise MarkFoundError
        keep = self._beginning(data)
        self._held = data[len(data) - keep :] if keep else b""
        return data[: len(data) - keep] if keep else data

    def end(self) -> bytes:
        """Return what was held back, now that nothing follows."""
        rest, self._held = self._held, b""
        return rest

    def _beginning(self, data: bytes) -> int:
        for size in range(min(self._longest - 1, len(data)), 0, -1):
            tail = data[-size:]
            if any(mark.startswith(tail) for mark in self._marks):
                return size
        return 0
