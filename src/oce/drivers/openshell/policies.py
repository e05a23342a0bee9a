"""Per-Agent network policies at admission: additions in, a detached snapshot out (mission document 003).

The snapshot holds the startup defaults of this moment beside the additions, so that a later edit of the defaults never reinterprets an
admitted revision. Applying a policy to a running Sandbox is `live_policy`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.contracts.sandbox import NetworkPolicySupport, PolicySnapshot
from oce.drivers.openshell.documents import refuse
from oce.drivers.openshell.network_rules import admit_additions, parse_document, rule_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.contracts.sandbox import PolicyScope
    from oce.domain.resources import Json
    from oce.policy.model import Rule

SUPPORT: Final = NetworkPolicySupport(wildcards=True, port_ranges=False, live=True)
_WHERE: Final = ""
"""Paths of refusals are relative to the additions; who asked knows where they stand."""


def admit(
    driver_id: str,
    startup: Sequence[Rule],
    *,
    additions: Json,
    version: int,
    defaults: Json | None,
    scope: PolicyScope | None,
) -> PolicySnapshot:
    """Validate additions (None: none) against the defaults. Raises ConfigurationRefused, NetworkPolicyConflict."""
    wanted = [] if additions is None else additions
    if not isinstance(wanted, list):
        refuse(_WHERE, "INVALID_TYPE", "a list of rules")
    base = tuple(startup) if defaults is None else parse_document(defaults, "/defaults")
    rules = parse_document(wanted, _WHERE)
    admit_additions(
        rules,
        base,
        repository_credentials=scope is not None and scope.repository_credentials,
        path=_WHERE,
    )
    return PolicySnapshot(
        driver_id=driver_id,
        version=version,
        defaults=[rule_document(rule) for rule in base],
        additions=[rule_document(rule) for rule in rules],
    )
