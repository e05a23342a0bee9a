"""The schema as migrated: it matches its description, and the application role can do what it must and nothing more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from oce.store.migrate import head, migrate
from oce.store.provision import provision
from oce.store.tables import metadata

pytestmark = pytest.mark.postgres


def test_migrations_and_tables_agree(test_database):
    url = make_url(test_database.migrator_url).set(drivername="postgresql+psycopg")
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table_schema": "occ",
                "include_schemas": True,
                "include_name": lambda name, kind, _parents: kind != "schema" or name == "occ",
                "compare_server_default": False,
            },
        )
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_migrating_and_provisioning_again_change_nothing(test_database):
    assert migrate(test_database.migrator_url) == head()
    provision(test_database.superuser_url, test_database.name)
    with psycopg.connect(test_database.app_url) as connection:
        roles = connection.execute("SELECT count(*) FROM occ.iam_roles WHERE built_in").fetchone()
    assert roles == (5,)


def test_two_starters_migrate_an_empty_database_once(postgres_cluster):
    provision(postgres_cluster.superuser_url(), "fresh")
    url = postgres_cluster.plan.url("occ_migrator", "fresh")
    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(migrate, [url, url])) == [head(), head()]
    finally:
        with psycopg.connect(postgres_cluster.superuser_url(), autocommit=True) as connection:
            connection.execute("DROP DATABASE fresh WITH (FORCE)")


REFUSED = [
    "CREATE TABLE occ.mine (x int)",
    "CREATE TABLE public.mine (x int)",
    "CREATE SCHEMA mine",
    "ALTER TABLE occ.agents ADD COLUMN mine int",
    "DROP TABLE occ.agents",
    "TRUNCATE occ.audit_events",
    "UPDATE occ.audit_events SET outcome = 'success'",
    "DELETE FROM occ.audit_events",
    "DELETE FROM occ.namespaces",
    "DELETE FROM occ.agents",
    "DELETE FROM occ.agent_revisions",
    "DELETE FROM occ.controller_work",
    "DELETE FROM occ.installation",
    "DELETE FROM occ.iam_identities",
    "UPDATE occ.agent_revisions SET admitted_spec = '{}'",
    "UPDATE occ.controller_work SET actor_id = 'x'",
    "UPDATE occ.namespaces SET name = 'x'",
    "UPDATE occ.service_keys SET expires_at = now()",
    "INSERT INTO occ.alembic_version VALUES ('x')",
    "SET ROLE occ_migrator",
]


def test_the_application_role_is_refused_what_is_not_its_business(test_database):
    for statement in REFUSED:
        with psycopg.connect(test_database.app_url, autocommit=True) as connection:
            refused = False
            try:
                connection.execute(statement)
            except psycopg.errors.InsufficientPrivilege:
                refused = True
            assert refused, statement
