"""The last lines of each Sandbox: output of its main process and the decisions about its traffic.

A ring in memory (2000 lines), as upstream keeps it; it does not survive a restart of the gateway. Decisions are written in the
shorthand of reference/openshell-gateway.md b.11, without query strings and header values.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oce.sandboxd.lifecycle.denials import DenialBook

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping

    from oce.sandboxd.egress.model import Decision

RING = 2000
MAX_LINE = 16 * 1024
LEVELS = ("TRACE", "DEBUG", "INFO", "OCSF", "WARN", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line; `sequence` grows by one per Sandbox."""

    sequence: int
    time: float
    level: str
    target: str
    message: str
    source: str
    fields: Mapping[str, str] = field(default_factory=dict)


class _Ring:
    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque(maxlen=RING)
        self.sequence = 0
        self.readers: set[asyncio.Event] = set()


class LogBook:
    """Rings by Sandbox id."""

    def __init__(self) -> None:
        self._rings: dict[str, _Ring] = {}
        self.denials = DenialBook()
        """The denials among the decisions, counted."""

    def append(
        self,
        sandbox_id: str,
        *,
        time: float,
        level: str,
        target: str,
        message: str,
        source: str,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        """Add a line, dropping the oldest."""
        ring = self._rings.setdefault(sandbox_id, _Ring())
        ring.sequence += 1
        ring.lines.append(
            LogLine(
                sequence=ring.sequence,
                time=time,
                level=level,
                target=target,
                message=message[:MAX_LINE],
                source=source,
                fields=dict(fields or {}),
            )
        )
        for reader in ring.readers:
            reader.set()

    def append_output(self, sandbox_id: str, time: float, stream: int, line: bytes) -> None:
        """Add a line of the main process (stream 1 or 2)."""
        text = line.decode("utf-8", errors="replace").rstrip("\r\n")
        self.append(
            sandbox_id,
            time=time,
            level="INFO" if stream == 1 else "WARN",
            target="main.stdout" if stream == 1 else "main.stderr",
            message=text,
            source="sandbox",
        )

    def append_decision(self, decision: Decision) -> None:
        """Add a decision line."""
        self.denials.note(decision)
        self.append(
            decision.sandbox_id,
            time=decision.time,
            level="OCSF",
            target="ocsf",
            message=decision_text(decision),
            source="sandbox",
            fields=decision_fields(decision),
        )

    def lines(self, sandbox_id: str) -> tuple[LogLine, ...]:
        """Return the lines held now, oldest first."""
        ring = self._rings.get(sandbox_id)
        return () if ring is None else tuple(ring.lines)

    def subscribe(self, sandbox_id: str, event: asyncio.Event) -> None:
        """Set `event` at each new line until `unsubscribe`."""
        self._rings.setdefault(sandbox_id, _Ring()).readers.add(event)

    def unsubscribe(self, sandbox_id: str, event: asyncio.Event) -> None:
        """End a subscription."""
        ring = self._rings.get(sandbox_id)
        if ring is not None:
            ring.readers.discard(event)

    def forget(self, sandbox_id: str) -> None:
        """Drop a deleted Sandbox's lines."""
        self._rings.pop(sandbox_id, None)
        self.denials.forget(sandbox_id)


def decision_text(decision: Decision) -> str:
    """Return the shorthand line of a decision."""
    severity = decision.severity if decision.allowed or decision.severity != "INFO" else "MED"
    verdict = "ALLOWED" if decision.allowed else "DENIED"
    target = f"{decision.host}:{decision.port}"
    if decision.method:
        target = f"{decision.method} {target}{decision.path.partition('?')[0]}"
    text = (
        f"{decision.activity} [{severity}] {verdict} {decision.binary or '-'}({decision.pid}) -> {target}"
        f" [policy:{decision.rule or '-'} engine:{decision.engine}]"
    )
    return f"{text} [reason:{decision.reason}]" if decision.reason else text


def decision_fields(decision: Decision) -> dict[str, str]:
    """Return a decision's parts for machines."""
    return {
        "decision": "allowed" if decision.allowed else "denied",
        "activity": decision.activity,
        "host": decision.host,
        "port": str(decision.port),
        "binary": decision.binary,
        "rule": decision.rule or "-",
        "reason": decision.reason,
        "engine": decision.engine,
        "method": decision.method,
        "path": decision.path.partition("?")[0],
    }


def at_least(minimum: str, lines: tuple[LogLine, ...]) -> Iterator[LogLine]:
    """Yield the lines of that level or above; an empty minimum means all."""
    floor = LEVELS.index(minimum) if minimum in LEVELS else 0
    for line in lines:
        level = LEVELS.index(line.level) if line.level in LEVELS else len(LEVELS)
        if level >= floor:
            yield line
