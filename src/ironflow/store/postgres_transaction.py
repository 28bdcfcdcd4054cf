"""Transactional steps on PostgreSQL: a user's writes and the completion of the step, in one commit.

The body runs first, on a connection that nobody else uses and that holds no lock of the engine's, so a slow body
holds up its own run alone. Only then is the run row locked, the fence judged and the completion written. If the answer
to the commit is lost, our own row decides: it is there or it is not, and the user's writes with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import asyncpg

from ironflow.errors import StoreError
from ironflow.model.transition import APPLIED, NEWS, Transition
from ironflow.store.postgres_decide import Decider
from ironflow.store.postgres_link import Address, Connection, lost, translated, unreachable
from ironflow.store.postgres_reads import Readers

#: Bodies that run at once in one process; one more waits for a connection.
CONNECTIONS = 16


class UserConnections:
    """The connections that bodies get. What a body sets on its session is reset afterwards."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: asyncpg.Pool[Any] | None = None

    async def open(self) -> None:
        """Make the pool. It connects when the first body runs."""
        self._pool = await asyncpg.create_pool(
            self._address.dsn,
            min_size=0,
            max_size=CONNECTIONS,
            statement_cache_size=100 if self._address.prepare else 0,
        )

    async def take(self) -> Connection:
        """A connection that nobody else uses.

        Raises:
            StoreUnreachable: there is none to be had.
        """
        try:
            if self._pool is None:
                raise ConnectionError("the store is closed")
            taken: Connection = await self._pool.acquire()
        except Exception as error:
            raise translated(error, self._address.name) from error
        return taken

    async def give_back(self, connection: Connection) -> None:
        """Return a connection; one that broke is replaced when it is needed."""
        pool = self._pool
        if pool is not None:
            try:
                await pool.release(connection)  # type: ignore[arg-type]
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                pass  # it broke, and the pool knows

    async def close(self) -> None:
        """End every connection; a transaction that is still open is rolled back by the server."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()


class PostgresTransaction:
    """See `OpenTransaction`. Made by :meth:`open`."""

    def __init__(self, connections: UserConnections, decider: Decider, readers: Readers, name: str) -> None:
        self._connections = connections
        self._decider = decider
        self._readers = readers
        self._name = name
        self._connection: Connection | None = None
        self._transaction: Any = None

    async def open(self, body: Callable[[Any], Any]) -> Any:
        """Call `body(connection)` in a new transaction, await what it returns if need be, and give its value.

        Raises:
            StoreError: no connection could be had, or the body ended the transaction by itself.
            Exception: whatever the body raised; its writes are undone.
        """
        connection = self._connection = await self._connections.take()
        try:
            self._transaction = connection.transaction()
            await self._transaction.start()
            value = body(connection)
            if inspect.isawaitable(value):
                value = await value
            if not connection.is_in_transaction():
                raise StoreError(
                    "the body of a transactional step ended its transaction",
                    hint="Leave COMMIT and ROLLBACK to Ironflow: it commits together with the step's completion.",
                )
        except BaseException:
            await self.rollback()
            raise
        return value

    async def commit(self, transition: Transition) -> str:
        """See `OpenTransaction.commit`.

        Raises:
            StoreError: nothing was committed, neither of the user's nor of the step.
        """
        connection = self._connection
        if connection is None:
            raise StoreError(f"the transaction of {transition.run_id} has ended already")
        last_seqs: dict[str, int] = {}
        try:
            # A savepoint: after a refusal it takes the lock on the run row back, which the user's writes outlive.
            inner = connection.transaction()
            await inner.start()
            [answer] = await self._decider.judge_and_write(connection, [transition], last_seqs)
            if answer == APPLIED:
                await inner.commit()
                await self._transaction.commit()
            else:
                await inner.rollback()
        except BaseException as error:
            await self.rollback()
            if not isinstance(error, Exception):
                raise
            if lost(error) and await self._wrote(transition, last_seqs.get(transition.run_id)):
                return APPLIED
            raise unreachable(self._name, error) if lost(error) else translated(error, self._name) from error
        if answer == APPLIED:
            await self._leave()
        elif answer != NEWS:
            await self.rollback()
        return answer

    async def _wrote(self, transition: Transition, last_seq: int | None) -> bool:
        """Whether the commit whose answer was lost took place. The lock waits for it if it is still under way."""

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                await self._decider.lock(connection, [transition.run_id])
                return await self._decider.wrote(connection, transition, last_seq)

        return await self._readers.use(work)

    async def rollback(self) -> None:
        """Undo the user's writes. A second call does nothing."""
        if self._connection is None:
            return
        try:
            await self._transaction.rollback()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
            pass  # the connection broke (the server rolls back), or the body had ended the transaction
        await self._leave()

    async def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._connections.give_back(connection)
