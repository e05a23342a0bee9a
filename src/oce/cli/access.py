"""`occ role`, `occ binding`, `occ service-principal`: who may do what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from oce.cli.output import Column, show
from oce.cli.resources import INSTALLATION, add_verbs, group
from oce.cli.session import session_of
from oce.client.api import AGENT, BINDING, PRINCIPAL, ROLE
from oce.client.errors import AmbiguousName

if TYPE_CHECKING:
    from oce.client.api import Client


def _permissions(item: dict[str, Any]) -> object:
    shown = [f"{pair['resourceKind']}:{pair['action']}" for pair in item["permissions"]]
    more = len(shown) - _SHOWN
    return " ".join(shown[:_SHOWN]) + (f" … {more} more" if more > 0 else "")


_SHOWN: Final = 4
ROLE_COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("NAME", "name"),
    ("BUILT IN", "builtIn"),
    ("PERMISSIONS", _permissions),
)
BINDING_COLUMNS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("SUBJECT", "subjectId"),
    ("ROLE", "roleId"),
    ("RESOURCE KIND", "resourceKind"),
    ("RESOURCE", "resourceId"),
)
PRINCIPAL_COLUMNS: Final[tuple[Column, ...]] = (("ID", "id"), ("NAMESPACE", "namespaceId"))

role = group("role", "Sets of permissions. Four are built in: `occ role list --installation`.")
add_verbs(role, ROLE, ROLE_COLUMNS, verbs=("list", "get"), scoped=True)
add_verbs(role, ROLE, ROLE_COLUMNS, verbs=("delete",))
binding = group("binding", "Who has which role where.")
add_verbs(binding, BINDING, BINDING_COLUMNS, scoped=True)
principal = group("service-principal", "Identities for programs; they act with service keys.")
add_verbs(principal, PRINCIPAL, PRINCIPAL_COLUMNS, verbs=("list", "get"), scoped=True)


@role.command()
@click.argument("name")
@click.option(
    "--permission",
    "permissions",
    multiple=True,
    required=True,
    metavar="KIND:ACTION",
    help="For example agent:read.",
)
@click.pass_context
def create(ctx: click.Context, name: str, permissions: tuple[str, ...]) -> None:
    """Create a role of the Namespace; it cannot be changed later."""
    session = session_of(ctx)
    pairs = []
    for text in permissions:
        kind, separator, action = text.partition(":")
        if not separator or not kind or not action:
            raise click.BadParameter("--permission takes KIND:ACTION.")
        pairs.append({"action": action, "resourceKind": kind})
    made = session.client.create(ROLE, {"name": name, "permissions": pairs})
    show(session, made, ROLE_COLUMNS)


def _role_id(client: Client, name_or_id: str, *, installation: bool) -> str:
    """Return a role's id; in a Namespace both its own roles and the built-in ones are found by name."""
    if not installation:
        try:
            return client.reference(ROLE, name_or_id)
        except AmbiguousName as error:
            if error.found:
                raise
    return client.reference(ROLE, name_or_id, installation=True)


@binding.command("create")
@click.option("--role", "role_name", required=True, metavar="NAME|ID", help="Role to give.")
@click.option("--subject", metavar="ID", help="Principal or service principal that gets it.")
@click.option("--subject-agent", metavar="NAME|ID", help="The Agent whose own principal gets it.")
@click.option(
    "--resource",
    metavar="KIND:ID",
    help="Only on this resource; without it a built-in role covers the whole scope.",
)
@INSTALLATION
@click.pass_context
def create_binding(  # the options of one command
    ctx: click.Context,
    role_name: str,
    subject: str | None,
    subject_agent: str | None,
    resource: str | None,
    *,
    installation: bool,
) -> None:
    """Give a role to a principal."""
    session = session_of(ctx)
    if (subject is None) == (subject_agent is None):
        raise click.UsageError("Give either --subject or --subject-agent.")
    if subject is None:
        subject = str(session.client.get(AGENT, str(subject_agent))["servicePrincipalId"])
    body: dict[str, Any] = {
        "subjectKind": "identity",
        "subjectId": subject,
        "roleId": _role_id(session.client, role_name, installation=installation),
    }
    if resource is not None:
        kind, separator, identifier = resource.partition(":")
        if not separator or not kind or not identifier:
            raise click.BadParameter("--resource takes KIND:ID.")
        body |= {"resourceKind": kind, "resourceId": identifier}
    made = session.client.create(BINDING, body, installation=installation)
    show(session, made, BINDING_COLUMNS)


@principal.command("create")
@INSTALLATION
@click.pass_context
def create_principal(ctx: click.Context, *, installation: bool) -> None:
    """Create a service principal; it may do nothing until a role is bound to it."""
    session = session_of(ctx)
    made = session.client.create(PRINCIPAL, {}, installation=installation)
    show(session, made, PRINCIPAL_COLUMNS)
