"""The two Secret objects that the Driver reads itself: the node's setup code and the initial workspace files.

Compute hands in the reading side (`PrivateObjects`) and stages objects that carry the Namespace's and the Agent's id as labels; another
owner's object is a conflict, whatever its name. Values stay in `SecretText`; a refusal never repeats one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import OwnershipConflict, StillPending, WorkspaceSetupRefused
from oce.domain.secret import SecretText
from oce.drivers.openshell import node_setup

if TYPE_CHECKING:
    from oce.contracts.sandbox import HarnessContext, PrivateObject, WorkspaceSetup
    from oce.domain.resources import AgentRevision
    from oce.drivers.openshell.rendering import Rendering

NAMESPACE_LABEL: Final = "openclaw.dev/namespace"
AGENT_LABEL: Final = "openclaw.dev/agent"
_MAX_SETUP: Final = 400_000
"""Bytes of the decoded workspace setup, which is also what one ExecSandbox may carry on stdin."""


async def offered_node_setup(
    context: HarnessContext, wanted: Rendering
) -> node_setup.NodeSetup | None:
    """Return the setup that Compute offers now, or None when the revision asks for none.

    Raises StillPending while the object is not there, OwnershipConflict for another owner's, RevisionUnsupported for another shape.
    """
    reference = wanted.node_setup
    if reference is None:
        return None
    found = None
    if context.private is not None:
        found = await context.private.read(
            context.namespace, reference.secret_name, reference.secret_key
        )
    if found is None:
        if context.workspace_node_enrolled:
            return None  # an enrolled node's code is withdrawn; the provider keeps what it has
        raise StillPending("WORKSPACE_NODE_PENDING", "the node setup is not staged yet")
    _owned("node setup", context.revision, found)
    return node_setup.from_code(found.value)


async def workspace_payload(context: HarnessContext, setup: WorkspaceSetup) -> SecretText:
    """Return the exact private document of the initial workspace files. Raises WorkspaceSetupRefused, OwnershipConflict."""
    found = None
    if context.private is not None:
        found = await context.private.read(context.namespace, setup.secret_name, setup.secret_key)
    if found is None:
        raise WorkspaceSetupRefused("the staged document is not there")
    _owned("workspace setup", context.revision, found)
    text = found.value.reveal()
    if len(text.encode()) > _MAX_SETUP:
        raise WorkspaceSetupRefused("the staged document is too large")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise WorkspaceSetupRefused("the staged document is not JSON") from None
    wanted = {
        "id": setup.id,
        "namespaceId": context.revision.namespace_id,
        "agentId": context.revision.agent_id,
        "defaultsId": setup.defaults_id,
    }
    if not isinstance(document, dict) or any(document.get(k) != v for k, v in wanted.items()):
        raise WorkspaceSetupRefused("the staged document is of another setup")
    return SecretText(text)


def _owned(kind: str, revision: AgentRevision, found: PrivateObject) -> None:
    wanted = {NAMESPACE_LABEL: revision.namespace_id, AGENT_LABEL: revision.agent_id}
    for key, value in wanted.items():
        if found.labels.get(key) != value:
            raise OwnershipConflict(kind, f"labels.{key}")
