"""Rows of Agents: the draft, the desired state and the pointer to the published revision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.domain.resources import (
    Agent,
    AgentStatus,
    HarnessAuth,
    InitialWorkspace,
    RuntimeState,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.store.database import Reader, Row, Tx

NAME_TAKEN: Final = "agents_name_unique"
_ALL: Final = (
    "SELECT a.id, a.namespace_id, a.name, a.service_principal_id, a.configuration_id, a.execution_mode,"
    " a.harness_auth, a.active_revision_id, a.desired_runtime_state, a.status, a.generation, a.created_at,"
    " COALESCE((SELECT array_agg(s.credential_source_id ORDER BY s.position)"
    " FROM occ.agent_credential_sources s WHERE s.agent_id = a.id), '{}') AS credential_sources,"
    " w.id AS workspace_setup_id, w.completed_at AS workspace_completed_at"
    " FROM occ.agents a LEFT JOIN occ.workspace_setups w ON w.agent_id = a.id"
    " WHERE a.namespace_id = %(namespace_id)s"
)
_BY_ID: Final = f"{_ALL} AND a.id = %(id)s"
_BY_NAME: Final = f"{_ALL} AND a.name = %(name)s"
_PAGE: Final = (
    f"{_ALL} AND (%(id)s::text = '' OR (a.created_at, a.id) > (%(at)s::timestamptz, %(id)s))"
    " ORDER BY a.created_at, a.id LIMIT %(count)s"
)


def auth_document(auth: HarnessAuth | None) -> dict[str, str] | None:
    """Return the stored form of a harness authentication."""
    if auth is None:
        return None
    document = {"method": str(auth.method)}
    if auth.source_id is not None:
        document["source_id"] = auth.source_id
    return document


def auth_value(document: dict[str, str] | None) -> HarnessAuth | None:
    """Read the stored form."""
    if document is None:
        return None
    return HarnessAuth(method=document["method"], source_id=document.get("source_id"))  # type: ignore[arg-type] # only `auth_document` writes it


def _agent(row: Row) -> Agent:
    return Agent(
        id=row["id"],
        namespace_id=row["namespace_id"],
        name=row["name"],
        service_principal_id=row["service_principal_id"],
        configuration_id=row["configuration_id"],
        execution_mode=row["execution_mode"],
        harness_auth=auth_value(row["harness_auth"]),
        credential_sources=tuple(row["credential_sources"]),
        desired_runtime_state=RuntimeState(row["desired_runtime_state"]),
        active_revision_id=row["active_revision_id"],
        status=AgentStatus(row["status"]),
        generation=row["generation"],
        created_at=row["created_at"],
        initial_workspace=(
            None
            if row["workspace_setup_id"] is None
            else InitialWorkspace(
                id=row["workspace_setup_id"], completed_at=row["workspace_completed_at"]
            )
        ),
    )


async def get(reader: Reader, namespace_id: str, agent_id: str) -> Agent | None:
    """Return an Agent."""
    row = await reader.one(_BY_ID, namespace_id=namespace_id, id=agent_id)
    return _agent(row) if row else None


async def find(reader: Reader, namespace_id: str, name: str) -> Agent | None:
    """Return an Agent by name."""
    row = await reader.one(_BY_NAME, namespace_id=namespace_id, name=name)
    return _agent(row) if row else None


async def lock(tx: Tx, namespace_id: str, agent_id: str) -> Agent | None:
    """Return an Agent and keep others from changing it. Take the Namespace first."""
    row = await tx.one(f"{_BY_ID} FOR NO KEY UPDATE OF a", namespace_id=namespace_id, id=agent_id)
    return _agent(row) if row else None


async def page(
    reader: Reader, namespace_id: str, after: tuple[str, str], count: int
) -> Sequence[Agent]:
    """Return Agents after (created_at, id), oldest first."""
    rows = await reader.all(
        _PAGE, namespace_id=namespace_id, at=after[0] or "-infinity", id=after[1], count=count
    )
    return [_agent(row) for row in rows]


def _auth_columns(auth: HarnessAuth | None) -> dict[str, object]:
    source = auth.source_id if auth else None
    by_source = auth is not None and auth.method == "credential_source"
    return {
        "auth": auth_document(auth),
        "auth_secret": None if by_source else source,
        "auth_source": source if by_source else None,
    }


async def insert(tx: Tx, agent: Agent) -> None:
    """Record a new Agent; its principal is inserted in the same transaction. Raises ConstraintViolated(NAME_TAKEN)."""
    await tx.run(
        "INSERT INTO occ.agents (id, namespace_id, name, configuration_id, execution_mode, service_principal_id,"
        " harness_auth, harness_auth_secret_id, harness_auth_source_id, desired_runtime_state, status, generation, created_at)"
        " VALUES (%(id)s, %(namespace)s, %(name)s, %(configuration)s, %(mode)s, %(principal)s, %(auth)s,"
        " %(auth_secret)s, %(auth_source)s, %(desired)s, %(status)s, %(generation)s, %(at)s)",
        id=agent.id,
        namespace=agent.namespace_id,
        name=agent.name,
        configuration=agent.configuration_id,
        mode=agent.execution_mode,
        principal=agent.service_principal_id,
        desired=agent.desired_runtime_state,
        status=agent.status,
        generation=agent.generation,
        at=agent.created_at,
        **_auth_columns(agent.harness_auth),
    )
    await _insert_sources(tx, agent)


async def replace_draft(tx: Tx, agent: Agent) -> None:
    """Store the draft fields and the generation of a locked Agent."""
    await tx.run(
        "UPDATE occ.agents SET configuration_id = %(configuration)s, execution_mode = %(mode)s,"
        " harness_auth = %(auth)s, harness_auth_secret_id = %(auth_secret)s,"
        " harness_auth_source_id = %(auth_source)s, generation = %(generation)s WHERE id = %(id)s",
        id=agent.id,
        configuration=agent.configuration_id,
        mode=agent.execution_mode,
        generation=agent.generation,
        **_auth_columns(agent.harness_auth),
    )
    await tx.run("DELETE FROM occ.agent_credential_sources WHERE agent_id = %(id)s", id=agent.id)
    await _insert_sources(tx, agent)


async def _insert_sources(tx: Tx, agent: Agent) -> None:
    for position, source_id in enumerate(agent.credential_sources):
        await tx.run(
            "INSERT INTO occ.agent_credential_sources (agent_id, position, namespace_id, credential_source_id)"
            " VALUES (%(agent)s, %(position)s, %(namespace)s, %(source)s)",
            agent=agent.id,
            position=position,
            namespace=agent.namespace_id,
            source=source_id,
        )


async def set_desired(tx: Tx, agent_id: str, state: RuntimeState) -> None:
    """Record what a locked Agent should be doing."""
    await tx.run(
        "UPDATE occ.agents SET desired_runtime_state = %(state)s WHERE id = %(id)s",
        id=agent_id,
        state=state,
    )


async def set_deleting(tx: Tx, agent_id: str) -> None:
    """Record that a locked Agent is being torn down."""
    await tx.run(
        "UPDATE occ.agents SET status = 'deleting', desired_runtime_state = 'stopped',"
        " generation = generation + 1 WHERE id = %(id)s",
        id=agent_id,
    )


async def swap_active_revision(
    tx: Tx, agent_id: str, *, expected: str | None, new: str | None
) -> bool:
    """Compare-and-set the published revision; False when the pointer is not `expected`."""
    return (
        await tx.run(
            "UPDATE occ.agents SET active_revision_id = %(new)s"
            " WHERE id = %(id)s AND active_revision_id IS NOT DISTINCT FROM %(expected)s",
            id=agent_id,
            new=new,
            expected=expected,
        )
        == 1
    )


async def finalize_deletion(
    tx: Tx, *, namespace_id: str, agent_id: str, work_key: str, claim_token: object
) -> bool | None:
    """Remove an Agent, its revisions, principal, keys and grants under the live claim of its deletion.

    True: removed. None: a revision is not retired yet. False: the claim is lost or the Agent is not being deleted.
    """
    row = await tx.one(
        "SELECT occ.finalize_agent_deletion(%(namespace)s, %(agent)s, %(key)s, %(token)s::uuid) AS done",
        namespace=namespace_id,
        agent=agent_id,
        key=work_key,
        token=str(claim_token),
    )
    return None if row is None else row["done"]
