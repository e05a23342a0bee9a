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
from oce.core.policies import language
from oce.policy.model import NetworkPolicy
from oce.policy.validate import policy_problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oce.contracts.sandbox import AdmitsNetworkPolicy
    from oce.core.platform import Platform
    from oce.domain.resources import CredentialSource, Json

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


def admit(platform: Platform, values: Json, sources: Iterable[CredentialSource]) -> Json | None:
    """Return the snapshot to freeze, or None when the Driver has no per-Agent policies and none is asked for.

    Without additions there is a snapshot too: it is what keeps the defaults of this moment. Raises as `judge` does.
    """
    additions = additions_of(values)
    sandbox = platform.drivers.sandbox
    if additions is None and (sandbox is None or sandbox.policies is None):
        return None
    snapshot = judge(platform, additions, where=IN_DOCUMENT)
    require_composable(snapshot, layers_of(platform, sources), where=IN_DOCUMENT)
    return asdict(snapshot)


def layers_of(platform: Platform, sources: Iterable[CredentialSource]) -> dict[str, Json]:
    """Return the rules that the attached credential sources add, by key."""
    gateway = platform.drivers.credential_gateway
    if gateway is None:
        return {}
    return {
        key: rule
        for source in sources
        if source.driver_id == gateway.id
        for key, rule in gateway.network_rules(source).items()
    }


def require_composable(snapshot: PolicySnapshot, layers: Mapping[str, Json], *, where: str) -> None:
    """Refuse an addition that reads the traffic of a credential source in another way, such as uninspected.

    The provider would refuse the composed policy when the Sandbox is made; here it is said at once. A policy that cannot be read here
    is left to its Driver. Raises ConfigurationRefused.
    """
    try:
        composed = language.policy_of(snapshot, layers)
    except NotOffered:
        return
    # A problem of two rules is told of the later one: the additions come last.
    ordered = NetworkPolicy(
        tuple(sorted(composed.rules, key=lambda rule: 0 if rule.key in layers else 1))
    )
    places = {
        f"network_policies.{rule['name']}": f"{where}/{index}"
        for index, rule in enumerate(snapshot.additions or ())
    }
    details = [
        Detail(places[name] + rest.replace("[", "/").replace("]", ""), "INVALID_VALUE", one.problem)
        for one in policy_problems(ordered, authored=False)
        for name, _, rest in [_split(one.path)]
        if name in places
    ]
    if details:
        raise ConfigurationRefused(*details)


def _split(path: str) -> tuple[str, str, str]:
    """Split `network_policies.web.endpoints[0]` into the rule and the place inside, as a pointer."""
    name, dot, rest = path.partition(".endpoints")
    return name, dot, f"/endpoints{rest}" if dot else ""


def snapshot_of(document: Json) -> PolicySnapshot:
    """Read a stored snapshot."""
    return PolicySnapshot(**document)
