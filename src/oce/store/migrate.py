"""Bring schema `occ` to the newest version, as the migrator role, one process at a time.

Forward only. An advisory lock makes concurrent starters wait for each other; every step and its record commit in one transaction,
so a lost connection leaves either the old version or the new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from oce.store.tables import SCHEMA

_LOCK: Final = 0x6F63_6501
"""The advisory lock's number: no meaning but being ours."""


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def head() -> str:
    """Return the newest version this program knows."""
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    if newest is None:
        raise RuntimeError("no migration is installed")
    return newest


def migrate(url: str) -> str:
    """Apply what is missing and return the version. `url` is libpq's (`postgresql://occ_migrator@/occ?host=/run/…`); blocking.

    Raises sqlalchemy.exc.DBAPIError when the database refuses, and alembic.util.CommandError for a database that is newer than
    this program.
    """
    config = _config()
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        connection.commit()
        try:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()
            version = MigrationContext.configure(
                connection, opts={"version_table_schema": SCHEMA}
            ).get_current_revision()
        finally:
            connection.rollback()
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
            connection.commit()
    engine.dispose()
    if version is None:
        raise RuntimeError("the migration left no version")
    return version
