"""A database on which nothing is ever committed: what a dry run works on.

The first transaction of a use case runs to its end on the real tables, under the real constraints (deferred ones too), and is then
rolled back; `Rehearsed` leaves in its place. So a dry run judges with the code that would do it, holds its locks for that one
transaction only, and nothing after it (an effect outside, a second transaction) is ever reached.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NoReturn

from oce.store.database import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oce.store.database import Reader, Tx


class Rehearsed(BaseException):
    """Everything up to the first effect was found to be in order. Not an Exception: no use case may take it for a failure."""


class _UndoError(Exception):
    """Makes the real transaction roll back."""


async def _undo(tx: Tx) -> NoReturn:
    await tx.run("SET CONSTRAINTS ALL IMMEDIATE")
    raise _UndoError


class Rehearsal(Database):
    """Reads as the given database does, and undoes its first transaction."""

    def __init__(self, real: Database) -> None:
        # The pools stay those of the real one, which is also who closes them.
        self._real = real

    async def close(self) -> None:
        """Nothing of its own is open."""

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the database answers."""
        await self._real.ping()

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[Reader]:
        """Read on the real database."""
        async with self._real.read() as reader:
            yield reader

    @contextlib.asynccontextmanager
    async def transact(self) -> AsyncIterator[Tx]:
        """Run the block, check what a commit would check, roll back. Raises Rehearsed."""
        try:
            async with self._real.transact() as tx:
                yield tx
                await _undo(tx)
        except _UndoError:
            raise Rehearsed from None
