"""Who calls: the client certificate's holder, or whoever shows the control plane's token. There is no third way.

The front door has verified the certificate and forwards the connection to one of two private sockets, so the socket *is* the
evidence; a bearer token is compared in constant time on each call.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from oce.sandboxd.state.refusals import Refusal, Status

if TYPE_CHECKING:
    from collections.abc import Iterable


class Door(StrEnum):
    """Which private socket a connection came through."""

    CERTIFIED = "certified"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller; `key` separates the request ids of different callers."""

    subject: str
    display_name: str
    identity_provider: str
    platform_admin: bool

    @property
    def key(self) -> str:
        """Identity as ledger text."""
        return f"{self.identity_provider}:{self.subject}"

    def may_enter(self, _workspace: str) -> bool:
        """Whether this caller is a member of a workspace; platform admins are members of all."""
        return self.platform_admin


USER = Principal("local-user", "Local user", "mtls", platform_admin=True)
CONTROL_PLANE = Principal("control-plane", "Control plane", "token", platform_admin=True)


class Authenticator:
    """Turns a door and call metadata into a principal."""

    def __init__(self, token: str) -> None:
        self._expected = token.encode()

    def __repr__(self) -> str:
        return "Authenticator()"

    def principal(self, door: Door, metadata: Iterable[tuple[str, str | bytes]]) -> Principal:
        """Return the caller. Raises Refusal UNAUTHENTICATED; a wrong token is refused even beside a certificate."""
        shown = [value for key, value in metadata if key == "authorization"]
        if shown:
            if len(shown) == 1 and self._matches(shown[0]):
                return CONTROL_PLANE
            raise Refusal(Status.UNAUTHENTICATED, "the authorization is not accepted")
        if door is Door.CERTIFIED:
            return USER
        raise Refusal(
            Status.UNAUTHENTICATED, "a client certificate or the control plane's token is required"
        )

    def _matches(self, shown: str | bytes) -> bool:
        value = shown if isinstance(shown, bytes) else shown.encode()
        scheme, _, token = value.partition(b" ")
        return hmac.compare_digest(token, self._expected) and scheme.lower() == b"bearer"
