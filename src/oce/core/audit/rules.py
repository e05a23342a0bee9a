"""Making audit events: who did what to which resource, with details that cannot carry a secret.

Details are sanitized here and nowhere else (reference/worker-console.md §7.1): depth is bounded, control characters become spaces,
values under keys that sound sensitive and values that look like credentials are masked. Producers still hand over identifiers, not
content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Literal

from oce.domain.ids import IdKind, new_id
from oce.domain.resources import AuditEvent

if TYPE_CHECKING:
    from datetime import datetime

    from oce.contracts.iam import AccessDecision, AccessRequest
    from oce.domain.resources import Json

_MASK: Final = "[redacted]"
_DEPTH: Final = 16
_TEXT_MAX: Final = 512
_SENSITIVE: Final = re.compile(
    r"token|secret|password|passwd|api_?key|authorization|cookie|credential|private_?key|body|content|message|prompt|text"
    r"|transcript",
    re.IGNORECASE,
)
_HARMLESS_END: Final = re.compile(r"(ids?|refs?|references?|names?|kinds?|counts?)$", re.IGNORECASE)
_CREDENTIAL: Final = re.compile(
    r"\b(bearer\s+\S+|sk-[\w-]{8,}|gh[pousr]_\w{16,}|github_pat_\w+|xox[abpr]-\S+|occ_[0-9a-f]{32}_\S+)",
    re.IGNORECASE,
)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CODE: Final = re.compile("[^A-Z_]")


def sanitize(value: Json, depth: int = 0) -> Json:
    """Return a copy of a JSON value that is safe to keep."""
    if depth > _DEPTH:
        return _MASK
    if isinstance(value, Mapping):
        return {
            _clean(str(key)): _MASK if _is_sensitive(str(key)) else sanitize(inner, depth + 1)
            for key, inner in value.items()
            if not str(key).startswith("__")
        }
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, Sequence):
        return [sanitize(inner, depth + 1) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return type(value).__name__


def _is_sensitive(key: str) -> bool:
    return _SENSITIVE.search(key) is not None and _HARMLESS_END.search(key) is None


def _clean(text: str) -> str:
    return _CREDENTIAL.sub(_MASK, _CONTROL.sub(" ", text[:_TEXT_MAX]))


def reason(code: str) -> str:
    """Return a code in the stored form: upper case, other characters `_`, at most 64."""
    return _CODE.sub("_", code.upper())[:64]


def event(
    *,
    installation_id: str,
    at: datetime,
    actor_id: str,
    action: str,
    resource: tuple[str, str],
    namespace_id: str | None,
    kind: Literal["bootstrap", "mutation", "access"] = "mutation",
    outcome: Literal["success", "denied", "failure"] = "success",
    request_id: str | None = None,
    reason_code: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> AuditEvent:
    """Return an event. `resource` is (kind, id); `action` is `openclaw.<area>.<verb>`."""
    return AuditEvent(
        id=new_id(IdKind.AUDIT_EVENT),
        installation_id=installation_id,
        namespace_id=namespace_id,
        occurred_at=at,
        kind=kind,
        actor_id=actor_id,
        action=action,
        resource_kind=resource[0],
        resource_id=resource[1],
        outcome=outcome,
        request_id=request_id,
        reason_code=reason(reason_code) if reason_code else None,
        details=sanitize(dict(details or {})),
    )


def denial(
    *,
    installation_id: str,
    at: datetime,
    request: AccessRequest,
    decision: AccessDecision,
    action: str,
    request_id: str | None = None,
    reason_code: str = "FORBIDDEN",
    initiating_actor_id: str | None = None,
) -> AuditEvent:
    """Return the event of a denied request with the evidence of the decision.

    `initiating_actor_id` names who asked when the denied principal is another one (an Agent's own).
    """
    return AuditEvent(
        id=new_id(IdKind.AUDIT_EVENT),
        installation_id=installation_id,
        namespace_id=request.namespace_id,
        occurred_at=at,
        kind="authorization_denial",
        actor_id=initiating_actor_id or request.principal_id,
        action=action,
        resource_kind=request.resource_kind,
        resource_id=request.resource_id or request.namespace_id or installation_id,
        outcome="denied",
        request_id=request_id,
        reason_code=reason(reason_code),
        decision_reason=decision.reason[:120],
        authorization={
            "request": asdict(request),
            "driverId": decision.driver_id,
            "bindingIds": list(decision.binding_ids),
            "roleIds": list(decision.role_ids),
            "restrictionIds": list(decision.restriction_ids),
        },
    )
