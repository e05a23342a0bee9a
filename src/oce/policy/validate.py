"""What a policy must fulfil before it is admitted: shapes, breadth, and no two readings of the same traffic.

Runs at admission in the control plane and again in the gateway. It answers with every problem at once, each with its path; it
changes nothing. Source: reference/openshell-gateway.md b.3.
"""

from __future__ import annotations

import re
from itertools import combinations

from oce.policy.addresses import MIN_PREFIX, closed_kind, effective_address, parse_ranges
from oce.policy.match import (
    HOST_SEPARATOR,
    PATH_SEPARATOR,
    globs_intersect,
    is_address,
    is_glob,
    normal_host,
)
from oce.policy.model import (
    PROVIDER_RULE_PREFIX,
    Access,
    Endpoint,
    NetworkPolicy,
    PolicyError,
    Protocol,
    RequestMatcher,
    Rule,
    Tls,
)

MAX_RULES = 256
MAX_ENDPOINTS = 256
MAX_PATTERN = 4096
MAX_PORT = 65535

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_LABEL = re.compile(r"[a-z0-9_*?](?:[a-z0-9_*?-]{0,61}[a-z0-9_*?])?")
_LITERAL_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)")
_METHOD = re.compile(r"[A-Za-z][A-Za-z-]{0,31}|\*")
_MAX_HOST = 253


def policy_problems(policy: NetworkPolicy, *, authored: bool = True) -> tuple[PolicyError, ...]:
    """Return every problem; empty means admissible. `authored` policies may not use keys reserved for providers."""
    found: list[PolicyError] = []
    if len(policy.rules) > MAX_RULES:
        found.append(PolicyError("network_policies", f"has more than {MAX_RULES} rules"))
    keys: set[str] = set()
    for rule in policy.rules:
        path = f"network_policies.{rule.key}"
        if rule.key in keys:
            found.append(PolicyError(path, "appears twice"))
        keys.add(rule.key)
        if authored and rule.key.startswith(PROVIDER_RULE_PREFIX):
            found.append(PolicyError(path, f"uses the reserved prefix {PROVIDER_RULE_PREFIX}"))
        found.extend(_rule_problems(rule, path))
    if not found:
        found.extend(_ambiguities(policy))
    return tuple(found)


def require_valid(policy: NetworkPolicy, *, authored: bool = True) -> None:
    """Raise the first PolicyError of a policy that must not be admitted."""
    for problem in policy_problems(policy, authored=authored):
        raise problem


def _rule_problems(rule: Rule, path: str) -> list[PolicyError]:
    found: list[PolicyError] = []
    if not _KEY.fullmatch(rule.key):
        found.append(PolicyError(path, "is not a usable rule key"))
    if not rule.binaries:
        found.append(
            PolicyError(f"{path}.binaries", "is empty, and a rule without programs allows nothing")
        )
    for n, binary in enumerate(rule.binaries):
        if not _absolute(binary) or binary == "/":
            found.append(
                PolicyError(f"{path}.binaries[{n}]", "is not an absolute program path or glob")
            )
    if not rule.endpoints:
        found.append(PolicyError(f"{path}.endpoints", "is empty"))
    if len(rule.endpoints) > MAX_ENDPOINTS:
        found.append(PolicyError(f"{path}.endpoints", f"has more than {MAX_ENDPOINTS} entries"))
    for n, endpoint in enumerate(rule.endpoints):
        found.extend(_endpoint_problems(endpoint, f"{path}.endpoints[{n}]"))
    return found


def _absolute(pattern: str) -> bool:
    parts = pattern.split("/")
    plain = pattern.isprintable() and len(pattern) <= MAX_PATTERN and "\\" not in pattern
    return (
        plain
        and parts[0] == ""
        and not any(p in ("", ".", "..") for p in parts[1:-1])
        and (parts[-1] not in (".", ".."))
    )


def _endpoint_problems(endpoint: Endpoint, path: str) -> list[PolicyError]:
    found: list[PolicyError] = []
    problem = host_problem(endpoint.host) if endpoint.host else None
    if not endpoint.host and not endpoint.allowed_ips:
        problem = "is empty, which needs allowed_ips"
    if problem:
        found.append(PolicyError(f"{path}.host", problem))
    if not endpoint.ports:
        found.append(PolicyError(f"{path}.ports", "is empty"))
    if any(not 1 <= port <= MAX_PORT for port in endpoint.ports):
        found.append(PolicyError(f"{path}.ports", f"has a port outside 1..{MAX_PORT}"))
    if len(set(endpoint.ports)) != len(endpoint.ports):
        found.append(PolicyError(f"{path}.ports", "names a port twice"))
    for n, text in enumerate(endpoint.allowed_ips):
        problem = range_problem(text)
        if problem:
            found.append(PolicyError(f"{path}.allowed_ips[{n}]", problem))
    if endpoint.path and not _path_glob(endpoint.path):
        found.append(PolicyError(f"{path}.path", "is not a canonical path glob"))
    found.extend(_request_problems(endpoint, path))
    return found


def _request_problems(endpoint: Endpoint, path: str) -> list[PolicyError]:
    found: list[PolicyError] = []
    speaks = bool(endpoint.allow) or endpoint.access is not Access.NONE
    if endpoint.protocol is Protocol.TCP:
        if speaks or endpoint.deny or endpoint.path:
            found.append(
                PolicyError(path, "judges requests, which needs protocol rest or websocket")
            )
    elif endpoint.tls is Tls.SKIP:
        found.append(PolicyError(f"{path}.tls", "skips TLS, so requests cannot be judged"))
    elif not speaks:
        found.append(PolicyError(path, "judges requests and needs access or rules"))
    if endpoint.allow and endpoint.access is not Access.NONE:
        found.append(PolicyError(path, "has both access and rules"))
    for name, matchers in (("rules", endpoint.allow), ("deny_rules", endpoint.deny)):
        for n, matcher in enumerate(matchers):
            found.extend(_matcher_problems(matcher, f"{path}.{name}[{n}]"))
    return found


def _matcher_problems(matcher: RequestMatcher, path: str) -> list[PolicyError]:
    found: list[PolicyError] = []
    if not _METHOD.fullmatch(matcher.method):
        found.append(PolicyError(f"{path}.method", "is not a method or *"))
    if not _path_glob(matcher.path):
        found.append(PolicyError(f"{path}.path", "is not a canonical path glob"))
    found.extend(
        PolicyError(f"{path}.query.{query.key}", "has no values")
        for query in matcher.query
        if not query.values
    )
    return found


def _path_glob(pattern: str) -> bool:
    return pattern == "**" or (
        _absolute(pattern) and "%" not in pattern.upper().replace("%2F", "") and ";" not in pattern
    )


def host_problem(host: str) -> str | None:
    """Say why a host or host glob cannot be in a policy, or None."""
    name = normal_host(host)
    if is_address(name):
        kind = closed_kind(effective_address(name))
        return f"is a {kind} address, which is never dialled" if kind else None
    labels = name.split(".")
    if len(name) > _MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        return "is not a host name or host glob"
    return _breadth_problem(labels)


def _breadth_problem(labels: list[str]) -> str | None:
    if _NUMERIC.fullmatch(labels[-1]):
        return "ends in a number but is not an IP address"
    if not any(_LITERAL_LABEL.fullmatch(label) for label in labels):
        return "matches every host"
    if is_glob(labels[-1]):
        return "leaves the top-level name open"
    return None


def range_problem(text: str) -> str | None:
    """Say why an allowed range cannot be in a policy, or None."""
    try:
        (network,) = parse_ranges((text,))
    except ValueError:
        return "is not an IP address or CIDR range"
    if network.prefixlen < MIN_PREFIX[network.version]:
        return "is a catch-all range"
    kind = closed_kind(network)
    if kind:
        return f"reaches {kind} addresses, which are never dialled"
    return None


def _ambiguities(policy: NetworkPolicy) -> list[PolicyError]:
    """Two endpoints that can meet the same program, host, port and path must treat it alike."""
    placed = [
        (rule, endpoint, f"network_policies.{rule.key}.endpoints[{n}]")
        for rule in policy.rules
        for n, endpoint in enumerate(rule.endpoints)
    ]
    found: list[PolicyError] = []
    for (rule, one, _), (other_rule, other, path) in combinations(placed, 2):
        difference = _difference(one, other)
        if difference and _meet(rule, one, other_rule, other):
            found.append(
                PolicyError(
                    path, f"differs in {difference} from rule {rule.key!r} for the same traffic"
                )
            )
    return found


def _difference(one: Endpoint, other: Endpoint) -> str | None:
    if one.tls is not other.tls:
        return "tls"
    inspected = (one.protocol is Protocol.TCP) != (other.protocol is Protocol.TCP)
    same_path = len(one.path) == len(other.path)
    if same_path and (inspected or one.protocol is not other.protocol):
        return "protocol"
    if same_path and one.enforcement is not other.enforcement:
        return "enforcement"
    if same_path and set(one.allowed_ips) != set(other.allowed_ips):
        return "allowed_ips"
    return None


def _meet(rule: Rule, one: Endpoint, other_rule: Rule, other: Endpoint) -> bool:
    if not set(one.ports) & set(other.ports):
        return False
    hosts = (
        not one.host
        or not other.host
        or globs_intersect(normal_host(one.host), normal_host(other.host), HOST_SEPARATOR)
    )
    paths = globs_intersect(one.path or "**", other.path or "**", PATH_SEPARATOR)
    return (
        hosts
        and paths
        and any(
            globs_intersect(a, b, PATH_SEPARATOR)
            for a in rule.binaries
            for b in other_rule.binaries
        )
    )
