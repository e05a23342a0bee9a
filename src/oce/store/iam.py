"""Rows of the access policy: identities, roles, bindings, restrictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg.types.json import Jsonb

from oce.domain.resources import AccessBinding, Identity, Permission, Restriction, Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oce.store.database import Reader, Row, Tx

_IDENTITY: Final = "id, kind, namespace_id, agent_id, issuer, subject"
_ROLE: Final = "id, name, namespace_id, permissions, built_in"
_BINDING: Final = "id, subject_kind, subject_id, role_id, namespace_id, resource_kind, resource_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOf:
    """All that the decision about one identity needs, read in one snapshot."""

    identity: Identity
    groups: Mapping[str, str | None]
    """Group id to the Namespace of the membership (None: unscoped)."""
    bindings: tuple[AccessBinding, ...]
    roles: Mapping[str, Role]
    restrictions: tuple[Restriction, ...]


def _identity(row: Row) -> Identity:
    return Identity(
        id=row["id"],
        kind=row["kind"],
        namespace_id=row["namespace_id"],
        agent_id=row["agent_id"],
        issuer=row["issuer"],
        subject=row["subject"],
    )


def _role(row: Row) -> Role:
    return Role(
        id=row["id"],
        name=row["name"],
        namespace_id=row["namespace_id"],
        permissions=tuple(Permission(action=a, resource_kind=k) for a, k in row["permissions"]),
        built_in=row["built_in"],
    )


def _binding(row: Row) -> AccessBinding:
    return AccessBinding(
        id=row["id"],
        subject_kind=row["subject_kind"],
        subject_id=row["subject_id"],
        role_id=row["role_id"],
        namespace_id=row["namespace_id"],
        resource_kind=row["resource_kind"],
        resource_id=row["resource_id"],
    )


async def identity(reader: Reader, identity_id: str) -> Identity | None:
    """Return an identity."""
    row = await reader.one(
        f"SELECT {_IDENTITY} FROM occ.iam_identities WHERE id = %(id)s",  # noqa: S608 - constants of this module
        id=identity_id,
    )
    return _identity(row) if row else None


_GROUPS: Final = (
    "SELECT m.group_id, m.namespace_id FROM occ.iam_group_memberships m"
    " WHERE m.identity_id = i.id AND i.kind = 'principal'"
)
_POLICY: Final = (
    f"SELECT {', '.join(f'i.{column}' for column in _IDENTITY.split(', '))},"  # noqa: S608 - constants of this module
    f" COALESCE((SELECT jsonb_object_agg(g.group_id, g.namespace_id) FROM ({_GROUPS}) AS g), '{{}}') AS groups,"
    " COALESCE((SELECT jsonb_agg(jsonb_build_object("
    "'id', b.id, 'subject_kind', b.subject_kind, 'subject_id', b.subject_id, 'role_id', b.role_id,"
    " 'namespace_id', b.namespace_id, 'resource_kind', b.resource_kind, 'resource_id', b.resource_id,"
    " 'role', jsonb_build_object('id', r.id, 'name', r.name, 'namespace_id', r.namespace_id,"
    " 'permissions', r.permissions, 'built_in', r.built_in)))"
    " FROM occ.iam_access_bindings b JOIN occ.iam_roles r ON r.id = b.role_id"
    " WHERE (b.subject_kind = 'identity' AND b.subject_id = i.id) OR (b.subject_kind = 'group'"
    f" AND b.subject_id IN (SELECT g.group_id FROM ({_GROUPS}) AS g))), '[]') AS bindings,"
    " COALESCE((SELECT jsonb_agg(jsonb_build_object('id', x.id, 'action', x.action,"
    " 'resource_kind', x.resource_kind, 'namespace_id', x.namespace_id, 'resource_id', x.resource_id))"
    " FROM occ.iam_restrictions x), '[]') AS restrictions"
    " FROM occ.iam_identities i WHERE i.id = %(id)s"
)


async def policy_of(reader: Reader, identity_id: str) -> PolicyOf | None:
    """Read everything that speaks about an identity in one statement, hence one snapshot; None when it does not exist."""
    row = await reader.one(_POLICY, id=identity_id)
    if row is None:
        return None
    return PolicyOf(
        identity=_identity(row),
        groups=row["groups"],
        bindings=tuple(_binding(one) for one in row["bindings"]),
        roles={one["role"]["id"]: _role(one["role"]) for one in row["bindings"]},
        restrictions=tuple(Restriction(**one) for one in row["restrictions"]),
    )


async def insert_identity(tx: Tx, new: Identity) -> None:
    """Record an identity."""
    await tx.run(
        "INSERT INTO occ.iam_identities (id, kind, namespace_id, agent_id, issuer, subject)"
        " VALUES (%(id)s, %(kind)s, %(namespace)s, %(agent)s, %(issuer)s, %(subject)s)",
        id=new.id,
        kind=new.kind,
        namespace=new.namespace_id,
        agent=new.agent_id,
        issuer=new.issuer,
        subject=new.subject,
    )


async def service_principals(
    reader: Reader, namespace_id: str | None, after: str, count: int
) -> Sequence[Identity]:
    """Return the ServicePrincipals of a scope that no Agent owns, by id."""
    rows = await reader.all(
        f"SELECT {_IDENTITY} FROM occ.iam_identities WHERE kind = 'service_principal' AND agent_id IS NULL"  # noqa: S608 - constants of this module
        " AND namespace_id IS NOT DISTINCT FROM %(namespace)s AND id > %(after)s ORDER BY id LIMIT %(count)s",
        namespace=namespace_id,
        after=after,
        count=count,
    )
    return [_identity(row) for row in rows]


async def role(reader: Reader, role_id: str) -> Role | None:
    """Return a role; a built-in one without its permissions, which come with the program."""
    row = await reader.one(
        f"SELECT {_ROLE} FROM occ.iam_roles WHERE id = %(id)s",  # noqa: S608 - constants of this module
        id=role_id,
    )
    return _role(row) if row else None


async def roles(reader: Reader, namespace_id: str | None, after: str, count: int) -> Sequence[Role]:
    """Return the roles that can be bound in a scope (its own and the built-in ones), by id."""
    rows = await reader.all(
        f"SELECT {_ROLE} FROM occ.iam_roles WHERE (built_in OR namespace_id = %(namespace)s)"  # noqa: S608 - constants of this module
        " AND id > %(after)s ORDER BY id LIMIT %(count)s",
        namespace=namespace_id,
        after=after,
        count=count,
    )
    return [_role(row) for row in rows]


async def insert_role(tx: Tx, new: Role) -> None:
    """Record a role."""
    await tx.run(
        "INSERT INTO occ.iam_roles (id, name, namespace_id, permissions)"
        " VALUES (%(id)s, %(name)s, %(namespace)s, %(permissions)s)",
        id=new.id,
        name=new.name,
        namespace=new.namespace_id,
        permissions=Jsonb([[one.action, one.resource_kind] for one in new.permissions]),
    )


async def remove_role(tx: Tx, role_id: str) -> bool:
    """Delete a role that is not built in. Raises ConstraintViolated while a binding names it."""
    return (
        await tx.run("DELETE FROM occ.iam_roles WHERE id = %(id)s AND NOT built_in", id=role_id)
        == 1
    )


async def binding(reader: Reader, binding_id: str) -> AccessBinding | None:
    """Return a binding."""
    row = await reader.one(
        f"SELECT {_BINDING} FROM occ.iam_access_bindings WHERE id = %(id)s",  # noqa: S608 - constants of this module
        id=binding_id,
    )
    return _binding(row) if row else None


async def bindings(
    reader: Reader, namespace_id: str | None, after: str, count: int
) -> Sequence[AccessBinding]:
    """Return the bindings of a scope by id."""
    rows = await reader.all(
        f"SELECT {_BINDING} FROM occ.iam_access_bindings WHERE namespace_id IS NOT DISTINCT FROM %(namespace)s"  # noqa: S608 - constants of this module
        " AND id > %(after)s ORDER BY id LIMIT %(count)s",
        namespace=namespace_id,
        after=after,
        count=count,
    )
    return [_binding(row) for row in rows]


async def bindings_of(reader: Reader, subject_id: str, role_id: str) -> Sequence[AccessBinding]:
    """Return the bindings of one identity to one role."""
    rows = await reader.all(
        f"SELECT {_BINDING} FROM occ.iam_access_bindings"  # noqa: S608 - constants of this module
        " WHERE subject_kind = 'identity' AND subject_id = %(subject)s AND role_id = %(role)s",
        subject=subject_id,
        role=role_id,
    )
    return [_binding(row) for row in rows]


async def lock_unscoped_bindings(tx: Tx, role_id: str) -> Sequence[AccessBinding]:
    """Return the Installation-wide bindings of a role; whoever asks next waits until this transaction ends."""
    # Row locks need the right to update, which the application role has on no binding.
    await tx.one("SELECT pg_advisory_xact_lock(%(key)s) AS locked", key=0x6F636503)
    rows = await tx.all(
        f"SELECT {_BINDING} FROM occ.iam_access_bindings WHERE role_id = %(role)s"  # noqa: S608 - constants of this module
        " AND namespace_id IS NULL AND resource_id IS NULL ORDER BY id",
        role=role_id,
    )
    return [_binding(row) for row in rows]


async def insert_binding(tx: Tx, new: AccessBinding) -> None:
    """Record a binding. Raises ConstraintViolated when the role is gone."""
    await tx.run(
        "INSERT INTO occ.iam_access_bindings (id, subject_kind, subject_id, role_id, namespace_id, resource_kind, resource_id)"
        " VALUES (%(id)s, %(subject_kind)s, %(subject)s, %(role)s, %(namespace)s, %(resource_kind)s, %(resource)s)",
        id=new.id,
        subject_kind=new.subject_kind,
        subject=new.subject_id,
        role=new.role_id,
        namespace=new.namespace_id,
        resource_kind=new.resource_kind,
        resource=new.resource_id,
    )


async def remove_binding(tx: Tx, binding_id: str) -> bool:
    """Delete a binding."""
    return await tx.run("DELETE FROM occ.iam_access_bindings WHERE id = %(id)s", id=binding_id) == 1


async def remove_targeting(tx: Tx, resource_kind: str, resource_id: str) -> list[str]:
    """Delete the bindings and restrictions aimed at a resource that goes away; returns the bindings' ids."""
    rows = await tx.all(
        "DELETE FROM occ.iam_access_bindings WHERE resource_kind = %(kind)s AND resource_id = %(id)s RETURNING id",
        kind=resource_kind,
        id=resource_id,
    )
    await tx.run(
        "DELETE FROM occ.iam_restrictions WHERE resource_kind = %(kind)s AND resource_id = %(id)s",
        kind=resource_kind,
        id=resource_id,
    )
    return sorted(row["id"] for row in rows)


async def revision_exists(reader: Reader, namespace_id: str, revision_id: str) -> bool:
    """Tell whether a revision is there to be a binding's target."""
    row = await reader.one(
        "SELECT 1 AS found FROM occ.agent_revisions WHERE namespace_id = %(namespace)s AND id = %(id)s",
        namespace=namespace_id,
        id=revision_id,
    )
    return row is not None
