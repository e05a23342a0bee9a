"""What OCC adds to a deploy: wall time minus the time the Harness needs to start itself, in a whole installation.

One Agent is deployed again and again, so every deploy prepares a candidate beside a serving predecessor, switches and retires it. Wall time is
from sending the deploy until the event stream told its end. The Harness's own start is read from its log inside the Sandbox: from the line of
its first phase (`environment`, its first act) to `app-server-listening`: Codex's login, its model probe through the egress process
to the offline model server, and `codex app-server` until its port accepts. Everything else is ours: API, queue, worker, Drivers,
sandboxd, confinement, starting the Harness's interpreter, noticing readiness, the switch, and removing the predecessor. "Until it serves" stops
at the switch, by the database's times. The first Driver call follows the first recorded step, whose time is compared with the
revision's. CPU per deploy is what each long-running program used meanwhile, divided by the deploys: of all figures here it depends
least on what else the machine does.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from benchmarks.installation import create_agent, deploy, installation
from benchmarks.measure import Table, cpu_seconds, median, percentile, until
from oce.client.api import AGENT, Client

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.installation import Installation

_WARM = 2


def run(*, quick: bool) -> list[Table]:
    count = 5 if quick else 15
    walls, serves, firsts, starts = [], [], [], []
    steps: dict[str, list[float]] = {}
    before: dict[str, float] = {}
    with installation() as one:
        client = one.client()
        agent = create_agent(client)
        for number in range(_WARM + count):
            revision, events, took = deploy(client, agent)
            if number < _WARM:
                before = _cpu(one)
                continue
            accepted = _accepted(client, agent, revision)
            walls.append(took * 1000)
            firsts.append((_moment(events[0]["at"]) - accepted) * 1000)
            serves.append((_end_of(events, "activate") - accepted) * 1000)
            starts.append(_harness_start(client, agent))
            for event in events:
                if "durationMs" in event:
                    steps.setdefault(event["step"], []).append(event["durationMs"])
        after = _cpu(one)
        client.close()
    spent = {name: (after[name] - before.get(name, 0.0)) / count * 1000 for name in after}
    return [_overhead(walls, serves, firsts, starts), _steps(steps), _programs(spent)]


def _cpu(one: Installation) -> dict[str, float]:
    found = one.programs()
    return {name: sum(map(cpu_seconds, pids)) for name, pids in found.items()}


def _programs(spent: dict[str, float]) -> Table:
    table = Table("CPU per deploy (ms), reading the log included", ("", "CPU"))
    for name, value in sorted(spent.items(), key=lambda item: -item[1]):
        table.row(name, value)
    table.row("all", sum(spent.values()))
    return table


def _overhead(
    walls: list[float], serves: list[float], firsts: list[float], starts: list[float]
) -> Table:
    served = [serve - start for serve, start in zip(serves, starts, strict=True)]
    whole = [wall - start for wall, start in zip(walls, starts, strict=True)]
    table = Table(
        f"Deploying over a serving revision, {len(walls)} times (ms)", ("", "p50", "p95", "max")
    )
    for name, values in (
        ("wall, accepted → succeeded", walls),
        ("accepted → it serves", serves),
        ("Harness's own start", starts),
        ("OCC overhead until it serves", served),
        ("OCC overhead, predecessor's removal included", whole),
        ("accepted → first Driver call", firsts),
    ):
        table.row(name, median(values), percentile(values, 0.95), max(values))
    table.goal("overhead until it serves, p50", median(served), 150, "ms")
    table.goal("overhead until it serves, p99 (here: worst)", max(served), 500, "ms")
    table.goal("first Driver call, p99 (here: worst)", max(firsts), 100, "ms")
    return table


def _steps(steps: dict[str, list[float]]) -> Table:
    table = Table("Steps of these deploys as recorded (ms)", ("", "p50", "max"))
    for name, values in steps.items():
        table.row(name, median(values), max(values))
    table.notes.append("readiness holds the Harness's own start")
    return table


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _accepted(client: Client, agent: str, revision: str) -> float:
    found = client.read(f"{client.path_of(AGENT, agent)}/revisions/{revision}")
    return _moment(found["createdAt"])


def _end_of(events: Iterable[dict[str, Any]], step: str) -> float:
    return max(
        _moment(event["at"])
        for event in events
        if event["step"] == step and event["outcome"] == "succeeded"
    )


def _harness_start(client: Client, agent: str) -> float:
    """Return the milliseconds between the Harness's first phase and its app-server's, out of its log."""
    found: dict[str, float] = {}

    def told() -> bool:
        page = client.read(f"{client.path_of(AGENT, agent)}/logs")
        for record in page["records"]:
            if record.get("message") == "runtime.startup_phase":
                found[record["fields"]["phase"]] = _moment(record["time"])
        return "app-server-listening" in found

    until(told, 10, 0.1)
    return (found["app-server-listening"] - found["environment"]) * 1000
