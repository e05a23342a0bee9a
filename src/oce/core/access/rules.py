"""Who may do what: the supported permissions, the built-in roles, and the pure decision.

Default deny; no action implies another; a restriction beats every grant (reference/control-plane.md §4.1, §4.2). The built-in roles
are ours: they can be bound to the Installation or to a Namespace, and because their permissions live here, a new action reaches
everybody who holds the role with the next start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.contracts.iam import AccessDecision
from oce.contracts.refusals import Detail
from oce.domain.resources import ROLE_PERMISSIONS_MAX, Permission, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oce.contracts.iam import AccessRequest
    from oce.domain.resources import AccessBinding, Restriction
    from oce.store.iam import PolicyOf

DRIVER_ID: Final = "native"

SUPPORTED: Final = {
    "installation": ("read", "administer"),
    "namespace": ("create", "read", "delete"),
    "configuration": ("create", "read", "update", "delete"),
    "secret": ("create", "read", "update", "delete", "operate"),
    "credential_source": ("create", "read", "update", "delete", "operate"),
    "agent": (
        "create",
        "read",
        "update",
        "delete",
        "deploy",
        "operate",
        "administer",
        "read_logs",
        "use",
    ),
    "agent_revision": ("read",),
}
"""Kind to its actions; nothing else is ever checked, so nothing else can be granted."""

ROLE_KINDS: Final = frozenset(SUPPORTED) - {"installation"}
"""Kinds that a Namespace's own role may name; of `namespace` only `read`."""

NAMESPACED: Final = frozenset(SUPPORTED) - {"installation", "namespace"}


def _grants(**kinds: tuple[str, ...]) -> tuple[Permission, ...]:
    return tuple(
        Permission(action=action, resource_kind=kind)
        for kind, actions in kinds.items()
        for action in actions
    )


ADMINISTRATOR: Final = "role_administrator"
OPERATOR: Final = "role_operator"
DEPLOYER: Final = "role_deployer"
VIEWER: Final = "role_viewer"
AGENT_REFERENCE: Final = "role_agent_reference"

BUILT_IN: Final = {
    role.id: role
    for role in (
        Role(
            id=ADMINISTRATOR,
            name="administrator",
            namespace_id=None,
            permissions=_grants(**SUPPORTED),
            built_in=True,
        ),
        Role(
            id=OPERATOR,
            name="operator",
            namespace_id=None,
            permissions=_grants(
                installation=("read",),
                namespace=("read",),
                configuration=SUPPORTED["configuration"],
                secret=SUPPORTED["secret"],
                credential_source=SUPPORTED["credential_source"],
                agent=(
                    "create",
                    "read",
                    "update",
                    "delete",
                    "deploy",
                    "operate",
                    "read_logs",
                    "use",
                ),
                agent_revision=("read",),
            ),
            built_in=True,
        ),
        Role(
            id=DEPLOYER,
            name="deployer",
            namespace_id=None,
            permissions=_grants(
                installation=("read",),
                namespace=("read",),
                configuration=("create", "read", "update"),
                secret=("read", "operate"),
                credential_source=("read", "operate"),
                agent=("create", "read", "update", "deploy", "operate", "read_logs", "use"),
                agent_revision=("read",),
            ),
            built_in=True,
        ),
        Role(
            id=VIEWER,
            name="viewer",
            namespace_id=None,
            permissions=_grants(
                installation=("read",),
                namespace=("read",),
                configuration=("read",),
                secret=("read",),
                credential_source=("read",),
                agent=("read",),
                agent_revision=("read",),
            ),
            built_in=True,
        ),
        Role(
            id=AGENT_REFERENCE,
            name="agent-reference",
            namespace_id=None,
            permissions=_grants(secret=("operate",), credential_source=("operate",)),
            built_in=True,
        ),
    )
}
"""Built-in roles by id. `agent-reference` is bound by us to an Agent's principal, for exactly what its draft references."""

BINDABLE: Final = frozenset((ADMINISTRATOR, OPERATOR, DEPLOYER, VIEWER))
"""Built-in roles that a person may bind to a whole scope."""


def is_supported(action: str, kind: str) -> bool:
    """Tell whether this pair is ever checked."""
    return action in SUPPORTED.get(kind, ())


def permissions_of(role: Role) -> frozenset[tuple[str, str]]:
    """Return the (action, kind) pairs of a role; of a built-in one as this program defines it."""
    known = BUILT_IN.get(role.id)
    permissions = known.permissions if role.built_in and known is not None else role.permissions
    return frozenset((one.action, one.resource_kind) for one in permissions)


def role_problems(permissions: Iterable[Permission]) -> tuple[Detail, ...]:
    """Return what is wrong with the permissions of a new Namespace role; empty when nothing is."""
    listed = tuple(permissions)
    if not listed:
        return (Detail("/permissions", "REQUIRED"),)
    if len(listed) > ROLE_PERMISSIONS_MAX:
        return (Detail("/permissions", "TOO_LONG", f"at most {ROLE_PERMISSIONS_MAX}"),)
    problems = [
        Detail(f"/permissions/{index}", "INVALID_VALUE", "no such action on this kind")
        for index, one in enumerate(listed)
        if not is_supported(one.action, one.resource_kind)
        or one.resource_kind not in ROLE_KINDS
        or (one.resource_kind == "namespace" and one.action != "read")
    ]
    if len(set(listed)) != len(listed):
        problems.append(Detail("/permissions", "INVALID_VALUE", "a permission is repeated"))
    return tuple(problems)


def _target(request: AccessRequest) -> tuple[str | None, str | None]:
    """Return the exact target that a binding may name, and the Namespace the request is in."""
    if request.resource_kind == "namespace" and request.resource_id is not None:
        return request.resource_id, request.resource_id
    return request.resource_id, request.namespace_id


def _binding_matches(
    binding: AccessBinding, request: AccessRequest, subjects: frozenset[tuple[str, str]]
) -> bool:
    resource_id, namespace_id = _target(request)
    if (binding.subject_kind, binding.subject_id) not in subjects:
        return False
    if binding.namespace_id is not None and binding.namespace_id != namespace_id:
        return False
    return binding.resource_id is None or (
        binding.resource_kind == request.resource_kind and binding.resource_id == resource_id
    )


def _restriction_matches(restriction: Restriction, request: AccessRequest) -> bool:
    resource_id, namespace_id = _target(request)
    return (
        (restriction.action, restriction.resource_kind) == (request.action, request.resource_kind)
        and restriction.namespace_id in (None, namespace_id)
        and restriction.resource_id in (None, resource_id)
    )


def decide(policy: PolicyOf | None, request: AccessRequest) -> AccessDecision:
    """Decide one request over what is stored about its principal (the seven steps of reference/control-plane.md §4.2)."""
    if not is_supported(request.action, request.resource_kind):
        return _no("unsupported permission")
    if request.resource_kind in NAMESPACED and request.namespace_id is None:
        return _no("the request names no Namespace")
    if policy is None:
        return _no("no such identity")
    _, namespace_id = _target(request)
    own = policy.identity.namespace_id
    if own is not None and own != namespace_id:
        return _no("the identity belongs to another Namespace")
    subjects = frozenset(
        {("identity", policy.identity.id)}
        | {
            ("group", group)
            for group, scope in policy.groups.items()
            if policy.identity.kind == "principal" and scope in (None, namespace_id)
        }
    )
    wanted = (request.action, request.resource_kind)
    granting = [
        binding
        for binding in policy.bindings
        if _binding_matches(binding, request, subjects)
        and (role := policy.roles.get(binding.role_id)) is not None
        and role.namespace_id in (None, namespace_id)
        and wanted in permissions_of(role)
    ]
    denying = sorted(one.id for one in policy.restrictions if _restriction_matches(one, request))
    allowed = bool(granting) and not denying
    return AccessDecision(
        allowed=allowed,
        reason="granted" if allowed else "restricted" if denying else "no grant",
        driver_id=DRIVER_ID,
        binding_ids=tuple(sorted({one.id for one in granting})),
        role_ids=tuple(sorted({one.role_id for one in granting})),
        restriction_ids=tuple(denying),
    )


def _no(reason: str) -> AccessDecision:
    return AccessDecision(allowed=False, reason=reason, driver_id=DRIVER_ID)


def covers(holder: PolicyOf | None, target: PolicyOf) -> bool:
    """Tell whether `holder` has every grant of `target` at the same or a broader scope (issuing and revoking keys)."""
    if holder is None:
        return False
    return all(
        _covered(holder, binding, pair)
        for binding in target.bindings
        if (role := target.roles.get(binding.role_id)) is not None
        for pair in permissions_of(role)
    )


def _covered(holder: PolicyOf, wanted: AccessBinding, pair: tuple[str, str]) -> bool:
    substitutes = {pair, ("administer", "agent")} if pair == ("read_logs", "agent") else {pair}
    for binding in holder.bindings:
        role = holder.roles.get(binding.role_id)
        if role is None or not substitutes & permissions_of(role):
            continue
        same_scope = binding.namespace_id in (None, wanted.namespace_id)
        same_target = binding.resource_id is None or (
            (binding.resource_kind, binding.resource_id)
            == (wanted.resource_kind, wanted.resource_id)
        )
        if same_scope and same_target:
            return True
    return False
