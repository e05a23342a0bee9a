"""Conversations with an Agent through the Agent Gateway: `POST …/agents/{agt}/turns` answers as server-sent events.

Events: `thread` (`threadId`), `delta` (`text`), `tool` (`name`, `status`, …), then `completed` or `failed`. A stream that ends without
one of the last two is a failure of its own: the turn's outcome is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from oce.client import events
from oce.client.context import read_key
from oce.client.errors import ContextError, TurnFailed
from oce.client.transport import Transport
from oce.domain.secret import SecretText

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oce.client.context import Context
    from oce.client.events import Event

_SILENCE: Final = 600.0
"""A tool may run for minutes without a word."""


class Turns:
    """Turns under one context."""

    def __init__(self, context: Context, *, timeout: float = 30.0) -> None:
        if not context.gateway_url:
            raise ContextError(
                "This context names no Agent Gateway.",
                "`occ up` writes one; or give --gateway-url.",
            )
        self._transport = Transport(
            context.gateway_url,
            SecretText(read_key(context.key_file)),
            ca_file=context.ca_file,
            timeout=timeout,
        )

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def run(
        self, namespace_id: str, agent_id: str, text: str, thread_id: str | None = None
    ) -> Iterator[Event]:
        """Send one turn and yield its events. Raises TurnFailed when it failed, Refused when it was not admitted."""
        body = {"input": text}
        if thread_id:
            body["threadId"] = thread_id
        path = f"/namespaces/{quote(namespace_id, safe='')}/agents/{quote(agent_id, safe='')}/turns"
        for event in events.read(self._transport.stream("POST", path, body=body, silence=_SILENCE)):
            if event.name == "failed":
                raise TurnFailed(
                    str(event.data.get("code", "UNKNOWN_OUTCOME")),
                    str(event.data.get("message", "The turn failed.")),
                    str(event.data.get("hint", "")),
                )
            yield event
            if event.name == "completed":
                return
        raise TurnFailed("UNKNOWN_OUTCOME", "The stream ended before the turn did.")
