"""Operational logs: one JSON object a line, and only fields that were agreed on.

A log line leaves the machine more easily than anything else, so the rule is turned round: a field is dropped unless its name is on
the list below and its value has the shape of an identifier, a number or a short plain phrase (reference/worker-console.md §8.1).
Callers may write fields in Python's spelling (`request_id=`); they appear in the wire's (`requestId`). This is not the audit trail
(`store` keeps that) and carries no prompt, answer, body or exception text: of an exception the class chain and our own frames are
kept, which is what a maintainer needs first.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from structlog.typing import FilteringBoundLogger

FIELDS: Final = frozenset(
    {
        "activationMs",
        "actorId",
        "agentId",
        "attempt",
        "backend",
        "cause",
        "category",
        "code",
        "component",
        "computeDriverId",
        "count",
        "credentialSourceId",
        "deadlineMs",
        "dependency",
        "durationMs",
        "elapsedMs",
        "errorClass",
        "frames",
        "hintCode",
        "host",
        "implementation",
        "keyId",
        "kind",
        "lane",
        "lanes",
        "logger",
        "message",
        "method",
        "namespaceId",
        "operation",
        "outcome",
        "path",
        "pending",
        "pid",
        "port",
        "prepareMs",
        "providerId",
        "reason",
        "refusal",
        "requestId",
        "resourceId",
        "resourceKind",
        "result",
        "retryInMs",
        "revisionId",
        "route",
        "sandboxDriverId",
        "sandboxName",
        "signal",
        "status",
        "step",
        "version",
        "workId",
        "workKind",
    }
)
"""Every field name a line may carry besides `time`, `severity`, `service` and `event`."""

_MESSAGE_EVENTS: Final = frozenset({"compute.preflight-warning", "library.message"})
"""Events whose free text is ours or a reviewed library's."""
_TEXT_MAX: Final = 512
_LIST_MAX: Final = 100
_FRAMES_MAX: Final = 12
_CAUSES_MAX: Final = 6
_SAFE_INTEGER: Final = 2**53 - 1
_SAFE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9 ._:;/@{},=+()\[\]<>*'#%-]*", re.ASCII)
_SECRET = re.compile(
    r"bearer\s|sk-[A-Za-z0-9_-]{8}|-----BEGIN|gh[opusr]_[A-Za-z0-9]{8}|github_pat_|(?:AKIA|ASIA)[A-Z0-9]{12}"
    r"|xox[abpr]-|eyJ[A-Za-z0-9_-]{8,}\.|key_[0-9a-f-]{36}\.",
    re.IGNORECASE,
)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _text(value: str) -> str | None:
    if len(value) > _TEXT_MAX or not _SAFE.fullmatch(value) or _SECRET.search(value):
        return None
    return value


def _number(name: str, value: float) -> float | None:
    if not math.isfinite(value):
        return None
    if name.endswith("Ms"):
        return round(float(value), 3) if value >= 0 else None
    if isinstance(value, float) and not value.is_integer():
        return round(value, 3)
    return int(value) if abs(value) <= _SAFE_INTEGER else None


def safe_value(name: str, value: object) -> object | None:
    """Return what a line may show of one field, or None when the field must be dropped."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _number(name, value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple) and len(value) <= _LIST_MAX:
        kept = [shown for item in value if (shown := safe_value(name, item)) is not None]
        return kept or None
    return None


def describe_exception(error: BaseException) -> dict[str, object]:
    """Return `errorClass`, `cause` (the classes that led to it) and `frames` (module:line, innermost last); never its text."""
    causes: list[str] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(causes) < _CAUSES_MAX:
        causes.append(type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    frames = [
        f"{frame.f_globals.get('__name__', 'unknown')}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
    ][-_FRAMES_MAX:]
    return {"errorClass": type(error).__name__, "cause": causes, "frames": frames}


def _exception_of(info: object) -> BaseException | None:
    if isinstance(info, BaseException):
        return info
    if isinstance(info, tuple):
        return cast("BaseException | None", info[1])
    return sys.exc_info()[1] if info else None


def clean(event: str, fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of one line after the allow-list and the value checks."""
    shown: dict[str, object] = {}
    error = _exception_of(fields.get("exc_info"))
    described = describe_exception(error) if error is not None else {}
    for given, value in {**fields, **described}.items():
        name = _camel(given)
        if name not in FIELDS or (name == "message" and event not in _MESSAGE_EVENTS):
            continue
        kept = safe_value(name, value)
        if kept is not None:
            shown[name] = kept
    return shown


class _Line:
    """The structlog processor that turns an event into the line's object."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __call__(
        self, _logger: object, method: str, fields: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event = _text(str(fields.pop("event", ""))) or "log.unnamed"
        moment = datetime.now(UTC)
        severity = {"exception": "ERROR", "warn": "WARNING"}.get(method, method.upper())
        return {
            "time": f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z",
            "severity": severity,
            "service": self._service,
            "event": event,
            **clean(event, fields),
        }


class _LibraryHandler(logging.Handler):
    """Brings the standard library's loggers (uvicorn, asyncio, grpc, …) into the same stream and under the same rules."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; free text is kept only where the value check passes."""
        logger = get_logger()
        level = record.levelno if record.levelno in _LEVELS.values() else logging.INFO
        logger.log(
            level,
            "library.message",
            logger=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info or None,
        )


_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


def configure(service: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Set the process's logging up: `service` is `api`, `worker`, …; `level` one of debug, info, warn, error."""
    threshold = _LEVELS[level]
    structlog.configure(
        processors=[_Line(service), structlog.processors.JSONRenderer(ensure_ascii=False)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=stream or sys.stdout),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_LibraryHandler()]
    root.setLevel(max(threshold, logging.WARNING))


def get_logger() -> FilteringBoundLogger:
    """Return the process's logger: `.info("http.completed", request_id=…)`."""
    return cast("FilteringBoundLogger", structlog.get_logger())
