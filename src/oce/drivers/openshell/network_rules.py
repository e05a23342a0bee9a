"""Network rules of the Driver: from the startup YAML or an Agent's additions, to the wire.

One closed shape for both: `{name, binaries: [{path}], endpoints: [{host, ports, protocol?, tls?, enforcement?, access?, path?}]}`.
Meaning and validity are those of `oce.policy`; what this module adds is the spelling, the stricter host rules for additions, and
the wire form. An omitted `enforcement` means `enforce` here (the gateway's own default would only log), an omitted `tls` automatic
inspection; `terminate` and `passthrough` are refused with advice (reference/sandbox-openshell.md §3.3).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import ConfigurationRefused, Detail, NetworkPolicyConflict
from oce.drivers.openshell.documents import Block, absolute_path, refuse, text
from oce.drivers.openshell.public_names import holds_public_suffix, is_public_suffix
from oce.policy.match import is_address, is_glob, normal_host
from oce.policy.model import (
    PROVIDER_RULE_PREFIX,
    Access,
    Endpoint,
    Enforcement,
    NetworkPolicy,
    PolicyError,
    Protocol,
    Rule,
    Tls,
)
from oce.policy.validate import policy_problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oce.drivers.openshell.documents import Document

RESERVED_RULES: Final = frozenset(("workspace-node-enrollment",))
"""Rule names that the Driver generates itself."""
MAX_ADDITIONS: Final = 64
_MAX_PORT: Final = 65_535
_PROTOCOLS: Final = {"tcp": Protocol.TCP, "rest": Protocol.REST, "websocket": Protocol.WEBSOCKET}
_ACCESS: Final = {
    "read_only": Access.READ_ONLY,
    "read_write": Access.READ_WRITE,
    "full": Access.FULL,
}
_WIRE_ACCESS: Final = {
    Access.READ_ONLY: "NETWORK_ACCESS_PRESET_READ_ONLY",
    Access.READ_WRITE: "NETWORK_ACCESS_PRESET_READ_WRITE",
    Access.FULL: "NETWORK_ACCESS_PRESET_FULL",
}
_WIRE_ENFORCEMENT: Final = {
    Enforcement.ENFORCE: "NETWORK_ENFORCEMENT_MODE_ENFORCE",
    Enforcement.AUDIT: "NETWORK_ENFORCEMENT_MODE_AUDIT",
}
_INTERNAL_SUFFIXES: Final = ("local", "localhost", "internal", "svc", "arpa", "home", "lan")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label that a resolver reads as a part of an address: `127.1`, `0x7f.1`."""
_REPOSITORY_HOSTS: Final = ("github.com", "api.github.com", "codeload.github.com")


def parse_rules(items: Iterable[tuple[object, str]]) -> tuple[Rule, ...]:
    """Parse a list of rules given as (value, path). Raises ConfigurationRefused."""
    rules: dict[str, Rule] = {}
    for value, path in items:
        rule = _rule(value, path)
        if rule.key in rules:
            refuse(f"{path}/name", "INVALID_VALUE", "appears twice")
        rules[rule.key] = rule
    return tuple(rules.values())


def parse_document(items: Sequence[object], path: str) -> tuple[Rule, ...]:
    """Parse a plain list of rules."""
    return parse_rules((item, f"{path}/{index}") for index, item in enumerate(items))


def check(rules: Sequence[Rule], path: str, places: Mapping[str, str] | None = None) -> None:
    """Apply the policy language's own admission to rules that will be one policy; `places` are the pointers of rules by name.

    Raises ConfigurationRefused.
    """
    problems: tuple[PolicyError, ...] = policy_problems(NetworkPolicy(tuple(rules)))
    if problems:
        raise ConfigurationRefused(
            *(
                Detail(_place(p.path, path, places or {}), "INVALID_VALUE", p.problem)
                for p in problems
            )
        )


def _place(where: str, path: str, places: Mapping[str, str]) -> str:
    """Return the pointer of a problem that the policy language names as `network_policies.web.endpoints[0].host`."""
    inside = where.removeprefix("network_policies.")
    for name in sorted(places, key=len, reverse=True):
        rest = inside.removeprefix(name)
        if inside.startswith(name) and (not rest or rest.startswith(".")):
            return places[name] + rest.replace(".", "/").replace("[", "/").replace("]", "")
    return f"{path}/{where}"


def admit_additions(
    additions: Sequence[Rule], defaults: Sequence[Rule], *, repository_credentials: bool, path: str
) -> None:
    """Refuse additions that are too wide, meet the Driver's own paths, or do not fit the defaults.

    Raises ConfigurationRefused, NetworkPolicyConflict.
    """
    if len(additions) > MAX_ADDITIONS:
        refuse(path, "TOO_LONG", f"at most {MAX_ADDITIONS} rules")
    taken = {rule.key for rule in defaults} | RESERVED_RULES
    for index, rule in enumerate(additions):
        where = f"{path}/{index}"
        if rule.key in taken:
            refuse(f"{where}/name", "INVALID_VALUE", "the name of a rule that exists already")
        for number, endpoint in enumerate(rule.endpoints):
            problem = addition_host_problem(endpoint.host)
            if problem is not None:
                refuse(f"{where}/endpoints/{number}/host", "INVALID_VALUE", problem)
            if repository_credentials and _reaches_repository(endpoint.host):
                raise NetworkPolicyConflict(rule.key)
    places = {rule.key: f"{path}/{index}" for index, rule in enumerate(additions)}
    check([*defaults, *additions], path, places)


def addition_host_problem(host: str) -> str | None:
    """Say why an Agent's addition may not name this host, or None.

    Stricter than a startup default: no address, no cluster-internal or single-label name, and a wildcard only below a name that
    somebody can own.
    """
    name = normal_host(host)
    labels = name.split(".")
    if is_address(name) or _NUMBER.fullmatch(labels[-1]):
        return "an address; name the host"
    if len(labels) == 1 or labels[-1] in _INTERNAL_SUFFIXES or "svc" in labels:
        return "a name that is not public"
    return _wildcard_problem(labels) if is_glob(name) else None


def _wildcard_problem(labels: Sequence[str]) -> str | None:
    owned = ".".join(labels[1:])
    if is_glob(owned):
        return "a wildcard that is not the first label"
    if is_public_suffix(owned):
        return "a wildcard over a public suffix"
    if "**" in labels[0] and holds_public_suffix(owned):
        return "a wildcard that crosses a public suffix"
    return None


def rule_document(rule: Rule) -> Document:
    """Return a rule in the spelling of the startup YAML; `parse_rules` reads it back to the same rule."""
    return {
        "name": rule.key,
        "binaries": [{"path": path} for path in rule.binaries],
        "endpoints": [_endpoint_document(endpoint) for endpoint in rule.endpoints],
    }


def wire_rule(rule: Rule) -> Document:
    """Return a rule as a document of the wire's NetworkPolicyRule."""
    return {
        "name": rule.key,
        "endpoints": [wire_endpoint(endpoint) for endpoint in rule.endpoints],
        "binaries": [{"path": path} for path in rule.binaries],
    }


def wire_endpoint(endpoint: Endpoint) -> Document:
    """Return an endpoint as a document of the wire's NetworkEndpoint."""
    document: Document = {
        "host": endpoint.host,
        "ports": list(endpoint.ports),
        "enforcement": _WIRE_ENFORCEMENT[endpoint.enforcement],
    }
    if endpoint.protocol is not Protocol.TCP:
        document["protocol"] = endpoint.protocol.value
    if endpoint.tls is Tls.SKIP:
        document["tls"] = "NETWORK_TLS_MODE_SKIP"
    if endpoint.access is not Access.NONE:
        document["access"] = _WIRE_ACCESS[endpoint.access]
    if endpoint.path:
        document["path"] = endpoint.path
    return document


def _endpoint_document(endpoint: Endpoint) -> Document:
    document: Document = {
        "host": endpoint.host,
        "ports": list(endpoint.ports),
        "protocol": endpoint.protocol.value,
        "enforcement": endpoint.enforcement.value,
    }
    if endpoint.tls is Tls.SKIP:
        document["tls"] = "skip"
    if endpoint.access is not Access.NONE:
        document["access"] = endpoint.access.value.replace("-", "_")
    if endpoint.path:
        document["path"] = endpoint.path
    return document


def _rule(value: object, path: str) -> Rule:
    block = Block(value, path)
    name = block.text("name")
    if name.startswith(PROVIDER_RULE_PREFIX) or name in RESERVED_RULES:
        refuse(block.at("name"), "INVALID_VALUE", "a reserved name")
    endpoints = tuple(_endpoint(item, where) for item, where in block.items("endpoints"))
    if not endpoints:
        refuse(block.at("endpoints"), "REQUIRED", "at least one endpoint")
    binaries = tuple(_binary(item, where) for item, where in block.items("binaries"))
    if not binaries:
        refuse(block.at("binaries"), "REQUIRED", "at least one program")
    block.finish()
    return Rule(key=name, name=name, binaries=binaries, endpoints=endpoints)


def _binary(value: object, path: str) -> str:
    block = Block(value, path)
    binary = absolute_path(text(block.text("path"), block.at("path")), block.at("path"))
    block.finish()
    return binary


def _endpoint(value: object, path: str) -> Endpoint:
    block = Block(value, path)
    host = block.text("host")
    ports = tuple(_port(item, where) for item, where in block.items("ports"))
    if not ports:
        refuse(block.at("ports"), "REQUIRED", "at least one port")
    protocol = Protocol(
        block.choice("protocol", {k: v.value for k, v in _PROTOCOLS.items()}, "tcp")
    )
    tls = _tls(block)
    enforcement = Enforcement(
        block.choice("enforcement", {"enforce": "enforce", "audit": "audit"}, "enforce")
    )
    access = Access(block.choice("access", {k: v.value for k, v in _ACCESS.items()}, ""))
    scope = block.optional_text("path") or ""
    block.finish()
    return Endpoint(
        host=host,
        ports=ports,
        protocol=protocol,
        tls=tls,
        enforcement=enforcement,
        access=access,
        path=scope,
    )


def _tls(block: Block) -> Tls:
    where = block.at("tls")
    spelling = block.optional_text("tls")
    if spelling is None:
        return Tls.AUTO
    if spelling == "terminate":
        refuse(where, "INVALID_VALUE", "omit tls for automatic inspection")
    if spelling == "passthrough":
        refuse(where, "INVALID_VALUE", "use skip for an uninspected relay")
    if spelling != "skip":
        refuse(where, "INVALID_VALUE", "skip, or omit it")
    return Tls.SKIP


def _port(value: object, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(path, "INVALID_TYPE", "an integer")
    if not 1 <= value <= _MAX_PORT:
        refuse(path, "INVALID_VALUE", "1..65535")
    return value


def _reaches_repository(host: str) -> bool:
    name = normal_host(host)
    suffix = name.lstrip("*").lstrip(".")
    return any(
        name == own or (is_glob(name) and (own == suffix or own.endswith(f".{suffix}")))
        for own in _REPOSITORY_HOSTS
    )
