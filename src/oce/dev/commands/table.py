"""The live table of `occ up` on a terminal. The only module of this room that loads rich."""

from __future__ import annotations

import time
from typing import Any, Final

from rich.live import Live
from rich.table import Table as RichTable

_COLOURS: Final = {"serving": "green", "starting": "yellow", "down": "red"}


class Table:
    """Programs with state, pid, restarts and how long they have been so."""

    def __init__(self) -> None:
        self._found: list[dict[str, Any]] = []
        self._since: dict[str, tuple[str, float]] = {}
        self._live = Live(get_renderable=self._draw, refresh_per_second=1, transient=False)

    def __enter__(self) -> object:
        """Begin to draw."""
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last table on the screen."""
        self._live.__exit__(None, None, None)

    def programs(self, found: list[dict[str, Any]]) -> None:
        """Show these states from now on."""
        now = time.monotonic()
        for one in found:
            state = _state_of(one)
            if self._since.get(one["name"], ("", 0.0))[0] != state:
                self._since[one["name"]] = (state, now)
        self._found = found
        self._live.refresh()

    def _draw(self) -> RichTable:
        table = RichTable(box=None, pad_edge=False)
        for title in ("PROGRAM", "STATE", "PID", "RESTARTS", "FOR", "LAST END"):
            table.add_column(title)
        for one in self._found:
            state, since = self._since[one["name"]]
            table.add_row(
                one["name"],
                f"[{_COLOURS[state]}]{state}[/]",
                "-" if one["pid"] is None else str(one["pid"]),
                str(one["restarts"]),
                _age(time.monotonic() - since),
                one["lastExit"] or "-",
            )
        return table


def _age(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _state_of(one: dict[str, Any]) -> str:
    """Return `serving`, `starting` or `down` for a program."""
    if one["ready"]:
        return "serving"
    return "starting" if one["pid"] is not None else "down"
