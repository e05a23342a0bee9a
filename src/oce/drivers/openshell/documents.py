"""Reading a closed configuration document: every error names a path and a kind, never a value.

Used for the Driver's, the Credential Gateway's and the Backend's blocks of the startup YAML. It collects one error at a time: the
operator mends a file top-down, and the first offender in document order is the one that is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from oce.contracts.refusals import ConfigurationRefused, Detail

_PEM_LINE: Final = "-----BEGIN CERTIFICATE-----"
Document = dict[str, Any]
"""A plain JSON-like mapping."""


def refuse(path: str, code: str, note: str = "") -> NoReturn:
    """Raise ConfigurationRefused for one place of the document."""
    raise ConfigurationRefused(Detail(path, code, note))


class Block:
    """One mapping of a document; what was not taken by `finish` is unknown and refused."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            refuse(path, "INVALID_TYPE", "an object")
        self._left: Document = dict(value)
        self.path = path

    def at(self, key: str) -> str:
        """Return the JSON Pointer of a key."""
        return f"{self.path}/{key.replace('~', '~0').replace('/', '~1')}"

    def has(self, key: str) -> bool:
        """Tell whether the key is there and not taken yet."""
        return key in self._left

    def take(self, key: str) -> object:
        """Return and mark a key; None when absent."""
        return self._left.pop(key, None)

    def block(self, key: str) -> Block:
        """Return a required inner mapping."""
        if key not in self._left:
            refuse(self.at(key), "REQUIRED")
        return Block(self.take(key), self.at(key))

    def optional_block(self, key: str) -> Block | None:
        """Return an inner mapping, or None when it is absent."""
        return self.block(key) if key in self._left else None

    def items(self, key: str) -> list[tuple[object, str]]:
        """Return the elements of an optional list, each with its path."""
        value = self.take(key)
        if value is None:
            return []
        if not isinstance(value, list):
            refuse(self.at(key), "INVALID_TYPE", "a list")
        return [(item, f"{self.at(key)}/{index}") for index, item in enumerate(value)]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a nonempty text without NUL; required unless a default is given."""
        if key not in self._left:
            if default is None:
                refuse(self.at(key), "REQUIRED")
            return default
        return text(self.take(key), self.at(key))

    def optional_text(self, key: str) -> str | None:
        """Return a nonempty text, or None when absent."""
        return self.text(key) if key in self._left else None

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        """Return a boolean; required unless a default is given."""
        if key not in self._left:
            if default is None:
                refuse(self.at(key), "REQUIRED")
            return default
        value = self.take(key)
        if not isinstance(value, bool):
            refuse(self.at(key), "INVALID_TYPE", "true or false")
        return value

    def number(self, key: str, low: int, high: int, default: int | None = None) -> int | None:
        """Return an integer within bounds, or the default when absent."""
        if key not in self._left:
            return default
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(self.at(key), "INVALID_TYPE", "an integer")
        if not low <= value <= high:
            refuse(self.at(key), "INVALID_VALUE", f"{low}..{high}")
        return value

    def choice(self, key: str, allowed: Mapping[str, str], default: str | None = None) -> str:
        """Return the meaning of a spelling; only exact keys of `allowed` count (no inherited names)."""
        if key not in self._left and default is not None:
            return default
        spelling = self.text(key)
        if spelling not in allowed:
            refuse(self.at(key), "INVALID_VALUE", f"one of {', '.join(allowed)}")
        return allowed[spelling]

    def finish(self) -> None:
        """Refuse every key that nobody took."""
        for key in self._left:
            refuse(self.at(key), "UNKNOWN_FIELD")


def text(value: object, path: str) -> str:
    """Return a nonempty text without NUL, or refuse."""
    if not isinstance(value, str):
        refuse(path, "INVALID_TYPE", "a text")
    if not value.strip() or "\0" in value:
        refuse(path, "INVALID_FORMAT", "nonempty, without NUL")
    return value


def absolute_path(value: str, path: str) -> str:
    """Return a normalized absolute path other than the root, or refuse."""
    parts = value.split("/")
    if not value.startswith("/") or value == "/" or any(p in {"", ".", ".."} for p in parts[1:]):
        refuse(path, "INVALID_FORMAT", "a normalized absolute path")
    return value


def certificates(pem: str) -> str:
    """Return the CERTIFICATE blocks of a PEM text, nothing else: never a key. Pure."""
    blocks: list[str] = []
    inside = False
    for line in pem.splitlines():
        inside = inside or line.strip() == _PEM_LINE
        if inside:
            blocks.append(line.strip())
        if line.strip() == "-----END CERTIFICATE-----":
            inside = False
    return "\n".join(blocks) + "\n" if blocks else ""
