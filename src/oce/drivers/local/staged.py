"""Initial workspace files on one machine: handed to the SandboxDriver in memory, for one pass.

A cluster stages them as a Secret object; here nothing is written anywhere on the way to the Sandbox. The document says whose it is, and
the labels say it again, so that the Driver refuses another owner's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.contracts.sandbox import PrivateObject, WorkspaceSetup
from oce.domain.ids import uuid_of

if TYPE_CHECKING:
    from oce.contracts.sandbox import PhysicalNamespace
    from oce.domain.resources import AgentRevision
    from oce.domain.secret import SecretText

_KEY: Final = "setup.json"


def workspace_setup(revision: AgentRevision) -> WorkspaceSetup | None:
    """Return the requirement of a revision; the same on every pass, also when the files are long in place."""
    if revision.workspace_setup_id is None:
        return None
    return WorkspaceSetup(
        id=revision.workspace_setup_id,
        defaults_id=None,
        secret_name=_name(revision),
        secret_key=_KEY,
    )


class StagedWorkspace:
    """`PrivateObjects` with the one document of one revision."""

    def __init__(self, revision: AgentRevision, workspace: SecretText) -> None:
        self._revision = revision
        self._workspace = workspace

    async def read(self, namespace: PhysicalNamespace, name: str, key: str) -> PrivateObject | None:
        """Return the document under its own name alone."""
        revision = self._revision
        if (namespace.id, name, key) != (revision.namespace_id, _name(revision), _KEY):
            return None
        labels = {
            "openclaw.dev/namespace": revision.namespace_id,
            "openclaw.dev/agent": revision.agent_id,
        }
        return PrivateObject(labels=labels, value=self._workspace)


def _name(revision: AgentRevision) -> str:
    return f"workspace-setup-{uuid_of(revision.agent_id)}"
