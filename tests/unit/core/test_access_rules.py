"""The decision is default deny, monotone in grants, and beaten by restrictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.contracts.iam import AccessRequest
from oce.core.access import keys
from oce.core.access.rules import (
    BUILT_IN,
    SUPPORTED,
    covers,
    decide,
    permissions_of,
    role_problems,
)
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import AccessBinding, Identity, Permission, Restriction, Role
from oce.store.iam import PolicyOf

PAIRS = [(action, kind) for kind, actions in SUPPORTED.items() for action in actions]
NAMESPACES = st.sampled_from(["ns_a", "ns_b"])
TARGETS = st.sampled_from(["x", "y"])


@st.composite
def requests(draw):
    action, kind = draw(st.sampled_from(PAIRS))
    namespace = draw(NAMESPACES)
    target = draw(st.none() | TARGETS)
    if kind == "namespace":
        target = namespace if target else None
    if kind == "installation":
        namespace = None
    return AccessRequest(
        principal_id="p",
        action=action,
        resource_kind=kind,
        resource_id=target,
        namespace_id=namespace,
    )


@st.composite
def policies(draw):
    roles = {
        f"r{n}": Role(
            id=f"r{n}",
            name=None,
            namespace_id=draw(st.none() | NAMESPACES),
            permissions=tuple(
                Permission(action=a, resource_kind=k)
                for a, k in draw(st.lists(st.sampled_from(PAIRS), max_size=4))
            ),
        )
        for n in range(2)
    }
    bindings = []
    for number in range(draw(st.integers(0, 3))):
        kind = draw(st.none() | st.sampled_from(sorted(SUPPORTED)))
        group = draw(st.booleans())
        bindings.append(
            AccessBinding(
                id=f"b{number}",
                subject_kind="group" if group else "identity",
                subject_id="g" if group else "p",
                role_id=draw(st.sampled_from(sorted(roles))),
                namespace_id=draw(st.none() | NAMESPACES),
                resource_kind=kind,
                resource_id=draw(TARGETS) if kind else None,
            )
        )
    human = draw(st.booleans())
    return PolicyOf(
        identity=Identity(
            id="p",
            kind="principal" if human else "service_principal",
            namespace_id=None if human else draw(st.none() | NAMESPACES),
        ),
        groups={"g": draw(st.none() | NAMESPACES)} if human else {},
        bindings=tuple(bindings),
        roles=roles,
        restrictions=(),
    )


@given(policies(), requests())
def test_every_yes_has_a_reason(policy, request_):
    decision = decide(policy, request_)
    if not decision.allowed:
        return
    assert policy.identity.namespace_id in (None, request_.namespace_id)
    chosen = [one for one in policy.bindings if one.id in decision.binding_ids]
    assert chosen
    for binding in chosen:
        assert binding.namespace_id in (None, request_.namespace_id)
        assert binding.resource_id in (None, request_.resource_id)
        assert binding.subject_kind == "identity" or policy.identity.kind == "principal"
        granted = permissions_of(policy.roles[binding.role_id])
        assert (request_.action, request_.resource_kind) in granted
    assert list(decision.binding_ids) == sorted(set(decision.binding_ids))


@given(policies(), requests())
def test_a_restriction_always_wins_and_losing_a_binding_never_helps(policy, request_):
    rule = Restriction(
        id="x",
        action=request_.action,
        resource_kind=request_.resource_kind,
        namespace_id=None,
        resource_id=None,
    )
    assert not decide(replace(policy, restrictions=(rule,)), request_).allowed
    if not decide(policy, request_).allowed:
        for number in range(len(policy.bindings)):
            fewer = policy.bindings[:number] + policy.bindings[number + 1 :]
            assert not decide(replace(policy, bindings=fewer), request_).allowed


@given(policies())
def test_everybody_covers_themselves_and_nobody_covers_more(policy):
    assert covers(policy, policy)
    assert covers(policy, replace(policy, bindings=()))
    if any(permissions_of(policy.roles[one.role_id]) for one in policy.bindings):
        assert not covers(replace(policy, bindings=()), policy)


def test_unknown_things_are_denied():
    request = AccessRequest(
        principal_id="p", action="fly", resource_kind="agent", resource_id="x", namespace_id="ns_a"
    )
    assert decide(None, replace(request, action="read")).reason == "no such identity"
    assert decide(None, request).reason == "unsupported permission"
    assert not decide(None, replace(request, action="read", namespace_id=None)).allowed


def test_the_administrator_has_everything_and_only_supported_pairs_are_granted():
    assert permissions_of(BUILT_IN["role_administrator"]) == frozenset(PAIRS)
    for role in BUILT_IN.values():
        assert permissions_of(role) <= frozenset(PAIRS)
    stored = Role(id="role_viewer", name="viewer", namespace_id=None, permissions=(), built_in=True)
    assert ("read", "agent") in permissions_of(stored)


@pytest.mark.parametrize(
    ("pairs", "codes"),
    [
        ([], ["REQUIRED"]),
        ([("read", "agent")] * 2, ["INVALID_VALUE"]),
        ([("read", "agent")] * 65, ["TOO_LONG"]),
        ([("delete", "namespace")], ["INVALID_VALUE"]),
        ([("administer", "installation")], ["INVALID_VALUE"]),
        ([("use", "secret")], ["INVALID_VALUE"]),
        ([("read", "namespace"), ("use", "agent")], []),
    ],
)
def test_roles_hold_only_what_is_checked(pairs, codes):
    permissions = [Permission(action=a, resource_kind=k) for a, k in pairs]
    assert [one.code for one in role_problems(permissions)] == codes


def test_key_texts_round_trip_and_differ():
    key_id = new_id(IdKind.SERVICE_KEY)
    text, stored = keys.issue(key_id)
    other, _ = keys.issue(key_id)
    found, secret = keys.parse(text)
    assert found == key_id
    assert keys.verify(secret, stored)
    assert not keys.verify(keys.parse(other)[1], stored)
    assert secret.encode() not in stored
