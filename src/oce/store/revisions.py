"""Rows of Agent revisions: immutable but for the moment they were proved gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oce.domain.resources import AgentRevision, Harness, RevisionSource
from oce.store.agents import auth_document, auth_value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oce.store.database import Reader, Row, Tx

_ALL: Final = (
    "SELECT id, namespace_id, agent_id, revision_number, admitted_spec, admitted_at"
    " FROM occ.agent_revisions WHERE namespace_id = %(namespace_id)s AND agent_id = %(agent_id)s"
)
_BY_ID: Final = f"{_ALL} AND id = %(id)s"
_PAGE: Final = (
    f"{_ALL} AND (%(before)s::bigint IS NULL OR revision_number < %(before)s::bigint)"
    " ORDER BY revision_number DESC LIMIT %(count)s"
)
_UNRETIRED: Final = f"{_ALL} AND retired_at IS NULL ORDER BY revision_number"
_EXPOSED: Final = (
    "SELECT r.id, r.namespace_id, r.agent_id, r.revision_number, r.admitted_spec, r.admitted_at"
    " FROM occ.agent_revisions r JOIN occ.agents a ON a.id = r.agent_id"
    " WHERE r.retired_at IS NULL AND r.admitted_spec -> 'harness' ->> 'id' = 'openclaw'"
    " AND r.admitted_spec -> 'harness' ->> 'mode' = 'dedicated'"
    " AND (%(at)s::timestamptz IS NULL OR (r.admitted_at, r.id) > (%(at)s::timestamptz, %(id)s))"
    " AND (a.active_revision_id = r.id OR EXISTS (SELECT 1 FROM occ.controller_work f"
    " WHERE f.revision_id = r.id AND f.state = 'failed_permanent'))"
    " AND NOT EXISTS (SELECT 1 FROM occ.controller_work w"
    " WHERE w.agent_id = r.agent_id AND w.state IN ('queued', 'claimed'))"
    " ORDER BY r.admitted_at, r.id LIMIT %(count)s"
)


def _spec(revision: AgentRevision) -> dict[str, Any]:
    return {
        "configuration_id": revision.configuration_id,
        "configuration_generation": revision.configuration_generation,
        "configuration": revision.configuration,
        "harness": {
            "id": revision.harness.id,
            "version": revision.harness.version,
            "mode": revision.harness.mode,
        },
        "compute": {
            "id": revision.compute_id,
            "implementation": revision.compute_implementation,
            "render_version": revision.compute_render_version,
        },
        "sandbox_driver_id": revision.sandbox_driver_id,
        "harness_auth": auth_document(revision.harness_auth),
        "credential_sources": [
            {
                "source_id": source.source_id,
                "credential_gateway_id": source.credential_gateway_id,
                "source_type": source.source_type,
            }
            for source in revision.credential_sources
        ],
        "secret_bindings": dict(revision.secret_bindings),
        "service_principal_id": revision.service_principal_id,
        "network_policy": revision.network_policy,
        "render_version": revision.render_version,
        "workspace_setup_id": revision.workspace_setup_id,
    }


def _revision(row: Row) -> AgentRevision:
    spec = row["admitted_spec"]
    return AgentRevision(
        id=row["id"],
        namespace_id=row["namespace_id"],
        agent_id=row["agent_id"],
        revision=row["revision_number"],
        configuration_id=spec["configuration_id"],
        configuration_generation=spec["configuration_generation"],
        configuration=spec["configuration"],
        harness=Harness(**spec["harness"]),
        compute_id=spec["compute"]["id"],
        compute_implementation=spec["compute"]["implementation"],
        sandbox_driver_id=spec["sandbox_driver_id"],
        harness_auth=auth_value(spec["harness_auth"]),
        credential_sources=tuple(RevisionSource(**one) for one in spec["credential_sources"]),
        secret_bindings=spec["secret_bindings"],
        service_principal_id=spec["service_principal_id"],
        network_policy=spec["network_policy"],
        render_version=spec["render_version"],
        created_at=row["admitted_at"],
        workspace_setup_id=spec.get("workspace_setup_id"),
        compute_render_version=spec["compute"].get("render_version", 1),
    )


async def get(
    reader: Reader, namespace_id: str, agent_id: str, revision_id: str
) -> AgentRevision | None:
    """Return a revision of that Agent."""
    row = await reader.one(_BY_ID, namespace_id=namespace_id, agent_id=agent_id, id=revision_id)
    return _revision(row) if row else None


async def page(
    reader: Reader, namespace_id: str, agent_id: str, before: int | None, count: int
) -> Sequence[AgentRevision]:
    """Return revisions older than number `before`, newest first."""
    rows = await reader.all(
        _PAGE, namespace_id=namespace_id, agent_id=agent_id, before=before, count=count
    )
    return [_revision(row) for row in rows]


async def next_number(reader: Reader, agent_id: str) -> int:
    """Return the next revision number of a locked Agent."""
    row = await reader.one(
        "SELECT COALESCE(max(revision_number), 0) + 1 AS next FROM occ.agent_revisions"
        " WHERE agent_id = %(id)s",
        id=agent_id,
    )
    return int(row["next"]) if row else 1


async def latest_number(reader: Reader, agent_id: str) -> int:
    """Return the newest admitted revision's number, 0 without any."""
    return await next_number(reader, agent_id) - 1


async def insert(tx: Tx, revision: AgentRevision) -> None:
    """Freeze a revision together with what it refers to. Raises StorageFull, ConstraintViolated."""
    await tx.run(
        "INSERT INTO occ.agent_revisions (id, namespace_id, agent_id, revision_number, admitted_spec, admitted_at)"
        " VALUES (%(id)s, %(namespace)s, %(agent)s, %(number)s, %(spec)s, %(at)s)",
        id=revision.id,
        namespace=revision.namespace_id,
        agent=revision.agent_id,
        number=revision.revision,
        spec=_spec(revision),
        at=revision.created_at,
    )
    references = {("credential_source", one.source_id) for one in revision.credential_sources}
    references |= {("secret", one) for one in revision.secret_bindings.values()}
    auth = revision.harness_auth
    if auth is not None and auth.source_id is not None and auth.method != "credential_source":
        references.add(("secret", auth.source_id))
    for kind, resource_id in sorted(references):
        await tx.run(
            "INSERT INTO occ.revision_references (revision_id, kind, resource_id)"
            " VALUES (%(revision)s, %(kind)s, %(resource)s)",
            revision=revision.id,
            kind=kind,
            resource=resource_id,
        )


async def unretired(reader: Reader, namespace_id: str, agent_id: str) -> Sequence[AgentRevision]:
    """Return every revision that may still have something somewhere, oldest first."""
    rows = await reader.all(_UNRETIRED, namespace_id=namespace_id, agent_id=agent_id)
    return [_revision(row) for row in rows]


async def exposed(
    reader: Reader, after: tuple[datetime, str] | None, count: int
) -> Sequence[AgentRevision]:
    """Return a page of native revisions whose exposure nobody is about to withdraw, oldest first after (created_at, id).

    Such a revision serves, or failed for good and was not proved gone, while no work of its Agent is under way.
    """
    rows = await reader.all(
        _EXPOSED,
        at=None if after is None else after[0],
        id="" if after is None else after[1],
        count=count,
    )
    return [_revision(row) for row in rows]


async def mark_retired(tx: Tx, revision_id: str) -> None:
    """Record that everything a revision could have created was proved gone."""
    await tx.run(
        "UPDATE occ.agent_revisions SET retired_at = clock_timestamp()"
        " WHERE id = %(id)s AND retired_at IS NULL",
        id=revision_id,
    )
