"""Memory of every process of an installation, idle and with 50 idle Sandboxes.

PSS counts a shared page in parts, one for each process that has it, so PSS of many processes adds up to what the machine really gives; RSS
is what `ps` shows. A Sandbox's own process is the command that it was created for (here `sleep`); beyond it there are its
keeper, bubblewrap's two processes, the confined launcher, and what gateway and egress process grew by.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.installation import installation
from benchmarks.measure import Table, descendants, memory, processes, until
from benchmarks.sandbox import SLEEP

if TYPE_CHECKING:
    from benchmarks.installation import Installation

_COUNT = 50
_WORKLOAD = "workload (sleep)"


def run(*, quick: bool) -> list[Table]:  # noqa: ARG001 - there is nothing to shorten
    with installation() as one:
        idle = _programs(one)
        calls = one.sandboxd()
        names = [f"idle{number}" for number in range(_COUNT)]
        for name in names:
            calls.call("CreateSandbox", calls.create_request(name, SLEEP))
        until(lambda: calls.ready_count() == _COUNT, 120, 0.05)
        busy = _programs(one)
        inside = _sandboxes(one)
        calls.delete(*names)
        calls.close()
    return [_of_programs(idle, busy), _of_sandboxes(idle, busy, inside)]


def _programs(one: Installation) -> dict[str, tuple[float, float]]:
    """Return program name to (RSS, PSS)."""
    return {name: _sum(set(pids)) for name, pids in one.programs().items()}


def _sum(pids: set[int]) -> tuple[float, float]:
    both = [memory(pid) for pid in pids]
    return sum(one[0] for one in both), sum(one[1] for one in both)


def _sandboxes(one: Installation) -> dict[str, list[tuple[float, float]]]:
    """Return the processes of all Sandboxes by role."""
    table = processes()
    spawners = [
        pid
        for pid, (parent, command) in table.items()
        if "confine.spawner" in command and parent == one.pids().get("sandboxd")
    ]
    keepers = [pid for pid, (parent, _) in table.items() if parent in spawners]
    found: dict[str, list[tuple[float, float]]] = {}
    for pid in descendants(keepers, table):
        with contextlib.suppress(OSError):
            comm = Path(f"/proc/{pid}/comm").read_text().strip()
            role = {"sleep": _WORKLOAD, "bwrap": "bubblewrap", "oce-keeper": "keeper"}.get(
                comm, "launcher"
            )
            found.setdefault(role, []).append(memory(pid))
    return found


def _of_programs(
    idle: dict[str, tuple[float, float]], busy: dict[str, tuple[float, float]]
) -> Table:
    columns = ("", "RSS idle", "PSS idle", f"RSS, {_COUNT} Sandboxes", f"PSS, {_COUNT} Sandboxes")
    table = Table("Memory of the programs (MiB)", columns)
    for name, found in busy.items():
        table.row(name, *idle.get(name, (0.0, 0.0)), *found)
    table.row(
        "all", *(sum(one[n] for one in where.values()) for where in (idle, busy) for n in (0, 1))
    )
    return table


def _of_sandboxes(
    idle: dict[str, tuple[float, float]],
    busy: dict[str, tuple[float, float]],
    inside: dict[str, list[tuple[float, float]]],
) -> Table:
    table = Table("Memory per idle Sandbox (MiB)", ("", "processes", "RSS", "PSS"))
    beyond = 0.0
    for role, found in sorted(inside.items()):
        rss, pss = (sum(one[n] for one in found) / _COUNT for n in (0, 1))
        table.row(role, f"{len(found) / _COUNT:.2g}", rss, pss)
        beyond += pss if role != _WORKLOAD else 0.0
    for name in ("sandboxd", "egress", "spawner"):
        rss, pss = ((busy[name][n] - idle.get(name, (0.0, 0.0))[n]) / _COUNT for n in (0, 1))
        table.row(f"growth of {name}", "-", rss, pss)
        beyond += pss
    table.goal("per idle Sandbox beyond its own processes, PSS", beyond, 5, "MiB")
    return table
