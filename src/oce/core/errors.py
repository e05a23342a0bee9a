"""How a use case says no, and the one mapping from any exception to what a caller may see.

CoreError                     carries a catalogue code, a public message and details
├── InvalidRequest            400; details name paths, never values
├── Unauthenticated           401
├── Forbidden                 403
├── NotFound                  404; absent, under another parent, or concealed
├── Conflict                  409; RESOURCE_CONFLICT or a more exact code of the catalogue
├── PreconditionFailed        412; `If-Match` names another generation
├── RateLimited               429; carries `retry_after` seconds
├── NotOffered                501; the selected Driver lacks the ability
└── Dependency                503; a Driver or the database did not answer as it should

Disclosure (reference/control-plane.md §2.4): a message beyond the catalogue's own sentence is given only after the caller's grant
and the look-up; everything earlier stays generic, so that 403 and 404 tell nothing.
"""

# ruff: noqa: N818 - an answer of a use case, not a malfunction

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import (
    ConfigurationRefused,
    Detail,
    DriverRefusal,
    NotVisible,
    UnsupportedByDriver,
)
from oce.domain.failures import CATALOGUE
from oce.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

MESSAGE_MAX: Final = 256
DETAILS_MAX: Final = 32


class CoreError(Exception):
    """Root of the tree. `code` is listed in the catalogue with an HTTP status."""

    default_code = "INTERNAL_ERROR"

    def __init__(
        self, message: str = "", *, code: str | None = None, details: Iterable[Detail] = ()
    ) -> None:
        self.code = code or self.default_code
        self.message = (message or CATALOGUE[self.code].message)[:MESSAGE_MAX]
        self.details = tuple(details)[:DETAILS_MAX]
        super().__init__(self.message)


class InvalidRequest(CoreError):
    """The request's content is not acceptable."""

    default_code = "INVALID_REQUEST"


class Unauthenticated(CoreError):
    """The service key does not authenticate anybody."""

    default_code = "UNAUTHENTICATED"


class Forbidden(CoreError):
    """No grant allows this."""

    default_code = "FORBIDDEN"


class NotFound(CoreError):
    """There is no such resource here."""

    default_code = "NOT_FOUND"


class Conflict(CoreError):
    """The resource's state does not allow this."""

    default_code = "RESOURCE_CONFLICT"


class PreconditionFailed(CoreError):
    """The generation in `If-Match` is not the current one."""

    default_code = "PRECONDITION_FAILED"


class RateLimited(CoreError):
    """Too many requests of one principal."""

    default_code = "RATE_LIMITED"

    def __init__(self, retry_after: int) -> None:
        super().__init__()
        self.retry_after = retry_after


class NotOffered(CoreError):
    """The selected Driver does not offer this."""

    default_code = "NOT_IMPLEMENTED"


class Dependency(CoreError):
    """A dependency did not answer as it should; whether it took effect is said in the message."""

    default_code = "DEPENDENCY_UNAVAILABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicError:
    """What the API and the Console show."""

    status: int
    code: str
    message: str
    details: tuple[Detail, ...] = ()
    hint: str = ""
    docs: str = ""
    retry_after: int | None = None


_FIXED: Final = (
    (UnsupportedByDriver, "NOT_IMPLEMENTED"),
    (NotVisible, "DEPENDENCY_UNAVAILABLE"),
)
"""Exceptions of the contracts that carry no code of their own."""


def public(error: BaseException) -> PublicError:
    """Map any exception to its public form. What is in no known tree becomes INTERNAL_ERROR and shows nothing of itself."""
    code, message, details = _shown(error)
    row = CATALOGUE[code]
    return PublicError(
        status=row.http or 500,
        code=code,
        message=message or row.message,
        details=details[:DETAILS_MAX],
        hint=row.hint,
        docs=row.docs,
        retry_after=error.retry_after if isinstance(error, RateLimited) else None,
    )


def _shown(error: BaseException) -> tuple[str, str, tuple[Detail, ...]]:
    """Return (code, message or "", details)."""
    if isinstance(error, CoreError):
        return error.code, error.message, error.details
    if isinstance(error, StoreError):
        return error.code, "", ()
    if isinstance(error, ConfigurationRefused):
        return "INVALID_REQUEST", str(error)[:MESSAGE_MAX], tuple(error.details)
    if isinstance(error, DriverRefusal):
        row = CATALOGUE[error.code]
        return error.code if row.http else "DEPENDENCY_UNAVAILABLE", row.message, ()
    code = next((code for kind, code in _FIXED if isinstance(error, kind)), "INTERNAL_ERROR")
    return code, "", ()
