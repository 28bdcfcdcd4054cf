"""Transactional steps on PostgreSQL: a user's writes and the completion of the step, in one commit.

The body runs first, on a connection that nobody else uses and that holds no lock of the engine's, so a slow body
holds up its own run alone. Only then is the run row locked, the fence judged and the completion written. If the answer
to the commit is lost, our own row decides: it is there or it is not, and the user's writes with it.

A driver's connection cannot be kept from ending its transaction. But that is noticed: PostgreSQL gives each transaction
a number, and the one that is to be committed must be the one that was begun.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

import asyncpg

from ironflow.errors import StoreError
from ironflow.model.transition import APPLIED, NEWS, UNDONE, Transition
from ironflow.store.postgres_decide import Decider
from ironflow.store.postgres_link import (
    BROKEN,
    STATEMENT_TIMEOUT_S,
    TRIES,
    Address,
    Connection,
    Patience,
    again,
    atomically,
    lost,
    reason,
    translated,
)
from ironflow.store.postgres_reads import Readers
from ironflow.tasks import begin

log = logging.getLogger("ironflow.store")

#: Bodies that run at once in one process; one more waits for a connection.
CONNECTIONS = 16
#: How long a statement of a body waits for a lock of somebody else, and how long a body may do nothing in the database
#: while it holds its own. A worker that froze in mid-step then frees them by itself.
LOCK_WAIT = "10s"
IDLE = "60s"
#: How long the owner of a step may take to say commit, seconds; usually it is a millisecond.
OWNER_S = 30.0
#: How long a rollback may take before the connection is simply cut, seconds.
_ROLLBACK_S = 2.0

# The number of the transaction, and what a body could change under our own statements.
_BEGIN = """
select pg_current_xact_id()::text, current_setting('search_path'), current_setting('role'),
    set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true),
    set_config('idle_in_transaction_session_timeout', $3, true)
"""
_END = """
select pg_current_xact_id_if_assigned()::text, set_config('search_path', $1, true), set_config('role', $2, true),
    set_config('lock_timeout', $3, true)
"""


class UserConnections:
    """The connections that bodies get. What a body sets on its session is reset afterwards."""

    __slots__ = ("_address", "_pool")

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: asyncpg.Pool[Any] | None = None

    async def open(self) -> None:
        """Make the pool. It connects when the first body runs."""
        self._pool = await asyncpg.create_pool(
            self._address.dsn,
            min_size=0,
            max_size=CONNECTIONS,
            reset=_reset,
            **self._address.options(100),
        )

    async def take(self) -> Connection:
        """A connection that nobody else uses.

        Raises:
            ConnectionError: the store is closed.
            OSError, asyncpg.PostgresError: as the driver says.
        """
        if self._pool is None:
            raise ConnectionError("the store is closed")
        taken: Connection = await self._pool.acquire()
        return taken

    async def give_back(self, connection: Connection) -> None:
        """Return a connection; one that broke is replaced when it is needed."""
        pool = self._pool
        if pool is not None:
            try:
                await pool.release(connection)  # type: ignore[arg-type]
            except BROKEN:
                pass  # it broke, and the pool knows

    @property
    def closed(self) -> bool:
        """Whether there are none to be had any more."""
        return self._pool is None

    async def close(self) -> None:
        """End every connection; a transaction that is still open is rolled back by the server."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()


async def _reset(connection: Connection) -> None:
    await connection.reset()
    # Neither belongs to what the driver resets: the next body would be somebody else, or find a table it makes.
    await connection.execute("reset role; discard temp")


class PostgresTransaction:
    """See `OpenTransaction`. Made by :meth:`open`."""

    __slots__ = (
        "_connection", "_connections", "_decider", "_expiry", "_name", "_readers", "_timer", "_transaction", "_was",
    )  # fmt: skip

    def __init__(self, connections: UserConnections, decider: Decider, readers: Readers, name: str) -> None:
        self._connections = connections
        self._decider = decider
        self._readers = readers
        self._name = name
        self._connection: Connection | None = None
        self._transaction: Any = None
        #: number, search path and role of the transaction as it was begun
        self._was: tuple[str, str, str] = ("", "", "")
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.Task[None] | None = None

    async def open(self, body: Callable[[Any], Any]) -> Any:
        """Call `body(connection)` in a new transaction and give what it returns.

        If the connection breaks meanwhile, nothing was written and the body is called again in a new one: a restart of
        the server is a pause here as everywhere, and an interrupted body has to bear its repetition anyway. Of a
        connection that goes on breaking it is enough after `TRIES` bodies and the time of an outage, whichever is more.

        Raises:
            TypeError: `body` is no coroutine function.
            StoreUnreachable: no connection could be had.
            StoreError: the connection broke again and again, or the body ended the transaction by itself.
            Exception: whatever the body raised; its writes are undone.
        """
        if not inspect.iscoroutinefunction(body):
            raise _is_plain(body)
        patience, tries, returned = Patience(), 0, False
        while True:
            connection = await self._begin()
            try:
                returned = False
                value = await body(connection)
                returned = True
                await self._end(connection)
            except BaseException as error:
                broke = _closed(connection) or (returned and lost(error))
                await self.rollback()
                tries += 1
                if not broke or not isinstance(error, Exception):
                    raise
                if not self._connections.closed and (await patience.wait() or tries < TRIES):
                    continue
                raise _breaks(self._name, tries, error) from error
            self._wait_for_the_owner()
            return value

    async def _begin(self) -> Connection:
        patience = Patience()
        while True:
            try:
                connection = self._connection = await self._connections.take()
                self._transaction = connection.transaction(isolation="read_committed")
                await self._transaction.start()
                row = await connection.fetchrow(_BEGIN, LOCK_WAIT, f"{STATEMENT_TIMEOUT_S:g}s", IDLE)
                assert row is not None, "a select without a table gives one row"
                self._was = row[0], row[1], row[2]
                return connection
            except BaseException as error:
                await self.rollback()
                if not isinstance(error, Exception):
                    raise
                if lost(error) and not self._connections.closed and await patience.wait():
                    continue
                raise translated(error, self._name) from error

    async def _end(self, connection: Connection) -> None:
        """After the body: it must be the same transaction, and nothing of the body's may reach our statements."""
        number, path, role = self._was
        try:
            found = await connection.fetchval(_END, path, role, LOCK_WAIT)
        except asyncpg.InFailedSQLTransactionError as error:
            raise StoreError(
                "a statement of a transactional step failed, and its body went on: PostgreSQL has undone all of it",
                hint="Let the error out, or put what may fail into `async with connection.transaction():`.",
            ) from error
        if found != number:
            raise StoreError(
                "the body of a transactional step ended its transaction",
                hint="Leave COMMIT and ROLLBACK to Ironflow: it commits together with the step's completion.",
            )
        # What a deferred constraint finds is the body's error, and at the commit it would be too late to say so.
        await connection.execute("set constraints all immediate")

    async def commit(self, transition: Transition) -> str:
        """See `OpenTransaction.commit`.

        Raises:
            StoreUnreachable: the server stayed away, so whether it was committed is unknown.
            StoreError: nothing was committed, neither of the user's nor of the step.
        """
        connection = self._connection
        if connection is None:
            raise StoreError(f"the transaction of {transition.run_id} has ended already")
        self._stop_waiting()
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
            if lost(error) or again(error):
                log.info("a transaction of run %s came to nothing at its commit: %s", transition.run_id, reason(error))
                return UNDONE
            raise translated(error, self._name) from error
        if answer == APPLIED:
            self._connection = self._transaction = None
            await self._connections.give_back(connection)
        elif answer == NEWS:
            self._wait_for_the_owner()
        else:
            await self.rollback()
        return answer

    async def _wrote(self, transition: Transition, last_seq: int | None) -> bool:
        """Whether the commit whose answer was lost took place. The lock waits for it if it is still under way."""

        async def work(connection: Connection) -> bool:
            async with atomically(connection):
                await self._decider.lock(connection, [transition.run_id])
                return await self._decider.wrote(connection, transition, last_seq)

        return await self._readers.use(work)

    async def rollback(self) -> None:
        """Undo the user's writes. A second call does nothing."""
        self._stop_waiting()
        # Taken first: while the server is waited for, an owner that speaks up after all finds the transaction gone.
        connection, self._connection = self._connection, None
        transaction, self._transaction = self._transaction, None
        if connection is None:
            return
        try:
            if transaction is not None:
                async with asyncio.timeout(_ROLLBACK_S):
                    await transaction.rollback()
        except BROKEN:
            # It broke, or does not answer, or the body had ended the transaction: whatever is left goes with it.
            _cut(connection)
        finally:
            await self._connections.give_back(connection)

    # ---- an owner that says nothing
    def _wait_for_the_owner(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(OWNER_S, self._expire)

    def _stop_waiting(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _expire(self) -> None:
        self._expiry = begin(self.rollback())


def _closed(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True  # the pool has noticed, and taken it back


def _cut(connection: Connection) -> None:
    try:
        connection.terminate()
    except asyncpg.InterfaceError:
        pass  # the pool has noticed by itself


def _breaks(name: str, tries: int, error: Exception) -> StoreError:
    return StoreError(
        f"the connection to {name} broke in each of {tries} calls of a transactional step's body: {reason(error)}",
        hint="If the database is well, look for what ends its connections, and at what the body does with its own.",
    )


def _is_plain(body: Callable[..., Any]) -> TypeError:
    return TypeError(
        f"{getattr(body, '__qualname__', body)} is a plain function; on PostgreSQL the function of a transaction is "
        "an `async def`: it gets an asyncpg.Connection"
    )
