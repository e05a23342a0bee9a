"""Rules of Secrets, pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.contracts.refusals import Detail
from oce.domain.resources import SECRET_MAX_BYTES

if TYPE_CHECKING:
    from oce.domain.secret import SecretText


def value_problems(value: SecretText) -> tuple[Detail, ...]:
    """Return what is wrong with a value (1…65,536 UTF-8 bytes, no NUL); never the value."""
    text = value.reveal()
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return (Detail("/value", "INVALID_VALUE", "not valid UTF-8"),)
    if size == 0:
        return (Detail("/value", "REQUIRED"),)
    if size > SECRET_MAX_BYTES:
        return (Detail("/value", "TOO_LONG", f"at most {SECRET_MAX_BYTES} bytes"),)
    if "\x00" in text:
        return (Detail("/value", "INVALID_FORMAT", "contains NUL"),)
    return ()
