"""Alembic's entry: run the steps on the connection that `oce.store.migrate` opened."""

from __future__ import annotations

from alembic import context

from oce.store.tables import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
)
with context.begin_transaction():
    context.run_migrations()
