"""A small bounded pool of psycopg connections.

Why our own: the worker and the API need a bound, last-in first-out reuse and one retry of a stale idle connection, nothing else. A
connection for writing is handed out after its BEGIN was answered; a reader's first failed statement is repeated on a fresh one. So a
restart of PostgreSQL costs a reconnect and not an error. A statement that commits by itself cannot be repeated: for it a connection is
looked at first. It does not ping, resize or balance.
"""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import JsonbDumper

from oce.store.errors import StoreUnavailable, translate

if TYPE_CHECKING:
    from psycopg import AsyncConnection

Connection = psycopg.AsyncConnection[DictRow]
_BEGIN = b"BEGIN"


async def connect(url: str, *, options: str, connect_timeout: float, name: str) -> Connection:
    """Open one autocommit connection whose dictionaries travel as jsonb. Raises StoreUnavailable."""
    try:
        connection: AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
            url,
            autocommit=True,
            row_factory=dict_row,
            options=options,
            connect_timeout=max(1, int(connect_timeout)),
            application_name=name,
        )
    except psycopg.Error as error:
        raise translate(error) from error
    except OSError as error:
        raise StoreUnavailable(type(error).__name__) from error
    connection.adapters.register_dumper(dict, JsonbDumper)
    return connection


class Pool:
    """At most `size` connections; idle ones are reused, youngest first."""

    def __init__(self, url: str, *, size: int, options: str, timeout: float, name: str) -> None:
        self._url = url
        self._options = options
        self._timeout = timeout
        self._name = name
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(size)
        self._closed = False

    async def begin(self) -> Connection:
        """Return a connection on which BEGIN was answered. Raises StoreUnavailable."""
        await self._reserve()
        try:
            return await self._begun()
        except BaseException:
            self._slots.release()
            raise

    async def take(self) -> Connection:
        """Return a connection outside any transaction; it may turn out to be stale (see `renew`). Raises StoreUnavailable."""
        await self._reserve()
        try:
            return self._idle.pop() if self._idle else await self._connect()
        except BaseException:
            self._slots.release()
            raise

    async def take_live(self) -> Connection:
        """Like `take`, passing over connections that the server has cut meanwhile. Raises StoreUnavailable."""
        await self._reserve()
        try:
            while self._idle:
                connection = self._idle.pop()
                if not _was_cut(connection):
                    return connection
                await connection.close()
            return await self._connect()
        except BaseException:
            self._slots.release()
            raise

    async def renew(self, stale: Connection) -> Connection:
        """Replace a taken connection by a fresh one in the same place. Raises StoreUnavailable."""
        await stale.close()
        return await self._connect()

    async def _reserve(self) -> None:
        if self._closed:
            raise StoreUnavailable("the pool is closed")
        try:
            async with asyncio.timeout(self._timeout):
                await self._slots.acquire()
        except TimeoutError as error:
            raise StoreUnavailable("no connection became free") from error

    async def _connect(self) -> Connection:
        return await connect(
            self._url, options=self._options, connect_timeout=self._timeout, name=self._name
        )

    async def _begun(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.execute(_BEGIN)
            except psycopg.Error:
                await connection.close()
                continue
            except BaseException:
                await connection.close()
                raise
            return connection
        connection = await self._connect()
        try:
            await connection.execute(_BEGIN)
        except psycopg.Error as error:
            await connection.close()
            raise translate(error) from error
        except BaseException:
            await connection.close()
            raise
        return connection

    async def release(self, connection: Connection, *, reusable: bool) -> None:
        """Take a connection back; one that is not provably between transactions is closed."""
        try:
            idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if reusable and idle and not connection.closed and not self._closed:
                self._idle.append(connection)
            else:
                await connection.close()
        finally:
            self._slots.release()

    async def close(self) -> None:
        """Close idle connections; borrowed ones are closed when they come back."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()


def _was_cut(connection: Connection) -> bool:
    """Tell whether an idle connection has something to read: a farewell or the end, for nothing was asked. No waiting, no round trip."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
