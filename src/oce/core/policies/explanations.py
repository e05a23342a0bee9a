"""Why an Agent may (not) reach something: the policy language's answer over what is in force or over the draft, and what would change it.

An explanation decides nothing and asks nothing of the machine. The rule that it proposes was tried: the Driver admits it beside the
others, and the policy language then allows what was asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from oce.contracts.refusals import ConfigurationRefused, Detail, DriverRefusal
from oce.core import checks, scope
from oce.core.errors import Conflict
from oce.core.policies import language, rules
from oce.core.policies.queries import active_revision, attached_layers, draft_of, effective
from oce.policy.canonical import PathError
from oce.policy.explain import explain as explain_policy

if TYPE_CHECKING:
    from oce.contracts.sandbox import PolicySnapshot
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Json
    from oce.policy.explain import Explanation
    from oce.policy.model import NetworkPolicy

_HOST_MAX: Final = 253
_PATH_MAX: Final = 4096
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """May this program reach this place: a connection, or a request when `method` is given. `path` defaults to `/`."""

    binary: str
    host: str
    port: int
    method: str = ""
    path: str = ""
    basis: Literal["active", "draft"] = "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The decision in one sentence; `addition` is a rule for the draft that was tried and does allow it, `note` why there is none."""

    allowed: bool
    rule: str
    sentence: str
    basis: Literal["active", "draft"]
    revision_id: str | None
    addition: Json | None = None
    note: str = ""


async def explain(
    platform: Platform, actor: Actor, namespace: str, agent: str, question: Question
) -> Answer:
    """Say whether the policy of the active revision, or the draft, allows this; nothing is asked of the machine.

    Needs `agent:read`, `configuration:read`, and `agent_revision:read` when a revision is active. Raises InvalidRequest, Forbidden,
    NotFound, NotOffered, Conflict (basis `active` and nothing was deployed), ConfigurationRefused (a draft that cannot be admitted).
    """
    owner, found = await scope.resource(
        platform, actor, scope.AGENTS, namespace, agent, action="read"
    )
    checks.refuse(question_problems(question))
    rules.admitting(platform)
    configuration = await draft_of(platform, actor, owner, found)
    revision = await active_revision(platform, actor, found)
    in_force = None if revision is None else await effective(platform, revision)
    if question.basis == "active":
        if revision is None or in_force is None:
            raise Conflict("No revision is active; ask about the draft, or deploy the Agent.")
        snapshot = in_force.snapshot
        sources = tuple(one.source_id for one in revision.credential_sources)
    else:
        snapshot = rules.judge(
            platform, rules.additions_of(configuration.values), where=rules.IN_DOCUMENT
        )
        sources = found.credential_sources
    layers = await attached_layers(platform, owner, sources)
    verdict = _explained(language.policy_of(snapshot, layers), question)
    proposed, note = (
        (None, "") if verdict.allowed else _proposal(platform, snapshot, layers, verdict, question)
    )
    return Answer(
        allowed=verdict.allowed,
        rule=verdict.rule,
        sentence=verdict.decision,
        basis=question.basis,
        revision_id=revision.id if revision is not None and question.basis == "active" else None,
        addition=proposed,
        note=note,
    )


def _explained(policy: NetworkPolicy, question: Question) -> Explanation:
    try:
        return explain_policy(
            policy,
            host=question.host,
            port=question.port,
            binary=question.binary,
            method=question.method,
            path=question.path,
        )
    except PathError as error:
        raise ConfigurationRefused(Detail("/query/path", "INVALID_VALUE", str(error))) from error


def _proposal(
    platform: Platform,
    snapshot: PolicySnapshot,
    layers: dict[str, Json],
    verdict: Explanation,
    question: Question,
) -> tuple[Json | None, str]:
    """Return the narrowest rule that the Driver admits beside the others and that does allow it, or why there is none."""
    if verdict.addition is None:
        return None, "No addition can allow this: a deny rule forbids it."
    present: list[Any] = list(snapshot.additions or ())
    taken = frozenset(
        str(rule["name"]) for part in (snapshot.defaults, present) for rule in part or ()
    )
    note = ""
    for rule in language.proposals(verdict.addition, question.method, taken):
        try:
            tried = rules.judge(
                platform, [*present, rule], where="", defaults=snapshot.defaults or []
            )
            rules.require_composable(tried, layers, where="")
        except ConfigurationRefused as refused:
            note = note or "; ".join(one.note or one.code for one in refused.details[:3])
            continue
        except DriverRefusal as refused:
            return None, f"No addition can allow this: {refused}."
        if _explained(language.policy_of(tried, layers), question).allowed:
            return rule, ""
    return None, f"No addition can allow this: {note or 'another rule decides first'}."


def question_problems(question: Question) -> tuple[Detail, ...]:
    """Return what is wrong with a question; pointers name the query parameters."""
    problems: list[Detail] = []
    binary = question.binary
    if not binary.startswith("/") or len(binary) > _PATH_MAX or not binary.isprintable():
        problems.append(Detail("/query/binary", "INVALID_VALUE", "an absolute path"))
    host = question.host
    if not host or len(host) > _HOST_MAX or not host.isprintable() or " " in host:
        problems.append(Detail("/query/host", "INVALID_VALUE", "a host name"))
    if not 1 <= question.port <= _PORT_MAX:
        problems.append(Detail("/query/port", "INVALID_VALUE", f"1 to {_PORT_MAX}"))
    if question.method and re.fullmatch("[A-Za-z]{1,16}", question.method) is None:
        problems.append(Detail("/query/method", "INVALID_VALUE", "an HTTP method"))
    if question.path and not question.method:
        problems.append(Detail("/query/method", "REQUIRED", "a path belongs to a request"))
    return tuple(problems)
