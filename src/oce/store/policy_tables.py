"""The table of live network policy changes. Part of the description in `tables`, which registers it with the others."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, Index, Table, Text

from oce.store.columns import created, document, identifier, metadata, moment, one_of

network_policy_applications = Table(
    # Ours: live changes of a revision's network policy; recorded before they are sent, so that a repeat is the same operation.
    "network_policy_applications",
    metadata,
    identifier(primary_key=True),
    identifier("agent_id"),
    identifier("revision_id"),
    identifier("actor_id"),
    identifier("configuration_id"),
    Column("configuration_generation", BigInteger, nullable=False),
    document("snapshot", None),
    Column("state", Text, nullable=False),
    created("requested_at"),
    moment("completed_at"),
    one_of("state", "sent", "confirmed", "refused", "superseded"),
    ForeignKeyConstraint(
        ["agent_id", "revision_id"],
        ["occ.agent_revisions.agent_id", "occ.agent_revisions.id"],
        name="network_policy_applications_revision_fk",
        ondelete="CASCADE",
    ),
)
Index(
    "network_policy_applications_revision",
    network_policy_applications.c.revision_id,
    network_policy_applications.c.requested_at,
)
