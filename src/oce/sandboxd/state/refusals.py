"""What the gateway refuses, as one value: status, sentence, and the machine-readable reason.

Rules in `state`, `lifecycle` and `api` raise a `Refusal`; the RPC layer alone turns it into a gRPC status with
`google.rpc` details (reference/openshell-gateway.md a.7). A refusal is *definite*: nothing was changed, so the request id of
the refused mutation is free again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOMAIN = "openshell.nvidia.com"
"""`ErrorInfo.domain` that clients of the protocol compare with."""


class Status(StrEnum):
    """Names of the gRPC status codes that the gateway answers with."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"


class Reason(StrEnum):
    """`ErrorInfo.reason` words."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    VERSION_CONFLICT = "RESOURCE_VERSION_CONFLICT"
    PAYLOAD_MISMATCH = "REQUEST_ID_PAYLOAD_MISMATCH"
    OUTCOME_UNCERTAIN = "REQUEST_OUTCOME_UNCERTAIN"
    REPLAY_UNAVAILABLE = "REQUEST_REPLAY_UNAVAILABLE"
    STREAM_UNAVAILABLE = "REQUEST_STREAM_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request and what is wrong with it; never the offending value."""

    field: str
    problem: str


@dataclass(slots=True, eq=False)
class Refusal(Exception):  # noqa: N818 - the word of the house for a typed no
    """A request that is not carried out."""

    status: Status
    message: str
    reason: Reason | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: Sequence[Violation] = ()
    retry_after: float | None = None

    def __post_init__(self) -> None:
        Exception.__init__(self, self.message)


def invalid(where: str, problem: str) -> Refusal:
    """Return INVALID_ARGUMENT for one field."""
    return Refusal(
        Status.INVALID_ARGUMENT,
        f"{where}: {problem}",
        reason=Reason.INVALID_ARGUMENT,
        violations=(Violation(where, problem),),
    )


def missing(kind: str, name: str) -> Refusal:
    """Return NOT_FOUND in the words clients know (`sandbox 'x' not found`)."""
    return Refusal(Status.NOT_FOUND, f"{kind} '{name}' not found")


def precondition(message: str) -> Refusal:
    """Return FAILED_PRECONDITION."""
    return Refusal(Status.FAILED_PRECONDITION, message)


def conflict(current: int) -> Refusal:
    """Return ABORTED for a lost compare-and-swap (reference/openshell-gateway.md a.6)."""
    return Refusal(
        Status.ABORTED,
        f"resource version conflict: the current version is {current}",
        reason=Reason.VERSION_CONFLICT,
        metadata={"recovery": "REFRESH_STATE", "current_resource_version": str(current)},
    )
