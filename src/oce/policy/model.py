"""The values of the network policy language: what a Sandbox may reach, with which program.

A policy is a set of rules; a rule joins programs (`binaries`) with destinations (`endpoints`). Nothing is allowed that no rule
allows. The values are frozen and plain, so that admission, the egress process and `occ` judge the same thing.

This module decides nothing and parses nothing: see `codec`, `validate`, `decide`, `explain`. Field meanings follow
reference/openshell-gateway.md b.3 and c.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PROVIDER_RULE_PREFIX = "_provider_"
"""Rule keys that only an attached provider's layer may use; an authored policy with such a key is refused."""


class Protocol(StrEnum):
    """How an endpoint's traffic is judged after the connection is allowed.

    `TCP` judges the connection alone; `REST` judges each HTTP request; `WEBSOCKET` is judged as `REST`, the frames after an
    allowed upgrade are not read. The languages that need a body parser (graphql, mcp, json-rpc, sql) do not exist here and
    are refused by name.
    """

    TCP = "tcp"
    REST = "rest"
    WEBSOCKET = "websocket"


class Tls(StrEnum):
    """`AUTO`: TLS is recognised and terminated. `SKIP`: relayed unread; only the ClientHello's name is compared."""

    AUTO = "auto"
    SKIP = "skip"


class Enforcement(StrEnum):
    """`ENFORCE`: a request that no allow rule matches is refused. `AUDIT`: it is forwarded and logged as would-be denied."""

    ENFORCE = "enforce"
    AUDIT = "audit"


class Access(StrEnum):
    """Method presets of an endpoint, instead of allow rules. `NONE` means that `allow` speaks."""

    NONE = ""
    READ_ONLY = "read-only"
    READ_WRITE = "read-write"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class QueryMatcher:
    """One query key and the value globs it may have (globs without separator)."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMatcher:
    """Shape of an HTTP request: method (`*` any, GET covers HEAD), path glob (`**` any), query matchers (all must hold)."""

    method: str = "*"
    path: str = "**"
    query: tuple[QueryMatcher, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A destination: host (exact or glob by labels; empty only beside `allowed_ips`) and ports, and what may be asked of it.

    `path` narrows the endpoint to a path glob; the longer one wins on the same host and port. `allowed_ips` are addresses or
    CIDR ranges; when present, only they are dialled.
    """

    host: str
    ports: tuple[int, ...]
    protocol: Protocol = Protocol.TCP
    tls: Tls = Tls.AUTO
    enforcement: Enforcement = Enforcement.AUDIT
    access: Access = Access.NONE
    allow: tuple[RequestMatcher, ...] = ()
    deny: tuple[RequestMatcher, ...] = ()
    path: str = ""
    allowed_ips: tuple[str, ...] = ()
    allow_encoded_slash: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Programs that may reach endpoints. `key` names the rule in decisions; empty `binaries` allow nothing."""

    key: str
    name: str = ""
    binaries: tuple[str, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """The whole network part of a Sandbox's effective policy. No rules: nothing is reachable."""

    rules: tuple[Rule, ...] = ()


class DenyCode(StrEnum):
    """Why a decision is no. Stable words for clients, logs and `explain`."""

    NO_POLICY = "no_policy"
    NO_ENDPOINT = "no_endpoint"
    BINARY = "binary"
    IDENTITY = "identity"
    METHOD_PATH = "method_path"
    DENY_RULE = "deny_rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One decision. `rule` is the key of the deciding rule, `-` if none; `reason` is a sentence fragment for logs.

    `would_deny` is set when an audit endpoint let through what `enforce` would have refused. `endpoints` are those that
    decided: after an allow their `allowed_ips`, `tls` and `allow_encoded_slash` govern what follows.
    """

    allowed: bool
    rule: str
    reason: str = ""
    code: DenyCode | None = None
    would_deny: bool = False
    endpoints: tuple[Endpoint, ...] = ()


class PolicyError(ValueError):
    """A policy, or a value of it, that cannot be accepted; `path` is where (`rules.web.endpoints[0].host`)."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem
