"""Rows of initial workspace files: what an Agent's first workspace holds, until a Sandbox has it.

The content is private: no API reads it back, and completion forgets it. What stays is the identity, by which every later revision
recognises its workspace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.domain.resources import Agent, InitialWorkspace
    from oce.store.database import Reader, Tx


async def insert(tx: Tx, agent: Agent, setup: InitialWorkspace, files: Mapping[str, str]) -> None:
    """Record the files of a new Agent, in the transaction that inserts it."""
    await tx.run(
        "INSERT INTO occ.workspace_setups (id, namespace_id, agent_id, files, created_at)"
        " VALUES (%(id)s, %(namespace)s, %(agent)s, %(files)s, %(at)s)",
        id=setup.id,
        namespace=agent.namespace_id,
        agent=agent.id,
        files=dict(files),
        at=agent.created_at,
    )


async def pending_files(reader: Reader, agent_id: str) -> Mapping[str, str]:
    """Return the files that no Sandbox confirmed yet; none once they are in place."""
    row = await reader.one(
        "SELECT files FROM occ.workspace_setups WHERE agent_id = %(agent)s AND files IS NOT NULL",
        agent=agent_id,
    )
    return {} if row is None else row["files"]


async def complete(tx: Tx, agent_id: str) -> None:
    """Record that the files are in place, and forget their content; repeating is fine."""
    await tx.run(
        "UPDATE occ.workspace_setups SET files = NULL, completed_at = clock_timestamp()"
        " WHERE agent_id = %(agent)s AND completed_at IS NULL",
        agent=agent_id,
    )
