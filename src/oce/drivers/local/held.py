"""The held startup failure of a Harness: reading an untrusted document strictly.

The program inside the Sandbox writes it, so everything is checked against closed vocabularies (reference/kubernetes-compute.md §1.4 and
§13.7). A document that does not fit counts as "still starting"; an unknown cause is dropped while its code is kept.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from oce.contracts.sandbox import RuntimeFailure
from oce.domain.failures import HELD_FAILURES

if TYPE_CHECKING:
    from oce.domain.resources import Json

COMPONENT: Final = "agent"
CHECKS: Final = frozenset(("login", "model-probe", "app-server"))
"""`app-server` is ours: a Codex that exits before it ever listened (design; issue: three exits)."""
CAUSE_CODE: Final = "MODEL_PROBE_FAILED"
_DETAIL: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")
_PROCESS_EXIT: Final = re.compile(r"exit-\d{1,3}|signal-SIG[A-Z0-9]{1,12}|error-E[A-Z0-9]{1,20}")
_CAUSES: Final = {
    "PROBE_STATUS": frozenset(
        (
            *("format", "rate_limit", "billing", "unknown", "no_model", "other"),
            *("turn-failed", "error-event", "tool-event", "unexpected-event", "no-reply"),
        )
    ),
    "INVALID_OUTPUT": frozenset(("json", "shape")),
    "WRAPPER_ERROR": frozenset[str](),
}


def runtime_failure(found: Json) -> RuntimeFailure | None:
    """Return the failure that a document's `runtimeFailure` object states, or None when it is not a well-formed one."""
    required = {"component", "check", "checkedAt", "code"}
    if not isinstance(found, dict) or not required <= set(found) <= {*required, "cause"}:
        return None
    if not all(isinstance(found[key], str) for key in required):
        return None
    if found["component"] != COMPONENT or found["check"] not in CHECKS:
        return None
    if found["code"] not in HELD_FAILURES or not _is_time(found["checkedAt"]):
        return None
    kind, detail = _cause(found.get("cause")) if found["code"] == CAUSE_CODE else (None, None)
    return RuntimeFailure(
        component=found["component"],
        check=found["check"],
        checked_at=found["checkedAt"],
        code=found["code"],
        cause_kind=kind,
        cause_detail=detail,
    )


def _is_time(text: str) -> bool:
    if not _ISO.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _cause(found: Any) -> tuple[str | None, str | None]:  # noqa: ANN401 # untrusted JSON
    if not isinstance(found, dict) or not {"kind"} <= set(found) <= {"kind", "detail"}:
        return None, None
    kind, detail = found["kind"], found.get("detail")
    if kind != "PROCESS_EXIT" and kind not in _CAUSES:
        return None, None
    if detail is None:
        return kind, None
    if not isinstance(detail, str) or not _DETAIL.fullmatch(detail):
        return None, None
    if kind == "PROCESS_EXIT":
        return (kind, detail) if _PROCESS_EXIT.fullmatch(detail) else (None, None)
    return (kind, detail) if detail in _CAUSES[kind] else (None, None)
