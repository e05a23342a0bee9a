"""Sign-in of the Console: a browser session stands for one service key, in memory, for at most eight hours.

The cookie is a random number that means nothing elsewhere; the key stays in this process and is checked again at every request, so that
revoking it ends the session at once. A restart signs everybody out.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oce.domain.clock import Clock
    from oce.domain.secret import SecretText

COOKIE: Final = "__Host-occ_console"
LIFETIME_SECONDS: Final = 8 * 3600.0
SESSIONS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in browser. `form_token` must come back with every form (cross-site request forgery)."""

    key: SecretText
    form_token: str
    expires: float


class Sessions:
    """The sessions of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def open(self, key: SecretText) -> str:
        """Return the cookie value of a new session; the oldest one goes when there are too many."""
        self._forget_expired()
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        expires = self._clock.monotonic() + LIFETIME_SECONDS
        self._sessions[_name(cookie)] = Session(key, secrets.token_urlsafe(24), expires)
        return cookie

    def find(self, cookie: str | None) -> Session | None:
        """Return the live session of a cookie."""
        session = self._sessions.get(_name(cookie)) if cookie else None
        if session is None or session.expires <= self._clock.monotonic():
            return None
        return session

    def close(self, cookie: str | None) -> None:
        """End a session; absent is fine."""
        if cookie:
            self._sessions.pop(_name(cookie), None)

    def _forget_expired(self) -> None:
        now = self._clock.monotonic()
        self._sessions = {name: s for name, s in self._sessions.items() if s.expires > now}


def _name(cookie: str) -> str:
    """Return what the table is keyed by: a leaked table opens no session."""
    return hashlib.sha256(cookie.encode()).hexdigest()
