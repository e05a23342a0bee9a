"""A secret value that hides itself.

Every secret travels in this type from the edge that reads it to the edge that uses it, so that a log line, an error text or a
debugger's `repr` shows a marker instead. It protects against accidents, not against code that asks for the value.
"""

from __future__ import annotations

import hmac
from typing import Final, NoReturn, final

_MARKER: Final = "SecretText(***)"


@final
class SecretText:
    """An immutable secret string; `reveal()` is the only way to the value."""

    __slots__ = ("_value",)
    _value: str

    def __init__(self, value: str) -> None:
        object.__setattr__(self, "_value", value)

    def reveal(self) -> str:
        """Return the value. Call it only at the edge that sends it to its audience."""
        return self._value

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} of a SecretText cannot be set")

    def __repr__(self) -> str:
        return _MARKER

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        return _MARKER

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SecretText):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> NoReturn:
        raise TypeError("a SecretText is not hashable")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecretText cannot be pickled")

    def __len__(self) -> int:
        return len(self._value)
