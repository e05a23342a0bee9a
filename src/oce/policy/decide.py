"""Decisions: may these programs open this connection, may this request be made on it.

Deny by default. A rule speaks for a connection when one of its endpoints matches host and port and *every* program that holds
the socket matches one of its binaries (the program itself; what its parents are plays no part, or any tool an allowed agent
starts would inherit its reach). For a request the endpoints with the most specific matching `path` decide, and a matching deny
rule of any matching endpoint beats every allow. `audit` endpoints let the request pass and say so.

Names must be normalised (`match.normal_host`) and paths canonical (`canonical.canonical_path`) before they come here.
Source: reference/openshell-gateway.md c.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from oce.policy.canonical import PathError, query_values
from oce.policy.match import binary_matches, glob_matches, host_matches, path_matches
from oce.policy.model import (
    Access,
    DenyCode,
    Endpoint,
    Enforcement,
    NetworkPolicy,
    Protocol,
    RequestMatcher,
    Rule,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NO_RULE = "-"
"""Rule name of a decision that no rule took."""

_CACHE = 2048
_READ = frozenset({"GET", "HEAD", "OPTIONS"})
_WRITE = _READ | {"POST", "PUT", "PATCH"}
_PRESETS = {Access.READ_ONLY: _READ, Access.READ_WRITE: _WRITE}
# The separator of query values: a character that cannot be in them, so that `*` runs over everything.
_NOWHERE = "\n"


@dataclass(frozen=True, slots=True)
class Connection:
    """Where to, and the kernel-resolved program paths of all holders of the socket (never empty for an allow)."""

    host: str
    port: int
    binaries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request on a connection: upper-case method, `CanonicalPath.match`, raw query."""

    method: str
    path: str
    query: str = ""


_Pair = tuple[Rule, Endpoint]
_K = TypeVar("_K")
_V = TypeVar("_V")


class Judge:
    """One policy, ready to decide; remembers recent answers (bounded), so that a kept-alive connection costs a lookup."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self._policy = policy
        self._rules = sorted(policy.rules, key=lambda rule: rule.key)
        self._connections: dict[Connection, tuple[Verdict, tuple[_Pair, ...]]] = {}
        self._asks_query = any(
            matcher.query
            for rule in policy.rules
            for endpoint in rule.endpoints
            for matcher in (*endpoint.allow, *endpoint.deny)
        )
        self._requests: dict[tuple[Connection, Request], Verdict] = {}

    @property
    def policy(self) -> NetworkPolicy:
        """The policy that is judged."""
        return self._policy

    def names_host(self, host: str) -> bool:
        """Say whether some endpoint names this host, whatever the port and program."""
        return any(
            endpoint.host and host_matches(endpoint.host, host)
            for rule in self._rules
            for endpoint in rule.endpoints
        )

    def connection(self, connection: Connection) -> Verdict:
        """Decide about opening a connection."""
        return self._connection(connection)[0]

    def request(self, connection: Connection, request: Request) -> Verdict:
        """Decide about one request; includes the decision about its connection."""
        if request.query and not self._asks_query:
            request = Request(request.method, request.path)
        key = (connection, request)
        verdict = self._requests.get(key)
        if verdict is None:
            verdict = self._request(connection, request)
            _remember(self._requests, key, verdict)
        return verdict

    def encoded_slash(self, connection: Connection) -> bool:
        """Say whether every endpoint of this connection accepts `%2F` inside paths."""
        pairs = self._connection(connection)[1]
        return bool(pairs) and all(endpoint.allow_encoded_slash for _, endpoint in pairs)

    def _connection(self, connection: Connection) -> tuple[Verdict, tuple[_Pair, ...]]:
        known = self._connections.get(connection)
        if known is None:
            known = _decide_connection(self._rules, connection)
            _remember(self._connections, connection, known)
        return known

    def _request(self, connection: Connection, request: Request) -> Verdict:
        opened, pairs = self._connection(connection)
        return _decide_request(pairs, request) if opened.allowed else opened


def _remember(cache: dict[_K, _V], key: _K, value: _V) -> None:
    if len(cache) >= _CACHE:
        cache.clear()
    cache[key] = value


def _decide_connection(
    rules: Sequence[Rule], connection: Connection
) -> tuple[Verdict, tuple[_Pair, ...]]:
    where = f"{connection.host}:{connection.port}"
    if not rules:
        return _no(DenyCode.NO_POLICY, NO_RULE, f"{where}: the policy has no network rule"), ()
    reaching = [
        (rule, endpoint)
        for rule in rules
        for endpoint in rule.endpoints
        if _reaches(endpoint, connection)
    ]
    if not reaching:
        return _no(DenyCode.NO_ENDPOINT, NO_RULE, f"no rule names {where}"), ()
    if not connection.binaries:
        reason = f"{where}: the calling program could not be established"
        return _no(DenyCode.IDENTITY, NO_RULE, reason), ()
    pairs = tuple((r, e) for r, e in reaching if rule_admits(r, connection.binaries))
    if not pairs:
        key = reaching[0][0].key
        programs = ", ".join(sorted(set(connection.binaries)))
        others = "" if len(reaching) == 1 else " or any other rule for it"
        reason = f"program {programs} is not in rule {key!r}{others}"
        return _no(DenyCode.BINARY, key, reason), ()
    endpoints = tuple(endpoint for _, endpoint in pairs)
    return Verdict(allowed=True, rule=pairs[0][0].key, endpoints=endpoints), pairs


def _reaches(endpoint: Endpoint, connection: Connection) -> bool:
    if connection.port not in endpoint.ports:
        return False
    if not endpoint.host:
        return bool(endpoint.allowed_ips)
    return host_matches(endpoint.host, connection.host)


def rule_admits(rule: Rule, binaries: Iterable[str]) -> bool:
    """Say whether every program matches one of the rule's binaries."""
    return all(any(binary_matches(glob, binary) for glob in rule.binaries) for binary in binaries)


def _decide_request(pairs: Sequence[_Pair], request: Request) -> Verdict:
    here = [(r, e) for r, e in pairs if path_matches(e.path, request.path)]
    asked = f"{request.method} {request.path}"
    if not here:
        return _no(DenyCode.METHOD_PATH, pairs[0][0].key, f"{asked} is outside every endpoint path")
    try:
        values = query_values(request.query) if _asks_query(here) else {}
    except PathError as error:
        return _no(DenyCode.METHOD_PATH, here[0][0].key, str(error))
    denying = [
        (r, e) for r, e in here if any(_denies(matcher, request, values) for matcher in e.deny)
    ]
    top = max(len(endpoint.path) for _, endpoint in here)
    deciding = [(r, e) for r, e in here if len(e.path) == top]
    allowing = [(r, e) for r, e in deciding if _allows(e, request, values)]
    if denying:
        reason = f"{asked} is refused by a deny rule of {denying[0][0].key!r}"
        return _refuse(denying, DenyCode.DENY_RULE, reason, deciding)
    if not allowing:
        reason = f"{asked} is not allowed by {deciding[0][0].key!r}"
        return _refuse(deciding, DenyCode.METHOD_PATH, reason, deciding)
    return Verdict(
        allowed=True, rule=allowing[0][0].key, endpoints=tuple(endpoint for _, endpoint in allowing)
    )


def _refuse(
    refusing: Sequence[_Pair], code: DenyCode, reason: str, deciding: Sequence[_Pair]
) -> Verdict:
    """Refuse, unless every refusing endpoint only audits."""
    if any(endpoint.enforcement is Enforcement.ENFORCE for _, endpoint in refusing):
        endpoints = tuple(endpoint for _, endpoint in deciding)
        return _no(code, refusing[0][0].key, reason, endpoints)
    return Verdict(
        allowed=True,
        rule=refusing[0][0].key,
        reason=reason,
        code=code,
        would_deny=True,
        endpoints=tuple(endpoint for _, endpoint in deciding),
    )


def _asks_query(pairs: Sequence[_Pair]) -> bool:
    return any(matcher.query for _, e in pairs for matcher in (*e.allow, *e.deny))


def _allows(endpoint: Endpoint, request: Request, values: dict[str, list[str]]) -> bool:
    if endpoint.protocol is Protocol.TCP or endpoint.access is Access.FULL:
        return True
    if endpoint.access is not Access.NONE:
        return request.method in _PRESETS[endpoint.access]
    return any(
        _shape(matcher, request)
        and all(
            m.key in values and all(_value(m.values, v) for v in values[m.key])
            for m in matcher.query
        )
        for matcher in endpoint.allow
    )


def _denies(matcher: RequestMatcher, request: Request, values: dict[str, list[str]]) -> bool:
    return _shape(matcher, request) and all(
        any(_value(m.values, v) for v in values.get(m.key, ())) for m in matcher.query
    )


def _shape(matcher: RequestMatcher, request: Request) -> bool:
    method = matcher.method.upper()
    fits = method in ("*", request.method) or (method == "GET" and request.method == "HEAD")
    return fits and path_matches(matcher.path, request.path)


def _value(globs: Sequence[str], value: str) -> bool:
    return any(glob_matches(glob, value, _NOWHERE) for glob in globs)


def _no(code: DenyCode, rule: str, reason: str, endpoints: tuple[Endpoint, ...] = ()) -> Verdict:
    return Verdict(allowed=False, rule=rule, reason=reason, code=code, endpoints=endpoints)
