"""Between the contribution `sandbox-network-policy` and the policy language that decides (`oce.policy`). Pure.

A rule of the contribution is `{name, binaries: [{path}], endpoints: [{host, ports, protocol?, tls?, enforcement?, access?, path?}]}`; an
omitted `enforcement` means `enforce`. A snapshot keeps its defaults and additions in the same spelling. This module reads that for
explanations and writes the rule that an explanation proposes; what a rule may be is the Driver's decision at admission.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from oce.core.errors import NotOffered
from oce.policy.codec import from_document
from oce.policy.model import NetworkPolicy, PolicyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oce.contracts.sandbox import PolicySnapshot
    from oce.domain.resources import Json

_READ: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_WRITE: Final = frozenset(("POST", "PUT", "PATCH"))
_NAME_MAX: Final = 48


def policy_of(snapshot: PolicySnapshot, source_rules: Mapping[str, Json]) -> NetworkPolicy:
    """Return what a snapshot and the layers of attached credential sources mean together.

    Raises NotOffered for a snapshot of a Driver that spells its policies in another way.
    """
    try:
        own = {
            str(rule["name"]): _rule(rule)
            for part in (snapshot.defaults, snapshot.additions)
            for rule in part or ()
        }
        return from_document({**own, **source_rules})
    except (PolicyError, KeyError, TypeError, AttributeError):
        raise NotOffered(
            "The selected Sandbox Driver's policies cannot be explained here."
        ) from None


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "binaries": list(rule["binaries"]),
        "endpoints": [_endpoint(endpoint) for endpoint in rule["endpoints"]],
    }


def _endpoint(endpoint: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **endpoint,
        "enforcement": endpoint.get("enforcement", "enforce"),
        "access": str(endpoint.get("access", "")).replace("_", "-"),
    }


def proposals(addition: Mapping[str, Any], method: str, taken: frozenset[str]) -> Iterator[Json]:
    """Yield rules of the contribution that may allow what an explanation's `addition` describes, the narrowest first.

    The contribution has method presets and no method lists, so what it says can be wider than `addition`: the preset that holds the
    method, on exactly that path if possible. Whether a rule does allow it, and may be added, is for the caller to try.
    """
    endpoint = addition["endpoints"][0]
    ports = endpoint["ports"] if "ports" in endpoint else [endpoint["port"]]
    plain: dict[str, Any] = {"host": endpoint["host"], "ports": list(ports)}
    if endpoint.get("tls") == "skip":
        plain["tls"] = "skip"
    if endpoint.get("enforcement") != "enforce":
        plain["enforcement"] = "audit"
    shapes: list[dict[str, Any]] = []
    if method and "tls" not in plain:
        judged = {
            **plain,
            "protocol": endpoint.get("protocol", "rest"),
            "access": preset(method.upper()),
        }
        allowed = [item["allow"]["path"] for item in endpoint.get("rules", ())]
        shapes += [{**judged, "path": path} for path in allowed]
        if endpoint.get("path"):
            shapes.append({**judged, "path": endpoint["path"]})
        shapes.append(judged)
    shapes.append(plain)
    name = _name(str(endpoint["host"]), taken)
    for shape in shapes:
        yield {"name": name, "binaries": list(addition["binaries"]), "endpoints": [shape]}


def preset(method: str) -> str:
    """Return the narrowest access preset that holds a method."""
    if method in _READ:
        return "read_only"
    return "read_write" if method in _WRITE else "full"


def _name(host: str, taken: frozenset[str]) -> str:
    base = re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")[:_NAME_MAX] or "addition"
    number, name = 1, base
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name
