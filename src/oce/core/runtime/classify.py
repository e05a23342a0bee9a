"""Classification of Sandbox log lines: what may leave, and in which shape (reference/worker-console.md §12.4, §12.5).

A line is operational or it is withheld: a JSON document that we do not recognise may be a conversation. Recognised documents keep an
allow-list of fields. Only this module makes log records, and it makes them from `Redacted` text alone, so that a new source cannot
bypass the redaction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from oce.core.runtime.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from oce.contracts.sandbox import LogDecision, LogLine
    from oce.core.runtime.redaction import Redacted

LEVELS: Final = ("error", "warn", "info", "debug")
LINE_MAX: Final = 32 * 1024
TEXT_MAX: Final = 4 * 1024
MESSAGE_MAX: Final = 8 * 1024
FIELD_MAX: Final = 512
PAGE_MAX: Final = 512 * 1024
_DEPTH_MAX: Final = 8
_ALIASES: Final = {
    "warning": "warn", "fatal": "error", "critical": "error", "err": "error", "trace": "debug",
    "crit": "error", "high": "error", "med": "warn", "medium": "warn", "low": "info", "ocsf": "info",
}  # fmt: skip
_WRAPPER: Final = {
    "runtime.startup_phase": ("container", "phase", "outcome", "ms", "sinceStartMs", "code"),
    "openclaw.model_probe": ("elapsedMs", "capMs", "cpuWaitMs", "code"),
    "codex.model_probe": ("attempt", "elapsedMs", "exitCode", "signal", "code"),
    "runtime.workspace_node": ("container", "outcome", "code"),
    "harness.exit": ("exitCode", "signal", "restarts", "code"),
}
_OPENCLAW: Final = (
    "agent_id", "session_id", "channel", "run_id", "traceId", "spanId", "code", "status", "durationMs", "elapsedMs",
    "url", "method",
)  # fmt: skip
_CODEX: Final = (
    "model",
    "turn_id",
    "tool_name",
    "total_duration_ms",
    "busy",
    "input_tokens",
    "output_tokens",
)
_CODEX_TARGETS: Final = (
    "codex_app_server",
    "codex_login",
    "codex_network_proxy",
    "codex_core::ca",
    "codex_plugins",
)
_DECISION_FIELDS: Final = (
    "activity", "action", "disposition", "dst_host", "dst_port", "method", "path", "binary", "pid", "rule_name",
    "rule_type", "policy_generation", "reason", "source", "cmd_line", "url",
)  # fmt: skip
_PLACEHOLDER: Final = "(text withheld: not a reviewed target)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One classified, redacted line (`kind` line), or `withheld` with a `count` and a `reason`, or a `gap`."""

    kind: Literal["line", "withheld", "gap"]
    time: datetime | None = None
    level: str = "unknown"
    message: str = ""
    source: str = ""
    category: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    count: int = 0
    reason: str = ""


def level_of(name: object) -> str:
    """Return one of the four levels, or `unknown`."""
    text = str(name).lower()
    text = _ALIASES.get(text, text)
    return text if text in LEVELS else "unknown"


def passes(level: str, minimum: str | None) -> bool:
    """Tell whether a line of that level is wanted; an unknown level always is."""
    if minimum is None or level not in LEVELS:
        return True
    return LEVELS.index(level) <= LEVELS.index(minimum)


def _cut(text: str, limit: int) -> tuple[Redacted, bool]:
    # Redact first: cutting first could leave half of a token that no pattern knows.
    clean = redact(text)
    if len(clean) <= limit:
        return clean, False
    return redact(clean[:limit]), True


def _fields(values: dict[str, Any], allowed: Iterable[str]) -> dict[str, str]:
    return {
        name: str(_cut(str(values[name]), FIELD_MAX)[0])
        for name in allowed
        if name in values and isinstance(values[name], str | int | float | bool)
    }


def _line(
    line: LogLine, *, level: str, text: str, category: str, limit: int, fields: dict[str, str]
) -> LogRecord:
    message, truncated = _cut(text, limit)
    return LogRecord(
        kind="line",
        time=line.time,
        level=level,
        message=message,
        source=str(_cut(line.source, FIELD_MAX)[0]),
        category=category,
        fields=fields,
        truncated=truncated,
    )


def _decision(line: LogLine, decision: LogDecision) -> LogRecord:
    verb = "allowed" if decision.allowed else "denied"
    text = f"{verb} {decision.binary or '?'} -> {decision.host}:{decision.port}"
    if decision.rule:
        text += f" by rule {decision.rule}"
    if decision.reason:
        text += f": {decision.reason}"
    level = level_of(line.level)
    if not decision.allowed and level in ("info", "debug", "unknown"):
        level = "warn"
    return _line(
        line,
        level=level,
        text=text,
        category="decision",
        limit=MESSAGE_MAX,
        fields={
            "decision": verb,
            **_fields(
                {
                    "rule_name": decision.rule,
                    "binary": decision.binary,
                    "dst_host": decision.host,
                    "dst_port": decision.port,
                    "reason": decision.reason,
                },
                _DECISION_FIELDS,
            ),
        },
    )


def _depth(value: object, level: int = 0) -> int:
    if level > _DEPTH_MAX:
        return level
    if isinstance(value, dict):
        return max((_depth(inner, level + 1) for inner in value.values()), default=level + 1)
    if isinstance(value, list):
        return max((_depth(inner, level + 1) for inner in value), default=level + 1)
    return level


def _document(line: LogLine, document: dict[str, Any]) -> LogRecord | None:
    """Return the record of a recognised document, or None."""
    event = document.get("event")
    if isinstance(event, str) and event in _WRAPPER:
        fields = _fields(document, _WRAPPER[event])
        failed = fields.get("outcome") == "failed" or fields.get("code", "READY") not in (
            "READY",
            "OK",
        )
        return _line(
            line,
            level="error" if failed else "info",
            text=event,
            category="wrapper",
            limit=MESSAGE_MAX,
            fields=fields,
        )
    if "level" not in document:
        return None
    level = level_of(document["level"])
    inner = document.get("fields")
    merged = {**document, **inner} if isinstance(inner, dict) else document
    message = merged.get("message")
    target = document.get("target")
    if isinstance(target, str):
        reviewed = target.startswith(_CODEX_TARGETS) and isinstance(message, str)
        return _line(
            line,
            level=level,
            text=str(message) if reviewed else _PLACEHOLDER,
            category="codex",
            limit=MESSAGE_MAX,
            fields={"target": str(_cut(target, FIELD_MAX)[0]), **_fields(merged, _CODEX)},
        )
    if not isinstance(message, str):
        return None
    subsystem = document.get("subsystem")
    if not isinstance(subsystem, str) and level not in ("error", "warn"):
        return None
    fields = _fields(document, _OPENCLAW)
    if isinstance(subsystem, str):
        fields["subsystem"] = str(_cut(subsystem, FIELD_MAX)[0])
    return _line(
        line, level=level, text=message, category="openclaw", limit=MESSAGE_MAX, fields=fields
    )


def _balance(text: str) -> int:
    return text.count("{") + text.count("[") - text.count("}") - text.count("]")


def classify(lines: Iterable[LogLine], minimum: str | None = None) -> Iterator[LogRecord]:
    """Yield the records of raw lines in order; equal consecutive `withheld` reasons are one record with a count."""
    waiting: LogRecord | None = None
    for record in _records(lines):
        if record.kind == "withheld":
            if waiting is not None and waiting.reason == record.reason:
                record = _withheld(record.reason, waiting.count + 1)  # noqa: PLW2901 - the run so far, one longer
            elif waiting is not None:
                yield waiting
            waiting = record
        elif passes(record.level, minimum):
            if waiting is not None:
                yield waiting
                waiting = None
            yield record
    if waiting is not None:
        yield waiting


def _records(lines: Iterable[LogLine]) -> Iterator[LogRecord]:
    """Yield one record per line, withholding what lies inside a PEM block or a document spread over lines."""
    open_brackets = 0
    in_pem = False
    for line in lines:
        text = line.message.strip()
        if in_pem:
            in_pem = "-----END " not in text
            yield _withheld("malformed")
        elif "-----BEGIN " in text and "-----END " not in text:
            in_pem = True
            yield _withheld("malformed")
        elif open_brackets > 0 and line.decision is None:
            # Inside a document: err towards withholding.
            open_brackets = max(0, open_brackets + _balance(text))
            yield _withheld("malformed")
        else:
            record, open_brackets = _one(line, text)
            yield record


def _withheld(reason: str, count: int = 1) -> LogRecord:
    return LogRecord(kind="withheld", count=count, reason=reason)


def _one(line: LogLine, text: str) -> tuple[LogRecord, int]:
    """Return the record of one line and how many brackets it leaves open."""
    if len(line.message) > LINE_MAX:
        return _withheld("oversized"), 0
    if line.decision is not None:
        return _decision(line, line.decision), 0
    if not text.startswith(("{", "[")):
        return _line(
            line,
            level=level_of(line.level),
            text=text,
            category="text",
            limit=TEXT_MAX,
            fields=_fields(dict(line.fields), _DECISION_FIELDS),
        ), 0
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _withheld("malformed"), max(0, _balance(text))
    if not isinstance(document, dict) or _depth(document) > _DEPTH_MAX:
        return _withheld("unrecognised_structured"), 0
    return _document(line, document) or _withheld("unrecognised_structured"), 0
