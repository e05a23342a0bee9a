"""Errors of access control beyond the common tree."""

from __future__ import annotations

from oce.core.errors import Forbidden


class AgentPrincipalForbidden(Forbidden):
    """The actor may, the Agent's own principal may not: names principal, action and resource (reference/control-plane.md §4.4)."""

    def __init__(self, principal_id: str, action: str, kind: str, resource_id: str) -> None:
        super().__init__(
            f"The Agent's principal {principal_id} may not {action} {kind} {resource_id}."
        )
