"""The table of initial workspace files. Part of the description in `tables`, which registers it with the others."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Table, UniqueConstraint

from oce.store.columns import created, document, identifier, metadata, moment

workspace_setups = Table(
    # Ours: an Agent's initial workspace files, until a Sandbox has them; then the content goes and the identity stays.
    "workspace_setups",
    metadata,
    identifier(primary_key=True),
    identifier("namespace_id"),
    identifier("agent_id"),
    document("files", None, nullable=True),
    created(),
    moment("completed_at"),
    CheckConstraint("(files IS NULL) = (completed_at IS NOT NULL)", name="content"),
    ForeignKeyConstraint(
        ["namespace_id", "agent_id"],
        ["occ.agents.namespace_id", "occ.agents.id"],
        name="workspace_setups_agent_fk",
        ondelete="CASCADE",
    ),
    UniqueConstraint("agent_id", name="workspace_setups_agent_unique"),
)
