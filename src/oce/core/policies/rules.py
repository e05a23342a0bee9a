"""Network policy admission: the Driver judges, OCC freezes (mission document 003).

Additions come from the document's `sandbox-network-policy`, defaults from the startup YAML. The snapshot that the Driver returns is
stored in the revision, so that changed defaults never reinterpret one that was admitted.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from oce.contracts.refusals import ConfigurationRefused, Detail
from oce.core.configurations.schema import NETWORK_POLICY_KEY, read
from oce.core.errors import NotOffered

if TYPE_CHECKING:
    from oce.core.platform import Platform
    from oce.domain.resources import Json


def admit(platform: Platform, values: Json) -> Json | None:
    """Return the snapshot to freeze, or None when the Driver has no per-Agent policies and none is asked for.

    Raises InvalidRequest-shaped ConfigurationRefused, NetworkPolicyConflict, NotOffered (additions without the ability).
    """
    additions = read(values, f"{NETWORK_POLICY_KEY}.additions")
    sandbox = platform.drivers.sandbox
    policies = sandbox.policies if sandbox is not None else None
    if policies is None:
        if additions is not None:
            raise NotOffered("The selected Sandbox Driver has no per-Agent network policies.")
        return None
    if additions is None and platform.settings.network_policy_defaults is None:
        return None
    try:
        snapshot = policies.admit_network_policy(
            additions,
            platform.settings.network_policy_version,
            platform.settings.network_policy_defaults,
        )
    except ConfigurationRefused as error:
        raise ConfigurationRefused(
            *(
                Detail(f"/values/{NETWORK_POLICY_KEY}/additions{one.path}", one.code, one.note)
                for one in error.details
            )
        ) from error
    return asdict(snapshot)
