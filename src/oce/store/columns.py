"""The pieces that every table is made of: metadata with constraint names, and the recurring columns and checks."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, DateTime, MetaData, Text, text
from sqlalchemy.dialects.postgresql import JSONB

SCHEMA: Final = "occ"

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pk",
        "fk": "%(table_name)s_%(column_0_name)s_fk",
        "uq": "%(table_name)s_%(column_0_N_name)s_unique",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    },
)


def identifier(
    name: str = "id", *, nullable: bool = False, primary_key: bool = False
) -> Column[str]:
    """Return a column that holds an id."""
    return Column(name, Text(collation="C"), nullable=nullable, primary_key=primary_key)


def name_column() -> Column[str]:
    """Return the name column, compared byte by byte."""
    return Column("name", Text(collation="C"), nullable=False)


def created(name: str = "created_at") -> Column[Any]:
    """Return a required moment, now by default."""
    return Column(
        name, DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")
    )


def moment(name: str) -> Column[Any]:
    """Return an optional moment."""
    return Column(name, DateTime(timezone=True))


def document(
    name: str, default: str | None = "'{}'::jsonb", *, nullable: bool = False
) -> Column[Any]:
    """Return a jsonb column; `default` is SQL."""
    return Column(name, JSONB, nullable=nullable, server_default=text(default) if default else None)


def named() -> CheckConstraint:
    """Return the check of a required name."""
    return CheckConstraint("char_length(name) BETWEEN 1 AND 200", name="name")


def one_of(column: str, *values: str) -> CheckConstraint:
    """Return the check of a closed set."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)
