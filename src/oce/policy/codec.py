"""The policy as a JSON document, in the spelling that people author (`network_policies`, snake_case), and back.

Used for files, admission and the egress process's control channel. The schema is closed: an unknown key is refused by its path,
and a key that upstream knows but nothing here honours is refused as such. Shape and meaning of values beyond types are
`validate`'s. Source: reference/openshell-gateway.md b.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from oce.policy.model import (
    Access,
    Endpoint,
    Enforcement,
    NetworkPolicy,
    PolicyError,
    Protocol,
    QueryMatcher,
    RequestMatcher,
    Rule,
    Tls,
)

_E = TypeVar("_E", bound=StrEnum)

_UNSUPPORTED = frozenset(
    {
        "persisted_queries",
        "graphql_persisted_queries",
        "graphql_max_body_bytes",
        "json_rpc_max_body_bytes",
        "websocket_credential_rewrite",
        "request_body_credential_rewrite",
        "credential_signing",
        "signing_service",
        "signing_region",
        "mcp",
        "credential_binding",
        "allow_uninspected_credentials",
    }
)


def to_document(policy: NetworkPolicy) -> dict[str, object]:
    """Return `{rule key: rule}`; what has its default is left out, so that equal policies have equal documents."""
    return {rule.key: _rule_document(rule) for rule in policy.rules}


def from_document(document: object, path: str = "network_policies") -> NetworkPolicy:
    """Parse `{rule key: rule}`. Raises PolicyError."""
    rules = _mapping(document, path)
    return NetworkPolicy(tuple(_rule(key, value, f"{path}.{key}") for key, value in rules.items()))


def _rule_document(rule: Rule) -> dict[str, object]:
    document: dict[str, object] = {"name": rule.name} if rule.name else {}
    document["binaries"] = [{"path": binary} for binary in rule.binaries]
    document["endpoints"] = [endpoint_document(endpoint) for endpoint in rule.endpoints]
    return document


def endpoint_document(endpoint: Endpoint) -> dict[str, object]:
    """Return one endpoint as people write it."""
    optional: dict[str, object] = {
        "host": endpoint.host,
        "protocol": "" if endpoint.protocol is Protocol.TCP else endpoint.protocol.value,
        "tls": "" if endpoint.tls is Tls.AUTO else endpoint.tls.value,
        "enforcement": "" if endpoint.enforcement is Enforcement.AUDIT else "enforce",
        "access": endpoint.access.value,
        "rules": [{"allow": _matcher_document(m)} for m in endpoint.allow],
        "deny_rules": [_matcher_document(m) for m in endpoint.deny],
        "path": endpoint.path,
        "allowed_ips": list(endpoint.allowed_ips),
        "allow_encoded_slash": endpoint.allow_encoded_slash,
    }
    single = len(endpoint.ports) == 1
    ports = {"port": endpoint.ports[0]} if single else {"ports": list(endpoint.ports)}
    return {**ports, **{key: value for key, value in optional.items() if value}}


def _matcher_document(matcher: RequestMatcher) -> dict[str, object]:
    document: dict[str, object] = {"method": matcher.method, "path": matcher.path}
    if matcher.query:
        document["query"] = {q.key: {"any": list(q.values)} for q in matcher.query}
    return document


def _rule(key: str, value: object, path: str) -> Rule:
    document = _closed(value, path, {"name", "binaries", "endpoints"})
    binaries = [
        _binary(item, f"{path}.binaries[{n}]")
        for n, item in enumerate(_list(document.get("binaries", []), f"{path}.binaries"))
    ]
    endpoints = [
        _endpoint(item, f"{path}.endpoints[{n}]")
        for n, item in enumerate(_list(document.get("endpoints", []), f"{path}.endpoints"))
    ]
    name = _text(document.get("name", ""), f"{path}.name")
    return Rule(key=key, name=name, binaries=tuple(binaries), endpoints=tuple(endpoints))


def _binary(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    return _text(_closed(value, path, {"path"}).get("path"), f"{path}.path")


_ENDPOINT_KEYS = {
    "host",
    "port",
    "ports",
    "protocol",
    "tls",
    "enforcement",
    "access",
    "rules",
    "deny_rules",
    "path",
    "allowed_ips",
    "allow_encoded_slash",
}


def _endpoint(value: object, path: str) -> Endpoint:
    document = _closed(value, path, _ENDPOINT_KEYS)
    if "port" in document and "ports" in document:
        raise PolicyError(path, "has both port and ports")
    ports = [document["port"]] if "port" in document else document.get("ports", [])
    allow = [
        _matcher(_closed(item, where, {"allow"}).get("allow"), f"{where}.allow")
        for n, item in enumerate(_list(document.get("rules", []), f"{path}.rules"))
        for where in [f"{path}.rules[{n}]"]
    ]
    deny = [
        _matcher(item, f"{path}.deny_rules[{n}]")
        for n, item in enumerate(_list(document.get("deny_rules", []), f"{path}.deny_rules"))
    ]
    slash = document.get("allow_encoded_slash", False)
    if not isinstance(slash, bool):
        raise PolicyError(f"{path}.allow_encoded_slash", "is not true or false")
    return Endpoint(
        host=_text(document.get("host", ""), f"{path}.host"),
        ports=tuple(_port(p, f"{path}.ports") for p in _list(ports, f"{path}.ports")),
        protocol=_choice(Protocol, document.get("protocol") or Protocol.TCP, f"{path}.protocol"),
        tls=_choice(Tls, document.get("tls") or Tls.AUTO, f"{path}.tls"),
        enforcement=_choice(
            Enforcement, document.get("enforcement") or Enforcement.AUDIT, f"{path}.enforcement"
        ),
        access=_choice(Access, document.get("access", ""), f"{path}.access"),
        allow=tuple(allow),
        deny=tuple(deny),
        path=_text(document.get("path", ""), f"{path}.path"),
        allowed_ips=tuple(
            _text(ip, f"{path}.allowed_ips")
            for ip in _list(document.get("allowed_ips", []), f"{path}.allowed_ips")
        ),
        allow_encoded_slash=slash,
    )


def _matcher(value: object, path: str) -> RequestMatcher:
    document = _closed(value, path, {"method", "path", "query"})
    query = _mapping(document.get("query", {}), f"{path}.query")
    return RequestMatcher(
        method=_text(document.get("method", "*"), f"{path}.method"),
        path=_text(document.get("path", "**"), f"{path}.path"),
        query=tuple(
            QueryMatcher(key, _globs(item, f"{path}.query.{key}")) for key, item in query.items()
        ),
    )


def _globs(value: object, path: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    document = _closed(value, path, {"glob", "any"})
    if ("glob" in document) == ("any" in document):
        raise PolicyError(path, "needs exactly one of glob and any")
    if "glob" in document:
        return (_text(document["glob"], f"{path}.glob"),)
    return tuple(_text(item, f"{path}.any") for item in _list(document["any"], f"{path}.any"))


def _closed(value: object, path: str, keys: set[str]) -> Mapping[str, object]:
    document = _mapping(value, path)
    for key in document:
        if key in _UNSUPPORTED:
            raise PolicyError(f"{path}.{key}", "is not supported by this gateway")
        if key not in keys:
            raise PolicyError(f"{path}.{key}", "is not a known key")
    return document


def _mapping(value: object, path: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise PolicyError(path, "is not a mapping")
    return value


def _list(value: object, path: str) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise PolicyError(path, "is not a list")
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise PolicyError(path, "is not text")
    return value


def _port(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise PolicyError(path, "is not a port number")
    return value


def _choice(kind: type[_E], value: object, path: str) -> _E:
    try:
        return kind(_text(value, path))
    except ValueError as error:
        if isinstance(error, PolicyError):
            raise
        known = ", ".join(repr(item.value) for item in kind)
        raise PolicyError(path, f"is not one of {known}") from None
