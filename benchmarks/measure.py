"""Numbers, tables, rounds, and what the kernel says about a process. No knowledge of what is measured."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1024 * 1024


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` (0…1) of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


@dataclass
class Table:
    """Rows of text below a title; `goals` are lines of (what, measured, limit, unit) where less is better unless `more`."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, *cells: str | float) -> None:
        self.rows.append([cell if isinstance(cell, str) else number(cell) for cell in cells])

    def goal(
        self, what: str, measured: float, limit: float, unit: str, *, more: bool = False
    ) -> None:
        """Note whether a goal of design §10 is met."""
        met = measured >= limit if more else measured <= limit
        sign = "≥" if more else "≤"
        verdict = "met" if met else "MISSED"
        self.notes.append(
            f"goal: {what} {sign} {number(limit)} {unit}: {number(measured)} {unit}, {verdict}"
        )

    def text(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[n]) for line in lines) for n in range(len(self.columns))]
        shown = [
            "  ".join(
                cell.ljust(width) if n == 0 else cell.rjust(width)
                for n, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        rule = "-" * sum([*widths, 2 * (len(widths) - 1)])
        notes = [f"  {note}" for note in self.notes]
        return "\n".join([f"## {self.title}", shown[0], rule, *shown[1:], *notes])


def number(value: float) -> str:
    """Return a number with three meaningful digits."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def milliseconds(action: Callable[[], object]) -> float:
    """Return how long an action took."""
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def interleaved(rounds: int, cases: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run every case once per round, in turns, so that a noisy second meets all of them."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            found[name].append(case())
    return found


def until(condition: Callable[[], object], seconds: float = 30.0, pause: float = 0.002) -> None:
    """Poll a condition. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(pause)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used, all threads; 0 for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int) -> tuple[float, float]:
    """Return (RSS, PSS) in MiB; (0, 0) for a process that is gone."""
    found = {"Rss:": 0, "Pss:": 0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, *rest = line.split()
            if name in found:
                found[name] = int(rest[0])
    return found["Rss:"] / 1024, found["Pss:"] / 1024


def processes() -> dict[int, tuple[int, str]]:
    """Return pid to (parent pid, command line with spaces) for every process that can be read."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found[int(entry.name)] = (int(stat.rsplit(")", 1)[1].split()[1]), command)
    return found


def descendants(roots: Iterable[int], table: dict[int, tuple[int, str]]) -> set[int]:
    """Return the given pids and everything below them."""
    found, waiting = set(), list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += [child for child, (parent, _) in table.items() if parent == pid]
    return found
