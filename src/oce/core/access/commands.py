"""Commands on service keys, roles, bindings and service principals.

All of it needs `installation:administer`; what touches a Namespace also needs `namespace:read` on it. Nothing here is updated: a role
or a binding is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import Detail
from oce.core import checks, scope
from oce.core.access import guard, keys, rules
from oce.core.audit import record
from oce.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import AccessBinding, AgentStatus, Identity, Role, ServiceKey
from oce.store import agents, iam, namespaces, service_keys
from oce.store.errors import ConstraintViolated

if TYPE_CHECKING:
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Namespace, Permission
    from oce.domain.secret import SecretText

DAY: Final = 86_400
YEAR: Final = 365 * DAY
KEY_NAME_MAX: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDraft:
    """A key to issue; `expires_in` is 86,400…31,536,000 seconds; `namespace` (id or name) confines it."""

    service_principal_id: str
    name: str
    namespace: str | None = None
    expires_in: int = 30 * DAY


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key and its text, shown once."""

    key: ServiceKey
    text: SecretText


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingDraft:
    """Subject, role and target; both resource fields None binds a built-in role to the whole scope (ours)."""

    subject_id: str
    role_id: str
    resource_kind: str | None = None
    resource_id: str | None = None


async def administer(platform: Platform, actor: Actor) -> None:
    """Require `installation:administer`. Raises Forbidden."""
    await guard.require(
        platform, actor, "administer", "installation", platform.installation_id, None
    )


async def policy_scope(platform: Platform, actor: Actor, namespace: str | None) -> Namespace | None:
    """Require what every policy operation needs, and return its Namespace (None: the Installation). Raises Forbidden, NotFound."""
    await administer(platform, actor)
    if namespace is None:
        return None
    return await scope.namespace(platform, actor, namespace, action="read")


async def issue_key(platform: Platform, actor: Actor, draft: KeyDraft) -> IssuedKey:
    """Issue a service key for a principal whose every grant the actor holds at the same or a broader scope.

    Raises InvalidRequest, Forbidden, NotFound (unknown principal or one that an Agent owns).
    """
    await administer(platform, actor)
    problems: list[Detail] = []
    if not 1 <= len(draft.name) <= KEY_NAME_MAX or not draft.name.strip():
        problems.append(Detail("/name", "TOO_LONG" if draft.name else "REQUIRED"))
    elif not draft.name.isprintable():
        problems.append(Detail("/name", "INVALID_FORMAT"))
    if not DAY <= draft.expires_in <= YEAR:
        problems.append(Detail("/expiresIn", "INVALID_VALUE", f"{DAY} to {YEAR} seconds"))
    checks.refuse(problems)
    owner = await policy_scope(platform, actor, draft.namespace)
    identity = await _covered(platform, actor, draft.service_principal_id)
    if identity.namespace_id is not None and (owner is None or owner.id != identity.namespace_id):
        raise InvalidRequest(
            "A Namespace's principal gets keys of that Namespace only.",
            details=(Detail("/namespaceId", "INVALID_VALUE"),),
        )
    now = platform.clock.now()
    key = ServiceKey(
        id=new_id(IdKind.SERVICE_KEY),
        service_principal_id=identity.id,
        namespace_id=owner.id if owner else None,
        name=draft.name,
        created_at=now,
        expires_at=now + timedelta(seconds=draft.expires_in),
    )
    text, stored = keys.issue(key.id)
    async with platform.db.transact() as tx:
        if owner is not None:
            await namespaces.share(tx, owner.id)
        await service_keys.insert(tx, key, stored)
        await record.mutation(
            tx,
            platform,
            actor,
            "auth.service_keys.issue",
            ("service_key", key.id),
            key.namespace_id,
            details={"servicePrincipalId": identity.id, "name": key.name},
        )
    return IssuedKey(key, text)


async def _covered(platform: Platform, actor: Actor, principal_id: str) -> Identity:
    async with platform.db.read() as reader:
        target = await iam.policy_of(reader, principal_id)
        holder = await iam.policy_of(reader, actor.principal_id)
    if target is None or target.identity.kind != "service_principal" or target.identity.agent_id:
        raise NotFound
    if not rules.covers(holder, target):
        raise Forbidden("You do not hold every grant of that principal.")
    return target.identity


async def revoke_key(platform: Platform, actor: Actor, key_id: str) -> ServiceKey:
    """Delete a key; it is dead at once. Raises Forbidden (coverage as for issuing), NotFound."""
    await administer(platform, actor)
    async with platform.db.read() as reader:
        found = await service_keys.get(reader, key_id)
    if found is None:
        raise NotFound
    await _covered(platform, actor, found.service_principal_id)
    async with platform.db.transact() as tx:
        if not await service_keys.remove(tx, key_id):
            raise NotFound
        await record.mutation(
            tx,
            platform,
            actor,
            "auth.service_keys.revoke",
            ("service_key", key_id),
            found.namespace_id,
            details={"servicePrincipalId": found.service_principal_id},
        )
    return found


async def create_role(
    platform: Platform,
    actor: Actor,
    namespace: str,
    *,
    name: str | None,
    permissions: tuple[Permission, ...],
) -> Role:
    """Create a role of a Namespace with 1 to 64 distinct, supported permissions. Raises InvalidRequest, Forbidden, NotFound."""
    owner = await policy_scope(platform, actor, namespace)
    if owner is None:
        raise NotFound
    if name is not None:
        checks.name(name)
    checks.refuse(rules.role_problems(permissions))
    role = Role(id=new_id(IdKind.ROLE), name=name, namespace_id=owner.id, permissions=permissions)
    async with platform.db.transact() as tx:
        if await namespaces.share(tx, owner.id) is None:
            raise NotFound
        await iam.insert_role(tx, role)
        await record.mutation(
            tx,
            platform,
            actor,
            "iam.roles.create",
            ("role", role.id),
            owner.id,
            details={
                "permissionNames": [f"{one.resource_kind}:{one.action}" for one in permissions]
            },
        )
    return role


async def delete_role(platform: Platform, actor: Actor, namespace: str, role_id: str) -> None:
    """Delete a role that no binding names. Raises Forbidden, NotFound, Conflict."""
    owner = await policy_scope(platform, actor, namespace)
    async with platform.db.read() as reader:
        role = await iam.role(reader, role_id)
    if owner is None or role is None or role.namespace_id != owner.id:
        raise NotFound
    try:
        async with platform.db.transact() as tx:
            if not await iam.remove_role(tx, role_id):
                raise NotFound
            await record.mutation(
                tx, platform, actor, "iam.roles.delete", ("role", role_id), owner.id
            )
    except ConstraintViolated as error:
        raise Conflict("The role is bound; remove its bindings first.") from error


async def create_binding(
    platform: Platform, actor: Actor, namespace: str | None, draft: BindingDraft
) -> AccessBinding:
    """Bind a role to a subject; namespace None is the Installation, where only built-in roles without a target are bound.

    Raises InvalidRequest, Forbidden (also `read` on the target), NotFound.
    """
    owner = await policy_scope(platform, actor, namespace)
    async with platform.db.read() as reader:
        role = await iam.role(reader, draft.role_id)
        subject = await iam.identity(reader, draft.subject_id)
        living = (
            subject is None
            or subject.agent_id is None
            or _alive(await agents.get(reader, subject.namespace_id or "", subject.agent_id))
        )
    checks.refuse(_binding_problems(owner, draft, role, subject if living else None))
    if draft.resource_kind is not None and draft.resource_id is not None and owner is not None:
        await guard.require(
            platform, actor, "read", draft.resource_kind, draft.resource_id, owner.id
        )
        await _require_target(platform, owner, draft.resource_kind, draft.resource_id)
    binding = AccessBinding(
        id=new_id(IdKind.BINDING),
        subject_kind="identity",
        subject_id=draft.subject_id,
        role_id=draft.role_id,
        namespace_id=owner.id if owner else None,
        resource_kind=draft.resource_kind,
        resource_id=draft.resource_id,
    )
    try:
        async with platform.db.transact() as tx:
            if owner is not None and await namespaces.share(tx, owner.id) is None:
                raise NotFound
            await iam.insert_binding(tx, binding)
            await record.mutation(
                tx,
                platform,
                actor,
                "iam.access_bindings.create",
                ("access_binding", binding.id),
                binding.namespace_id,
                details={
                    "subjectId": binding.subject_id,
                    "roleId": binding.role_id,
                    "resourceKind": binding.resource_kind,
                    "resourceId": binding.resource_id,
                },
            )
    except ConstraintViolated as error:
        raise Conflict("The role is gone.") from error
    return binding


def _alive(agent: object) -> bool:
    return getattr(agent, "status", None) is AgentStatus.ACTIVE


def _binding_problems(
    owner: Namespace | None, draft: BindingDraft, role: Role | None, subject: Identity | None
) -> tuple[Detail, ...]:
    problems: list[Detail] = []
    namespace_id = owner.id if owner else None
    if subject is None or subject.namespace_id not in (None, namespace_id):
        problems.append(Detail("/subjectId", "INVALID_VALUE", "no such identity in this scope"))
    if (draft.resource_kind is None) != (draft.resource_id is None):
        problems.append(
            Detail("/resourceId", "REQUIRED", "a target is a kind and an id, or neither")
        )
    usable = role is not None and (
        role.id in rules.BINDABLE if role.built_in else role.namespace_id == namespace_id
    )
    if role is None or not usable:
        problems.append(Detail("/roleId", "INVALID_VALUE", "no such role in this scope"))
    elif draft.resource_kind is not None:
        problems += _target_problems(namespace_id, draft, role)
    elif not role.built_in:
        problems.append(
            Detail("/resourceKind", "REQUIRED", "only a built-in role binds to a whole scope")
        )
    return tuple(problems)


def _target_problems(namespace_id: str | None, draft: BindingDraft, role: Role) -> list[Detail]:
    problems: list[Detail] = []
    granted = rules.permissions_of(role)
    if namespace_id is None:
        problems.append(
            Detail("/resourceKind", "INVALID_VALUE", "an Installation binding has no target")
        )
    if draft.resource_kind not in rules.ROLE_KINDS:
        problems.append(Detail("/resourceKind", "INVALID_VALUE"))
    elif not any(kind == draft.resource_kind for _, kind in granted):
        problems.append(Detail("/roleId", "INVALID_VALUE", "the role has nothing for this kind"))
    if not role.built_in and any(action == "create" for action, _ in granted):
        problems.append(Detail("/roleId", "INVALID_VALUE", "`create` has no exact target"))
    if draft.resource_kind == "namespace" and draft.resource_id != namespace_id:
        problems.append(Detail("/resourceId", "INVALID_VALUE", "must be this Namespace"))
    return problems


async def _require_target(
    platform: Platform, owner: Namespace, kind: str, resource_id: str
) -> None:
    lookups = {
        "agent": scope.AGENTS.get,
        "secret": scope.SECRETS.get,
        "credential_source": scope.SOURCES.get,
        "configuration": scope.CONFIGURATIONS.get,
    }
    async with platform.db.read() as reader:
        if kind == "agent_revision":
            found: object = await iam.revision_exists(reader, owner.id, resource_id)
        elif kind == "namespace":
            found = resource_id == owner.id
        else:
            found = await lookups[kind](reader, owner.id, resource_id)
    if not found:
        raise NotFound


async def delete_binding(
    platform: Platform, actor: Actor, namespace: str | None, binding_id: str
) -> None:
    """Remove a binding. Raises Forbidden, NotFound, Conflict (the last administrator of the Installation)."""
    owner = await policy_scope(platform, actor, namespace)
    namespace_id = owner.id if owner else None
    async with platform.db.transact() as tx:
        found = await iam.binding(tx, binding_id)
        if found is None or found.namespace_id != namespace_id:
            raise NotFound
        if (found.role_id, found.namespace_id, found.resource_id) == (
            rules.ADMINISTRATOR,
            None,
            None,
        ):
            others = await iam.lock_unscoped_bindings(tx, rules.ADMINISTRATOR)
            if {one.subject_id for one in others if one.id != binding_id} == set():
                raise Conflict("This is the last administrator of the Installation.")
        if not await iam.remove_binding(tx, binding_id):
            raise NotFound
        await record.mutation(
            tx,
            platform,
            actor,
            "iam.access_bindings.delete",
            ("access_binding", binding_id),
            namespace_id,
            details={"subjectId": found.subject_id, "roleId": found.role_id},
        )


async def create_service_principal(
    platform: Platform, actor: Actor, namespace: str | None
) -> Identity:
    """Create a ServicePrincipal without grants; namespace None makes an Installation-scoped one (ours). Raises Forbidden, NotFound."""
    owner = await policy_scope(platform, actor, namespace)
    new = Identity(
        id=new_id(IdKind.SERVICE_PRINCIPAL),
        kind="service_principal",
        namespace_id=owner.id if owner else None,
    )
    async with platform.db.transact() as tx:
        if owner is not None and await namespaces.share(tx, owner.id) is None:
            raise NotFound
        await iam.insert_identity(tx, new)
        await record.mutation(
            tx,
            platform,
            actor,
            "iam.service_principals.create",
            ("service_principal", new.id),
            new.namespace_id,
        )
    return new
