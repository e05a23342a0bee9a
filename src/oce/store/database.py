"""The unit of work: `async with db.transact() as tx` and `async with db.read() as reader`.

psycopg runs SQL text with `%(name)s` parameters, because a worker pass is a handful of tiny statements and a translation layer per call
would cost more than the statements; SQLAlchemy describes the tables for migrations alone, so that a program that only serves never
loads it. Three promises:

* what a `transact` block did is committed together or not at all; so is the one statement of `once`;
* a handle dies with its block, so that nothing is written after the decision to commit;
* a COMMIT whose answer is lost is reported as `UnknownOutcome` and never repeated.

Never call a Driver or the network inside a block. Lock order: Namespace, then Agent, then child rows.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg

from oce.store.errors import StoreUnavailable, UnknownOutcome, translate
from oce.store.pool import Connection, Pool, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Row = dict[str, Any]
"""A result row by column name; jsonb is decoded, times are timezone-aware UTC."""


class Reader:
    """Reads. Parameters are given by name."""

    def __init__(self, connection: Connection, pool: Pool | None = None) -> None:
        self._connection: Connection | None = connection
        self._pool = pool

    async def _run(self, query: str, params: dict[str, Any]) -> psycopg.AsyncCursor[Row]:
        connection = self._connection
        if connection is None:
            raise RuntimeError("this handle was used after its block ended")
        try:
            return await connection.execute(query, params)
        except psycopg.Error as error:
            if self._pool is None or not connection.closed:
                raise translate(error) from error
        # The server cut a connection of a reader; a read is safe to repeat, once, on a fresh one.
        fresh = self._connection = await self._pool.renew(connection)
        try:
            return await fresh.execute(query, params)
        except psycopg.Error as error:
            raise translate(error) from error

    async def one(self, query: str, /, **params: object) -> Row | None:
        """Return the first row, or None."""
        cursor = await self._run(query, params)
        return await cursor.fetchone()

    async def all(self, query: str, /, **params: object) -> list[Row]:
        """Return every row; a query that can be large carries its own LIMIT."""
        cursor = await self._run(query, params)
        return await cursor.fetchall()

    def _end(self) -> Connection | None:
        connection, self._connection = self._connection, None
        return connection


class Tx(Reader):
    """Reads and writes inside one transaction."""

    async def run(self, query: str, /, **params: object) -> int:
        """Run a writing statement and return how many rows it touched. Raises ConstraintViolated and the rest of the tree."""
        cursor = await self._run(query, params)
        return cursor.rowcount


class Listener:
    """A dedicated connection that hears NOTIFY. A speed-up: polling stays the floor."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def wait(self, seconds: float) -> list[str]:
        """Return the payloads heard within that time, the first ending the wait. Raises StoreUnavailable when the line is lost."""
        try:
            return [
                n.payload async for n in self._connection.notifies(timeout=seconds, stop_after=1)
            ]
        except psycopg.Error as error:
            raise StoreUnavailable(type(error).__name__) from error


class Database:
    """Connections of one process to one database, as the role in the URL (the application role, never the migrator).

    At most `pool_size` connections write and as many read; they are opened when they are first needed.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        statement_timeout: float = 60.0,
        connect_timeout: float = 10.0,
        name: str = "occ",
    ) -> None:
        milliseconds = int(statement_timeout * 1000)
        self._url = url
        self._name = name
        self._connect_timeout = connect_timeout
        self._statement_timeout = statement_timeout
        self._options = (
            f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds} "
            f"-c idle_in_transaction_session_timeout={milliseconds} -c search_path=occ -c TimeZone=UTC"
        )
        self._pool = Pool(
            url, size=pool_size, options=self._options, timeout=connect_timeout, name=name
        )
        self._readers = Pool(
            url,
            size=pool_size,
            options=f"{self._options} -c default_transaction_read_only=on",
            timeout=connect_timeout,
            name=f"{name}-read",
        )

    async def close(self) -> None:
        """Close the pools."""
        await self._pool.close()
        await self._readers.close()

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the database answers."""
        async with self.read() as reader:
            await reader.one("SELECT 1 AS alive")

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[Reader]:
        """Read on a connection that the database refuses writes on.

        Each statement sees its own snapshot: what must be consistent is read by one statement, or in `transact` under locks. A
        transaction around reads would double their cost.
        """
        reader = Reader(await self._readers.take(), self._readers)
        reusable = False
        try:
            yield reader
            reusable = True
        except Exception:
            reusable = True
            raise
        finally:
            connection = reader._end()  # noqa: SLF001 - the block owns its handle
            if connection is not None:
                await self._readers.release(connection, reusable=reusable)

    @contextlib.asynccontextmanager
    async def transact(self) -> AsyncIterator[Tx]:
        """Open a READ COMMITTED transaction and commit it when the block ends without an exception."""
        connection = await self._pool.begin()
        tx = Tx(connection)
        try:
            yield tx
        except Exception:
            tx._end()  # noqa: SLF001 - the block owns its handle
            await self._undo(connection)
            raise
        except BaseException:
            tx._end()  # noqa: SLF001 - the block owns its handle
            await self._pool.release(connection, reusable=False)
            raise
        tx._end()  # noqa: SLF001 - the block owns its handle
        task = asyncio.ensure_future(self._commit(connection))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=self._statement_timeout)
            if task.done() and not task.cancelled():
                task.exception()
            raise

    async def once(self, query: str, /, **params: object) -> list[Row]:
        """Run one statement that is a transaction by itself and return its rows: one round trip where `transact` needs three.

        Raises UnknownOutcome when the connection broke before the answer came; what `transact` raises when nothing was written.
        A caller who is cancelled meanwhile does not know either, and the connection is closed.
        """
        connection = await self._pool.take_live()
        reusable = False
        try:
            cursor = await connection.execute(query, params)
            rows = await cursor.fetchall()
            reusable = True
        except psycopg.Error as error:
            if connection.closed or _unanswered(error):
                raise UnknownOutcome("the statement was not answered") from error
            reusable = True
            raise translate(error) from error
        finally:
            await self._pool.release(connection, reusable=reusable)
        return rows

    async def _commit(self, connection: Connection) -> None:
        reusable = False
        try:
            cursor = await connection.execute(b"COMMIT")
            reusable = True
            if cursor.statusmessage != "COMMIT":
                raise StoreUnavailable("the transaction had already failed")
        except psycopg.Error as error:
            answered = error.sqlstate is not None and error.sqlstate[:2] not in ("08", "57")
            if not answered or connection.closed:
                raise UnknownOutcome("COMMIT was not answered") from error
            reusable = True
            raise translate(error) from error
        finally:
            await self._pool.release(connection, reusable=reusable)

    async def _undo(self, connection: Connection) -> None:
        reusable = False
        try:
            await connection.execute(b"ROLLBACK")
            reusable = True
        except psycopg.Error:
            pass  # closed by `release`; the error that led here is the one to show
        finally:
            await self._pool.release(connection, reusable=reusable)

    @contextlib.asynccontextmanager
    async def listen(self, channel: LiteralString) -> AsyncIterator[Listener]:
        """Open a dedicated connection that hears `channel`. Raises StoreUnavailable."""
        connection = await connect(
            self._url,
            options="",
            connect_timeout=self._connect_timeout,
            name=f"{self._name}-listen",
        )
        try:
            try:
                await connection.execute(f"LISTEN {channel}")
            except psycopg.Error as error:
                raise translate(error) from error
            yield Listener(connection)
        finally:
            await connection.close()


def _unanswered(error: psycopg.Error) -> bool:
    """Tell whether the line was lost or the server went down: the statement may have been committed just before."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate[:2] == "08" or error.sqlstate[:3] == "57P"
