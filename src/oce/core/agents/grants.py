"""The grants of an Agent's own principal on what its draft references (ours).

An Agent never inherits its creator's permissions. But an actor who holds `operate` on what the draft references may pass exactly that on;
otherwise everybody would have to bind it by hand before the first deploy. The bindings name one built-in role, so that they are
told apart from those that people made, and they follow the draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.core.access.rules import AGENT_REFERENCE
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import AccessBinding
from oce.store import iam

if TYPE_CHECKING:
    from oce.domain.resources import Agent
    from oce.store.database import Tx


async def follow(tx: Tx, agent: Agent, wanted: frozenset[tuple[str, str]]) -> dict[str, list[str]]:
    """Make the automatic bindings of the Agent's principal exactly `wanted`; returns the added and removed resource ids."""
    present = {
        (one.resource_kind or "", one.resource_id or ""): one.id
        for one in await iam.bindings_of(tx, agent.service_principal_id, AGENT_REFERENCE)
    }
    removed = sorted(set(present) - wanted)
    added = sorted(wanted - set(present))
    for target in removed:
        await iam.remove_binding(tx, present[target])
    for kind, resource_id in added:
        await iam.insert_binding(
            tx,
            AccessBinding(
                id=new_id(IdKind.BINDING),
                subject_kind="identity",
                subject_id=agent.service_principal_id,
                role_id=AGENT_REFERENCE,
                namespace_id=agent.namespace_id,
                resource_kind=kind,
                resource_id=resource_id,
            ),
        )
    return {
        "grantedResourceIds": [resource_id for _, resource_id in added],
        "revokedResourceIds": [resource_id for _, resource_id in removed],
    }
