"""What can go wrong between a caller and the control plane.

ClientError
├── ContextError        no usable context: nothing says where the API is or which key to send
├── Unreachable         nothing that speaks for the API answered; whether a change took effect may be unknown
├── Refused             the API answered with its error shape
├── AmbiguousName       a name is not unique or not there
└── TurnFailed          the Agent Gateway reported that a turn failed
"""

from __future__ import annotations

from dataclasses import dataclass


class ClientError(Exception):
    """Base of the tree; `hint` says what to do next."""

    hint: str = ""


class ContextError(ClientError):
    """No context, or an unreadable one."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Unreachable(ClientError):  # noqa: N818 # it is a state of the network, read as such by callers
    """No answer. `sent` says that the request may have taken effect."""

    def __init__(self, message: str, *, sent: bool = False, hint: str = "") -> None:
        super().__init__(message)
        self.sent = sent
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """Where a request was wrong."""

    path: str
    code: str


class Refused(ClientError):  # noqa: N818 # the API's answer, not a malfunction
    """The API (or the Agent Gateway) refused."""

    def __init__(
        self,
        *,
        status: int,
        code: str,
        message: str,
        hint: str = "",
        docs: str = "",
        request_id: str = "",
        retry_after: str = "",
        details: tuple[ErrorDetail, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.docs = docs
        self.request_id = request_id
        self.retry_after = retry_after
        self.details = details


class AmbiguousName(ClientError):  # noqa: N818 # reads as what it says
    """A name matches no resource, or more than one. `found` counts them."""

    def __init__(self, kind: str, name: str, found: int) -> None:
        what = "no" if found == 0 else f"{found}"
        super().__init__(f"There {'are' if found > 1 else 'is'} {what} {kind} named {name!r}.")
        self.found = found
        self.hint = "Give its id." if found else ""


class TurnFailed(ClientError):  # noqa: N818 # the turn's outcome, read as such by callers
    """A turn ended with a typed failure."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
