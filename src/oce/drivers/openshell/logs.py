"""The Sandbox log as the gateway keeps it: bounded, one Sandbox only, with the allow and deny decisions that it shows.

Lines stay raw: OCC classifies and redacts them before anybody reads one. A decision is parsed from the gateway's shorthand
(`NET:OPEN [MED] DENIED /usr/bin/curl(64) -> example.com:443 [policy:- engine:opa] [reason:…]`, reference/openshell-gateway.md b.11);
parsing is linear, and a line that does not fit has no decision.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from oce.contracts.sandbox import LogChunk, LogDecision, LogLine
from oce.drivers.openshell.failures import protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oce.drivers.openshell.records import LogRecord

MAX_LINES: Final = 1000
_LINE_MAX: Final = 4096
_HEAD: Final = re.compile(
    r"(?P<event>[A-Z0-9_]{1,16}:[A-Z0-9_]{1,16}) \[[A-Z]{1,8}\] (?P<verdict>ALLOWED|DENIED) "
    r"(?P<binary>/[^ ()]{0,1024}|-)(?:\(\d{1,10}\))? -> (?P<target>[^\[]{1,2048})"
)
_TAG: Final = re.compile(r"\[([^\[\]]{0,1024})\]")
_VERDICTS: Final = ("allowed", "denied")
_PORTS: Final = {"http": 80, "https": 443}


def chunk(
    sandbox: str, observed_at: datetime, records: Sequence[LogRecord], examined: int
) -> LogChunk:
    """Return a page. Lines of two Sandboxes in one answer are a protocol failure."""
    if len({record.sandbox_id for record in records}) > 1:
        raise protocol("GetSandboxLogs", "lines of two Sandboxes")
    return LogChunk(
        sandbox=sandbox,
        observed_at=observed_at,
        lines=tuple(_line(record) for record in records),
        examined=examined,
    )


def _line(record: LogRecord) -> LogLine:
    return LogLine(
        time=record.time,
        level=record.level,
        target=record.target,
        message=record.message,
        source=record.source,
        fields=record.fields,
        decision=_decision(record) if record.level == "OCSF" else None,
    )


def _decision(record: LogRecord) -> LogDecision | None:
    """Prefer the parts that sandboxd sends beside its line: a path or a reason cannot imitate another part there."""
    fields = record.fields
    port = fields.get("port", "")
    if fields.get("decision") not in _VERDICTS or not (port.isascii() and port.isdigit()):
        return decision(record.message)
    return LogDecision(
        allowed=fields["decision"] == "allowed",
        rule=fields.get("rule", "-"),
        binary=fields.get("binary", "") or "-",
        host=fields.get("host", ""),
        port=int(port[:5]),
        reason=fields.get("reason", ""),
    )


def decision(message: str) -> LogDecision | None:
    """Parse one shorthand line, or return None."""
    text = message[:_LINE_MAX]
    head = _HEAD.match(text)
    if head is None:
        return None
    place = _place(head["target"].split()[-1])
    if place is None:
        return None
    tags = dict(_tags(text[head.end() :]))
    return LogDecision(
        allowed=head["verdict"] == "ALLOWED",
        rule=tags.get("policy", "-"),
        binary=head["binary"],
        host=place[0],
        port=place[1],
        reason=tags.get("reason", ""),
    )


def _tags(rest: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for content in _TAG.findall(rest):
        if content.startswith("reason:"):
            found.append(("reason", content.removeprefix("reason:")))
            continue
        for word in content.split():
            key, colon, value = word.partition(":")
            if colon:
                found.append((key, value))
    return found


def _place(target: str) -> tuple[str, int] | None:
    try:
        url = urlsplit(target if "://" in target else f"//{target}")
        port = url.port or _PORTS.get(url.scheme, 0)
    except ValueError:
        return None
    return (url.hostname, port) if url.hostname and port else None
