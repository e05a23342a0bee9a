"""Ownership marks: the labels and annotations by which the Driver knows its own objects (reference/sandbox-openshell.md §5).

Pure. A mark is compared exactly; an object that carries our name without our marks is somebody else's and stays untouched.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.domain.resources import AgentRevision, CredentialSource, Json

MANAGER: Final = "openclaw-enterprise"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
NAMESPACE_ID: Final = "openclaw.dev/namespace-id"
AGENT_ID: Final = "openclaw.dev/agent-id"
REVISION_ID: Final = "openclaw.dev/revision-id"
SOURCE_ID: Final = "openclaw.dev/credential-source-id"
PROFILE_MANAGER: Final = "openclaw.dev/managed-by"
PROFILE_DIGEST: Final = "openclaw.dev/profile-digest"
GATEWAY_PREFIX: Final = "internal.openshell.ai/"
"""Annotations with this prefix are the gateway's own and are ignored."""
POLICY_OPERATION: Final = "openclaw.dev/policy-operation"
POLICY_SNAPSHOT: Final = "openclaw.dev/policy-snapshot"
_LIVE: Final = frozenset((POLICY_OPERATION, POLICY_SNAPSHOT))
"""What a live policy change of ours leaves on a Sandbox; says nothing about ownership."""


def workspace_labels(namespace_id: str) -> dict[str, str]:
    """Return the labels of a Namespace's Workspace."""
    return {MANAGED_BY: MANAGER, NAMESPACE_ID: namespace_id}


def provider_labels(revision: AgentRevision) -> dict[str, str]:
    """Return the labels of a revision's runtime provider."""
    return {
        **workspace_labels(revision.namespace_id),
        AGENT_ID: revision.agent_id,
        REVISION_ID: revision.id,
    }


def source_labels(source: CredentialSource) -> dict[str, str]:
    """Return the labels of a credential source's provider."""
    return {**workspace_labels(source.namespace_id), SOURCE_ID: source.id}


def sandbox_annotations(revision: AgentRevision) -> dict[str, str]:
    """Return the annotations of a revision's Sandbox."""
    return {
        NAMESPACE_ID: revision.namespace_id,
        AGENT_ID: revision.agent_id,
        REVISION_ID: revision.id,
    }


def difference(wanted: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """Return the first key where two maps differ, ignoring the gateway's own annotations and live marks, or None."""
    own = {
        key: value
        for key, value in found.items()
        if not key.startswith(GATEWAY_PREFIX) and key not in _LIVE
    }
    for key in sorted(wanted.keys() | own.keys()):
        if wanted.get(key) != own.get(key):
            return key
    return None


def json_digest(document: Json) -> str:
    """Return the SHA-256 hex digest of a document's canonical JSON: sorted keys, no spaces, UTF-8."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
