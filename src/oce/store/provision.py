"""Make the two roles and the database in a fresh cluster, over a superuser's connection.

`occ_migrator` owns the database and its schema; `occ_app` is the only role that API and worker use: no DDL, no DELETE on protected
tables (the grants are part of the migrations). Neither is a superuser. Repeating is safe. Whoever runs the cluster decides how the
roles authenticate; passwords are optional because a private unix socket may be the whole answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from oce.domain.secret import SecretText

MIGRATOR: Final = "occ_migrator"
APPLICATION: Final = "occ_app"
_ATTRIBUTES: Final = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS NOINHERIT"


def _role(
    cursor: psycopg.Cursor[tuple[object, ...]], name: str, password: SecretText | None
) -> None:
    cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,))
    verb = "ALTER" if cursor.fetchone() else "CREATE"
    statement = sql.SQL("{verb} ROLE {name} " + _ATTRIBUTES).format(
        verb=sql.SQL(verb), name=sql.Identifier(name)
    )
    if password is not None:
        statement += sql.SQL(" PASSWORD {}").format(sql.Literal(password.reveal()))
    cursor.execute(statement)


def provision(
    superuser_url: str,
    database: str = "occ",
    *,
    migrator_password: SecretText | None = None,
    application_password: SecretText | None = None,
) -> None:
    """Create roles and database where they are missing; blocking. `superuser_url` names any existing database, such as `postgres`."""
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        cursor = connection.cursor()
        _role(cursor, MIGRATOR, migrator_password)
        _role(cursor, APPLICATION, application_password)
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
        if cursor.fetchone() is None:
            cursor.execute(
                sql.SQL("CREATE DATABASE {} OWNER {} ENCODING 'UTF8' TEMPLATE template0").format(
                    sql.Identifier(database), sql.Identifier(MIGRATOR)
                )
            )
        cursor.execute(
            sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database))
        )
        cursor.execute(
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(
                sql.Identifier(database), sql.Identifier(APPLICATION)
            )
        )
