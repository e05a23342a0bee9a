"""Reading server-sent events (HTML standard §9.2) from a stream of lines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `data` is its JSON document."""

    name: str
    data: Any
    id: str = ""


def read(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of a stream; comments (heartbeats) are skipped, an unfinished last event is dropped."""
    name, identifier = "message", ""
    data: list[str] = []
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data:
                yield Event(name, json.loads("\n".join(data)), identifier)
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            identifier = value
