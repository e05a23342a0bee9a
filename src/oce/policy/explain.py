"""One sentence that says what was decided, by which rule, and what would change it.

For people: `occ agent policy explain`, the body of a 403, the demo. It repeats decisions of `decide` in words and never takes
one. Sentences carry host, port, program, method and path; never a query or a header.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oce.policy.canonical import PathError, canonical_path
from oce.policy.codec import endpoint_document
from oce.policy.decide import Connection, Judge, Request
from oce.policy.match import normal_host
from oce.policy.model import (
    Access,
    DenyCode,
    Endpoint,
    Enforcement,
    NetworkPolicy,
    Protocol,
    RequestMatcher,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What was asked, decided and could be added. `addition` is a rule document that would allow it, None if allowed.

    `decision` is the part of `sentence` that says what was decided, without what could be added.
    """

    allowed: bool
    rule: str
    decision: str
    sentence: str
    addition: Mapping[str, object] | None


def explain(
    policy: NetworkPolicy, *, host: str, port: int, binary: str, method: str = "", path: str = ""
) -> Explanation:
    """Explain a connection, or a request when `method` is given (path defaults to `/`). Raises PathError."""
    judge = Judge(policy)
    connection = Connection(normal_host(host), port, (binary,) if binary else ())
    if not method:
        return explain_verdict(judge.connection(connection), connection)
    plain = (path or "/").split("?", 1)[0]
    if not plain.startswith("/"):
        raise PathError("the path does not start with a slash")
    canonical = canonical_path(plain, allow_encoded_slash=judge.encoded_slash(connection))
    request = Request(method.upper(), canonical.match)
    return explain_verdict(judge.request(connection, request), connection, request)


def explain_verdict(
    verdict: Verdict, connection: Connection, request: Request | None = None
) -> Explanation:
    """Put a verdict that was already taken into words."""
    asked = _asked(connection, request)
    if verdict.allowed and not verdict.would_deny:
        sentence = f"Allowed: {asked}, by rule {verdict.rule!r}."
        return Explanation(
            allowed=True, rule=verdict.rule, decision=sentence, sentence=sentence, addition=None
        )
    addition = addition_for(verdict, connection, request)
    if verdict.allowed:
        decision = sentence = (
            f"Allowed but noted: {asked}; {verdict.reason}, and rule {verdict.rule!r} only audits."
        )
    else:
        decision = f"Denied: {asked}; {verdict.reason}."
        sentence = f"{decision} {next_step(verdict, addition)}"
    return Explanation(
        allowed=verdict.allowed,
        rule=verdict.rule,
        decision=decision,
        sentence=sentence,
        addition=addition,
    )


def _asked(connection: Connection, request: Request | None) -> str:
    programs = ", ".join(sorted(set(connection.binaries))) or "an unknown program"
    where = f"{connection.host}:{connection.port}"
    if request is None:
        return f"{programs} to {where}"
    return f"{programs} with {request.method} {request.path} at {where}"


def addition_for(
    verdict: Verdict, connection: Connection, request: Request | None = None
) -> Mapping[str, object] | None:
    """Return the narrowest rule document that would allow what was denied, or None where no addition can."""
    if verdict.code in (DenyCode.DENY_RULE, DenyCode.IDENTITY, None) or not connection.binaries:
        return None
    endpoint = dict(endpoint_document(_endpoint_for(verdict, connection, request)))
    endpoint.pop("port", None)
    host = re.sub(r"[^a-z0-9]+", "-", connection.host).strip("-")
    return {
        "name": f"allow-{host}-{connection.port}",
        "binaries": [{"path": binary} for binary in sorted(set(connection.binaries))],
        "endpoints": [{**endpoint, "ports": [connection.port]}],
    }


def _endpoint_for(verdict: Verdict, connection: Connection, request: Request | None) -> Endpoint:
    """Return the endpoint to add; it agrees with a deciding one, or it would be ambiguous or without effect."""
    where = Endpoint(
        host=connection.host, ports=(connection.port,), enforcement=Enforcement.ENFORCE
    )
    if request is None or verdict.code is not DenyCode.METHOD_PATH:
        return where
    decided = verdict.endpoints[0] if verdict.endpoints else replace(where, protocol=Protocol.REST)
    return replace(
        decided,
        host=where.host,
        ports=where.ports,
        access=Access.NONE,
        allow=(RequestMatcher(method=request.method, path=request.path),),
        deny=(),
    )


def next_step(verdict: Verdict, addition: Mapping[str, object] | None) -> str:
    """Say in one sentence what would allow it."""
    if verdict.code is DenyCode.DENY_RULE:
        return f"Only a change of the deny rule in {verdict.rule!r} would allow it."
    if addition is None:
        return "No rule can allow a connection whose program is not known."
    return f"To allow it, add this rule to the network policy: {json.dumps(addition)}"
