"""Admission of an Agent's network policy: the Driver judges, OCC freezes (mission document 003).

Additions come from the document's `sandbox-network-policy`, defaults from the Driver's startup configuration. The snapshot that the
Driver returns is stored in the revision, so that changed defaults never reinterpret one that was admitted.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from oce.contracts.refusals import ConfigurationRefused, Detail
from oce.contracts.sandbox import PolicySnapshot
from oce.core.configurations.schema import NETWORK_POLICY_KEY, read
from oce.core.errors import NotOffered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.contracts.sandbox import AdmitsNetworkPolicy
    from oce.core.platform import Platform
    from oce.domain.resources import Json

IN_DOCUMENT: Final = f"/values/{NETWORK_POLICY_KEY}/additions"
"""Where additions stand in a Configuration."""


def additions_of(values: Json) -> Json:
    """Return the additions that a document holds, or None."""
    return read(values, f"{NETWORK_POLICY_KEY}.additions")


def with_additions(values: Mapping[str, Any], additions: Json) -> dict[str, Any]:
    """Return a copy of a document with other additions; none removes the key."""
    rest = {key: value for key, value in values.items() if key != NETWORK_POLICY_KEY}
    return {**rest, NETWORK_POLICY_KEY: {"additions": additions}} if additions else rest


def admitting(platform: Platform) -> AdmitsNetworkPolicy:
    """Return the ability. Raises NotOffered."""
    sandbox = platform.drivers.sandbox
    if sandbox is None or sandbox.policies is None:
        raise NotOffered("The selected Sandbox Driver has no per-Agent network policies.")
    return sandbox.policies


def judge(
    platform: Platform, additions: Json, *, where: str, defaults: Json | None = None
) -> PolicySnapshot:
    """Return the Driver's snapshot; `defaults` None means the Driver's of this moment, `where` is the additions' pointer.

    Raises NotOffered, ConfigurationRefused with pointers below `where`, NetworkPolicyConflict.
    """
    settings = platform.settings
    try:
        return admitting(platform).admit_network_policy(
            additions,
            settings.network_policy_version,
            settings.network_policy_defaults if defaults is None else defaults,
        )
    except ConfigurationRefused as error:
        raise ConfigurationRefused(
            *(Detail(f"{where}{one.path}", one.code, one.note) for one in error.details)
        ) from error


def admit(platform: Platform, values: Json) -> Json | None:
    """Return the snapshot to freeze, or None when the Driver has no per-Agent policies and none is asked for.

    Without additions there is a snapshot too: it is what keeps the defaults of this moment. Raises as `judge` does.
    """
    additions = additions_of(values)
    sandbox = platform.drivers.sandbox
    if additions is None and (sandbox is None or sandbox.policies is None):
        return None
    return asdict(judge(platform, additions, where=IN_DOCUMENT))


def snapshot_of(document: Json) -> PolicySnapshot:
    """Read a stored snapshot."""
    return PolicySnapshot(**document)
