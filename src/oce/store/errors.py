"""What the store can say besides an answer.

StoreError                 something the database did not do; `code` is a catalogue code
├── StoreUnavailable       no connection, or it was lost before COMMIT: nothing was written
│   └── StoreTimeout       the statement or lock timeout ended it: nothing was written
├── StorageFull            the database has no space left: nothing was written
├── UnknownOutcome         COMMIT was sent and its answer was lost: look before you act; never replayed here
├── TransactionLost        serialization failure or deadlock: nothing was written, the caller may run the use case again
└── ConstraintViolated     a constraint refused the write: nothing was written; `constraint` is its name

Database text stays in `__cause__` for the log and never reaches a public message.
"""

from __future__ import annotations

from typing import ClassVar

import psycopg
from psycopg import errors as pg


class StoreError(Exception):
    """Root of the tree."""

    code: ClassVar[str] = "INTERNAL_ERROR"


class StoreUnavailable(StoreError):  # noqa: N818 - names the state of the dependency
    """The database cannot be reached, or the connection broke before COMMIT."""

    code = "DEPENDENCY_UNAVAILABLE"


class StoreTimeout(StoreUnavailable):
    """A timeout of the database ended the statement."""


class StorageFull(StoreError):  # noqa: N818 - names the state of the dependency
    """No space left on the database's device."""

    code = "STORAGE_FULL"


class UnknownOutcome(StoreError):  # noqa: N818 - names the outcome
    """The transaction may or may not have been committed."""

    code = "UNKNOWN_OUTCOME"


class TransactionLost(StoreError):  # noqa: N818 - names the outcome
    """A concurrent transaction won; nothing was written."""

    code = "DEPENDENCY_UNAVAILABLE"


class ConstraintViolated(StoreError):  # noqa: N818 - names the outcome
    """A named constraint refused the write."""

    code = "RESOURCE_CONFLICT"

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


def translate(error: psycopg.Error) -> StoreError:
    """Map a psycopg error raised by a statement (not by COMMIT without an answer) to the tree."""
    if isinstance(error, pg.IntegrityError):
        return ConstraintViolated(error.diag.constraint_name or "unnamed")
    if isinstance(error, pg.DiskFull):
        return StorageFull("the database has no space left")
    if isinstance(error, pg.SerializationFailure | pg.DeadlockDetected):
        return TransactionLost(str(error.sqlstate))
    if isinstance(error, pg.QueryCanceled | pg.LockNotAvailable):
        return StoreTimeout(str(error.sqlstate))
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailable(error.sqlstate or type(error).__name__)
    return StoreError(error.sqlstate or type(error).__name__)
