"""IamDriver: may this identity do this? Default deny (reference/control-plane.md §4.2).

The bundled driver (`native`) decides over the policy in our own database; an outage propagates as an outage, never as an allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.domain.resources import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRequest:
    """Who wants to do what. `create` is asked against the parent: `resource_id` None with the Namespace (or Installation)."""

    principal_id: str
    action: str
    resource_kind: str
    resource_id: str | None
    namespace_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessDecision:
    """The answer and its evidence (sorted, unique ids)."""

    allowed: bool
    reason: str
    driver_id: str
    binding_ids: tuple[str, ...] = ()
    role_ids: tuple[str, ...] = ()
    restriction_ids: tuple[str, ...] = ()


class IamDriver(Protocol):
    """The required members."""

    @property
    def id(self) -> str:
        """Id of the selected Driver."""

    @property
    def implementation(self) -> str:
        """Name of the Driver's program."""

    async def lookup_identity(self, principal_id: str) -> Identity | None:
        """Return the identity with that id; None when there is none."""

    async def authorize(self, request: AccessRequest) -> AccessDecision:
        """Decide from the current policy; nothing is cached."""

    async def authorize_many(self, requests: Sequence[AccessRequest]) -> Sequence[AccessDecision]:
        """Decide several requests of one principal from one snapshot of the policy, in their order (lists)."""
