"""Splicing one client to one Harness.

Bytes go through as they come. Beside them two scanners find message boundaries, so that turns are counted (:mod:`ledger`) and a close
frame can be put between two frames. A client that leaves while its turn runs does not end the turn: the Harness side stays until the turn
is over, because a successor must not start beside it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING

from oce.agentgw.frames import FrameError, FrameScanner, close_frame, text_frame
from oce.agentgw.ledger import TurnLedger

if TYPE_CHECKING:
    from collections.abc import Callable

NORMAL = 1000
SERVICE_RESTART = 1012  # IANA WebSocket close codes
CLOSE_WAIT_SECONDS = 1.0
ORPHAN_SECONDS = 3600.0


class Tunnel:
    """One relayed connection; an Occupant of its lease. ``on_end`` is called once, when nothing is left of it."""

    def __init__(
        self,
        client: asyncio.Transport,
        harness: asyncio.Transport,
        *,
        on_end: Callable[[], None],
    ) -> None:
        self._client = client
        self._harness = harness
        self._on_end = on_end
        self._from_client = FrameScanner(masked=True)
        self._from_harness = FrameScanner(masked=False)
        self._ledger = TurnLedger()
        self._draining = False
        self._client_gone = False
        self._closing: tuple[int, str] | None = None
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def turns(self) -> int:
        """How many turns are not finished."""
        return self._ledger.count

    def client_data(self, data: bytes) -> None:
        """Forward bytes of the client."""
        if self._closing is not None or self._ended:
            return
        try:
            for message in self._from_client.feed(data):
                self._ledger.from_client(message)
        except FrameError as error:
            self._close(error.code, "")
            return
        if self._from_client.close_bytes and self._ledger.count:
            self._say_goodbye()
        else:
            self._harness.write(data)

    def harness_data(self, data: bytes) -> None:
        """Forward bytes of the Harness."""
        if self._ended:
            return
        if not self._client_gone:
            self._client.write(data)
        try:
            for message in self._from_harness.feed(data):
                self._ledger.from_server(message)
        except FrameError:
            self._end()
            return
        if self._closing is not None:
            self._close_at_boundary()
        elif not self._ledger.count and (self._draining or self._client_gone):
            self._close(SERVICE_RESTART, "revision switched")

    def _say_goodbye(self) -> None:
        """Answer the client's close frame ourselves: the Harness must not see it while the turn runs."""
        self._client_gone = True
        if self._from_harness.at_boundary:
            self._client.write(close_frame(NORMAL, ""))
        self._client.close()

    def client_lost(self) -> None:
        """Notice that the client left."""
        self._client_gone = True
        if not self._ledger.count or self._closing is not None:
            self._end()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ORPHAN_SECONDS, self._end)

    def harness_lost(self) -> None:
        """Notice that the Harness left: the client may come back and find it restarted."""
        if self._closing is None and not self._ended:
            self._ledger = TurnLedger()
            self._close(SERVICE_RESTART, "harness restarted")

    def hold_client(self, hold: bool) -> None:
        """Stop or resume reading the client while the Harness cannot take more."""
        _hold(self._client, hold)

    def hold_harness(self, hold: bool) -> None:
        """Stop or resume reading the Harness while the client cannot take more."""
        _hold(self._harness, hold)

    def drain(self) -> None:
        """End as soon as no turn runs."""
        self._draining = True
        if not self._ledger.count:
            self._close(SERVICE_RESTART, "revision switched")

    def interrupt(self) -> None:
        """Ask the Harness to stop each running turn, between two frames of the client."""
        if not self._from_client.at_boundary or self._harness.is_closing():
            return
        for number, (thread, turn) in enumerate(self._ledger.running()):
            place = {"threadId": thread}
            # The second works where the client asked for the experimental API; elsewhere it is refused and harmless.
            for method, params in (
                ("turn/interrupt", {**place, "turnId": turn}),
                ("thread/backgroundTerminals/clean", place),
            ):
                request = {"id": f"oce-{method}-{number}", "method": method, "params": params}
                self._harness.write(text_frame(json.dumps(request), secrets.token_bytes(4)))

    def close(self) -> None:
        """End now."""
        self._close(SERVICE_RESTART, "revision switched")

    def _close(self, code: int, reason: str) -> None:
        if self._closing is not None or self._ended:
            return
        self._closing = (code, reason)
        if self._client_gone:
            self._end()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(CLOSE_WAIT_SECONDS, self._end)
        self._close_at_boundary()

    def _close_at_boundary(self) -> None:
        """Send the close frame when it fits; the client's own close, or the timer, then ends the connection."""
        if self._closing is None or not self._from_harness.at_boundary:
            return
        if not self._client.is_closing():
            self._client.write(close_frame(*self._closing))
        self._harness.close()
        if self._client.can_write_eof():
            self._client.write_eof()
        else:
            self._client.close()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._harness.close()
        self._client.close()
        self._on_end()


def _hold(transport: asyncio.Transport, hold: bool) -> None:
    if transport.is_closing():
        return
    if hold:
        transport.pause_reading()
    else:
        transport.resume_reading()
