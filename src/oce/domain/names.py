"""Names that people give, and physical names that we derive.

A physical name is a fixed prefix plus a digest over a *length-delimited* tuple, so that no two owners can meet in one name whatever
characters their own names hold, and so that it always fits the backend (19 characters for an OpenShell Workspace or Sandbox).
Every derived name of the product is made here and nowhere else.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import uuid
from typing import Final

NAME_MAX: Final = 200
"""Code points of a resource name."""
CREDENTIAL_PROVIDER_PATTERN: Final = r"^oce-cs-[0-9a-f]{24}$"
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def name_problem(name: str) -> str | None:
    """Return why `name` cannot be a resource name, as a detail code, or None when it can (reference/control-plane.md §2.1)."""
    if not name:
        return "REQUIRED"
    if len(name) > NAME_MAX:
        return "TOO_LONG"
    if name != name.strip() or _FORBIDDEN.search(name):
        return "INVALID_FORMAT"
    if any(unicodedata.category(character) == "Cs" for character in name):
        return "INVALID_VALUE"
    return None


def digest(*parts: str) -> str:
    """Return the SHA-256 hex digest of a tuple of texts; injective because each part is preceded by its length."""
    state = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        state.update(len(raw).to_bytes(8, "big"))
        state.update(raw)
    return state.hexdigest()


def physical_namespace(namespace_id: str) -> str:
    """Return Compute's name of a Namespace, which is also its OpenShell Workspace: `oce-` + 15 hex (19 characters)."""
    return f"oce-{digest('namespace', namespace_id)[:15]}"


def sandbox_name(revision_id: str, prefix: str = "sb") -> str:
    """Return the Sandbox name of a revision: prefix, `-` and hex, 19 characters in all."""
    return f"{prefix}-{digest('sandbox', revision_id)}"[:19]


def credential_provider(source_id: str) -> str:
    """Return the provider name of a credential source: `oce-cs-` + 24 hex. An attachment's `ref` is this name."""
    return f"oce-cs-{digest('credential-source', source_id)[:24]}"


def runtime_provider(revision_id: str) -> str:
    """Return the name of a revision's runtime provider: `oce-runtime-` + 16 hex."""
    return f"oce-runtime-{digest('runtime', revision_id)[:16]}"


def openai_profile(base_url: str, auth_header: str, default_base_url: str) -> str:
    """Return the provider profile id of an `openai` source: one for the default endpoint, one per custom endpoint and header."""
    if auth_header == "authorization":
        if base_url == default_base_url:
            return "oce-openai"
        return f"oce-openai-{digest('openai', base_url)[:12]}"
    return f"oce-openai-{digest('openai', base_url, auth_header)[:12]}"


def request_id(revision_id: str, attempt: int) -> str:
    """Return OpenShell's `request_id` number `attempt` (0…15) for creating a revision's Sandbox.

    Number 0 is the revision's own UUID; the others are RFC 9562 version-8 UUIDs derived from it, so that every process that
    retries sends the same ones in the same order (mission document 000).
    """
    own = revision_id.partition("_")[2]
    if attempt == 0:
        return own
    raw = bytearray(
        hashlib.sha256(
            b"\x00".join(
                (b"openclaw.dev/openshell-create-sandbox/v1", own.encode(), b"%d" % attempt)
            )
        ).digest()[:16]
    )
    raw[6] = (raw[6] & 0x0F) | 0x80
    raw[8] = (raw[8] & 0x3F) | 0x80
    return str(uuid.UUID(bytes=bytes(raw)))


REQUEST_IDS: Final = 16
"""How many request ids one create may use in total."""


def native_hook_directory(harness_home: str) -> str:
    """Return where a Codex Harness's native hook credentials lie: Compute derives it, the Sandbox makes it (mission document 003)."""
    return f"{harness_home}/.oce-native-hooks"
