"""What the gateway answered wrong, as closed values, and what OCC makes of it.

A `GatewayFailure` holds the method, the status name and one fixed category; never supplier text (mission document 003). The
driver's edge turns it into the contract's refusals with `refusals()`; namespace members use `namespace_refusals()`, because a
refused identity has another name there.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from oce.contracts.refusals import (
    DriverRefusal,
    GatewayUnauthorized,
    NamespaceRefused,
    RevisionUnsupported,
    TransientDependency,
)
from oce.domain.failures import Tempo

if TYPE_CHECKING:
    from collections.abc import Iterator


class Category(StrEnum):
    """The fixed categories of a gateway failure."""

    UNAVAILABLE = "unavailable"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    PRECONDITION = "precondition"
    CONFLICT = "conflict"
    LIMIT = "limit"
    REFUSED = "refused"
    PROTOCOL = "protocol"
    OTHER = "other"


REPLAY_REASONS = frozenset(
    ("REQUEST_OUTCOME_UNCERTAIN", "REQUEST_ID_PAYLOAD_MISMATCH", "REQUEST_REPLAY_UNAVAILABLE")
)
"""ErrorInfo reasons that say: this request id cannot be used again (reference/openshell-gateway.md a.5)."""
CONFINEMENT_REASON = "CONFINEMENT_UNAVAILABLE"
"""ErrorInfo reason of a gateway whose machine lacks a right that confinement needs (sandboxd)."""
_KNOWN_REASONS = REPLAY_REASONS | {
    CONFINEMENT_REASON,
    "RESOURCE_VERSION_CONFLICT",
    "INVALID_ARGUMENT",
}


class GatewayFailure(Exception):  # noqa: N818 - the reference's word for a failed call
    """One failed call: method, status name, category, and the ErrorInfo reason when it is one of the known ones."""

    def __init__(
        self, method: str, status: str, category: Category, reason: str | None = None
    ) -> None:
        super().__init__(f"{method} failed with {status} ({category})")
        self.method = method
        self.status = status
        self.category = category
        self.reason = reason if reason in _KNOWN_REASONS else None

    @property
    def replay_refused(self) -> bool:
        """Whether the request id is spent and its outcome unusable."""
        return self.category is Category.PRECONDITION and self.reason in REPLAY_REASONS


def protocol(method: str, problem: str) -> GatewayFailure:
    """Return the failure of an answer that breaks the protocol; `problem` is one of our own words."""
    return GatewayFailure(method, f"an unusable answer: {problem}", Category.PROTOCOL)


def refusal_of(failure: GatewayFailure) -> DriverRefusal:
    """Return the contract's refusal for a failure that nobody handled nearer."""
    text = str(failure)
    match failure.category:
        case Category.UNAVAILABLE:
            return TransientDependency("SANDBOX_GATEWAY_UNAVAILABLE", text)
        case Category.LIMIT:
            return TransientDependency("SANDBOX_ADMISSION_LIMIT_REACHED", text)
        case Category.UNAUTHENTICATED:
            return GatewayUnauthorized(transient=True)
        case Category.FORBIDDEN:
            return GatewayUnauthorized(transient=False)
        case Category.PRECONDITION if failure.reason == CONFINEMENT_REASON:
            return RevisionUnsupported("SANDBOX_CONFINEMENT_UNAVAILABLE", text)
        case _:
            return DriverRefusal("DEPENDENCY_UNAVAILABLE", Tempo.RETRY, text)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn gateway failures into the contract's refusals."""
    try:
        yield
    except GatewayFailure as failure:
        raise refusal_of(failure) from failure


@contextmanager
def namespace_refusals() -> Iterator[None]:
    """Like `refusals`, for namespace members: a refused identity is permanent there (mission document 003)."""
    try:
        yield
    except GatewayFailure as failure:
        if failure.category in {Category.UNAUTHENTICATED, Category.FORBIDDEN}:
            raise NamespaceRefused(failure.status) from failure
        raise refusal_of(failure) from failure
    except GatewayUnauthorized as refusal:
        code = "UNAUTHENTICATED" if refusal.tempo is Tempo.RETRY else "PERMISSION_DENIED"
        raise NamespaceRefused(code) from refusal
