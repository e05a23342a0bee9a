"""Typed identifiers: `<prefix>_<uuid4 in lower-case hex>`.

The prefix says what a thing is, so that an id pasted into the wrong place is refused before any look-up. A deployment has no id of
its own: it is the `rev_…` of the admitted revision. IAM ids (`prn_`, `spn_`, `role_`, `binding_`, `key_`) are opaque to clients.
"""

from __future__ import annotations

import re
import uuid
from enum import StrEnum
from typing import Final


class IdKind(StrEnum):
    """The prefix of each kind of identifier."""

    INSTALLATION = "ins"
    NAMESPACE = "ns"
    CONFIGURATION = "cfg"
    SECRET = "sec"  # noqa: S105 - a prefix of ids
    CREDENTIAL_SOURCE = "cs"
    AGENT = "agt"
    REVISION = "rev"
    AUDIT_EVENT = "aud"
    REQUEST = "req"
    POLICY_OPERATION = "npo"
    WORKSPACE_SETUP = "wss"
    PRINCIPAL = "prn"
    SERVICE_PRINCIPAL = "spn"
    ROLE = "role"
    BINDING = "binding"
    SERVICE_KEY = "key"


_UUID4: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def new_id(kind: IdKind) -> str:
    """Return a fresh identifier of that kind."""
    return f"{kind}_{uuid.uuid4()}"


def pattern(kind: IdKind) -> str:
    """Return the anchored regular expression of that kind, for schemas."""
    return f"^{kind}_{_UUID4}$"


def is_id(kind: IdKind, text: str) -> bool:
    """Tell whether `text` has the shape of an identifier of that kind."""
    return re.fullmatch(f"{kind}_{_UUID4}", text) is not None


def uuid_of(identifier: str) -> str:
    """Return the bare UUID of a typed identifier: a revision's is OpenShell's first `request_id` (mission document 000)."""
    return identifier.partition("_")[2]
