"""Reaching PostgreSQL: addresses, connections that come back, and what an error of the driver means.

A `Link` is one connection with one user. It is opened when it is first needed and again after it broke, so
a restart of the server is a pause and not a failure: whoever writes waits up to `PATIENCE_MS` for it. What
a broken connection leaves unknown (was the last statement committed?) is for the writer to find out; the
link only tells that it broke.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias
from urllib.parse import urlencode

import asyncpg

from ironflow.address import postgres, redact_url
from ironflow.errors import (
    ConcurrencyConflict,
    InvalidSettings,
    IronflowError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)

Connection: TypeAlias = "asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]"
#: What is done once with every new connection.
Setup = Callable[[Connection], Awaitable[None]]

#: How long (ms) writers and readers wait for a server that went away before they give up.
PATIENCE_MS = 30_000
#: A statement that takes longer than this (s) is taken for a dead network: nothing here is meant to be slow.
STATEMENT_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
#: How often a deadlock or a serialization failure is met with the same work again.
TRIES = 5
#: How long (ms) a transaction may wait for its owner: far longer than a busy loop takes between two statements.
STILL_MS = 5_000

_LOST = (
    OSError,  # ConnectionError and TimeoutError are among its kinds
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
)
#: What the driver says of a connection that broke, in errors that have no class of their own.
_SAID_OF_A_BREAK = ("clos", "another operation", "released back to the pool")
#: Whatever may come of a last word to a connection that is given up.
BROKEN = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
#: The schema or a plan changed under a prepared statement: it has to be prepared anew.
_OUTDATED = (asyncpg.InvalidCachedStatementError, asyncpg.InvalidSQLStatementNameError)


class Address:
    """A database URL, taken apart into what the driver takes and what is ours.

    Args:
        url: `postgresql://user@host/name`, with the driver's own parameters. `prepare=false` is ours:
            behind a pooler that changes servers between transactions no prepared statement may be kept, and
            nothing is set on a session.

    Raises:
        InvalidSettings: it cannot be read, or `prepare` is neither true nor false.
    """

    __slots__ = ("dsn", "name", "prepare")

    def __init__(self, url: str) -> None:
        parts = postgres(url)
        kept, prepare = [], "true"
        for key, value in parts.query:
            if key == "prepare":
                prepare = value.lower()
            else:
                kept.append((key, value))
        if prepare not in ("true", "false"):
            raise InvalidSettings([f"the database address says prepare={prepare}: use true or false"])
        query = f"?{urlencode(kept, safe='/:,')}" if kept else ""
        self.dsn = f"{parts.text}{query}"
        self.name = redact_url(self.dsn)
        self.prepare = prepare == "true"

    async def connect(self) -> Connection:
        """A new connection.

        Raises:
            OSError, asyncpg.PostgresError: as the driver says.
        """
        connection: Connection = await asyncpg.connect(
            self.dsn,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=STATEMENT_TIMEOUT_S,
            statement_cache_size=256 if self.prepare else 0,
        )
        return connection


@asynccontextmanager
async def atomically(connection: Connection) -> AsyncIterator[None]:
    """A transaction of several statements, which the server ends if its owner stands still for `STILL_MS`.

    Whoever is frozen in the middle of one (a stopped process, a host that lost its network) goes on holding its locks:
    of the rows of a lane that everybody needs, for as long as TCP takes to give up. The owner, awake again, meets a
    connection that is lost, and does the same work once more.
    """
    await connection.execute(f"BEGIN; set local idle_in_transaction_session_timeout = {STILL_MS}")
    try:
        yield
    except asyncio.CancelledError:
        connection.terminate()  # nobody waits for an answer any more, be it that of a rollback
        raise
    except BaseException:
        # Where the connection is lost, so is the transaction; and what happened first is what is told.
        with suppress(*BROKEN):
            await connection.execute("ROLLBACK;")
        raise
    await connection.execute("COMMIT;")


def lost(error: BaseException) -> bool:
    """Whether this error says that the connection (or the server behind it) is gone, and not that a
    statement is bad.
    """
    if isinstance(error, _LOST):
        return True
    if isinstance(error, asyncpg.InterfaceError):
        return any(words in str(error) for words in _SAID_OF_A_BREAK)
    # The driver's own state broke together with the connection.
    return isinstance(error, asyncpg.InternalClientError)


def again(error: BaseException) -> bool:
    """Whether the same transaction may succeed if it is simply run again: nothing was written."""
    return isinstance(error, _AGAIN)


def outdated(error: BaseException) -> bool:
    """Whether only the prepared statement is at fault, so a fresh connection helps."""
    return isinstance(error, _OUTDATED)


def translated(error: Exception, name: str) -> Exception:
    """The error of the tree that stands for one of the driver; others (bugs) stay what they are."""
    if isinstance(error, IronflowError):
        return error
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "runs_concurrency":
        return ConcurrencyConflict("another live run holds the concurrency key of this one")
    if lost(error):
        return unreachable(name, error)
    if isinstance(error, (asyncpg.DiskFullError, asyncpg.OutOfMemoryError)):
        return StoreFull(f"{name} has no space left: {error}")
    if isinstance(error, (asyncpg.ReadOnlySQLTransactionError, asyncpg.InsufficientPrivilegeError)):
        return StoreReadOnly(f"{name} takes no writes: {error}")
    if isinstance(error, (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)):
        return StoreCorrupt(f"{name} cannot read its own data: {error}")
    if isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError)):
        return StoreError(f"{name} refused a statement: {error}")
    return error


def unreachable(name: str, error: BaseException | None, hint: str | None = None) -> StoreUnreachable:
    """No connection, with the reason in one line, and what to do if it is not the usual."""
    return StoreUnreachable(f"cannot reach {name}: {reason(error)}", hint=hint)


def reason(error: BaseException | None) -> str:
    """What happened, in one line."""
    if isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError)) and lost(error):
        return "the connection broke"  # what the driver says is about its own state, and means nothing to anybody else
    return " ".join(str(error).split()) if error is not None and str(error) else type(error).__name__


async def leave(connection: Connection) -> None:
    """Say goodbye to the server. One that does not answer is not waited for."""
    if not connection.is_closed():
        try:
            await connection.close(timeout=2)
        except BROKEN:
            connection.terminate()


class Patience:
    """The pauses between tries while the server is away: short at first (a restart takes a second), then
    longer.
    """

    __slots__ = ("_delay", "_since")

    #: How long in all, in milliseconds.
    limit_ms = PATIENCE_MS

    def __init__(self) -> None:
        self._since: float | None = None
        self._delay = 0.02

    async def wait(self) -> bool:
        """Pause before the next try. Returns False once the time is used up."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif (now - self._since) * 1000 > self.limit_ms:
            return False
        await asyncio.sleep(self._delay)
        self._delay = min(self._delay * 2, 1.0)
        return True


class Link:
    """One connection that is opened when needed, and again when it broke.

    Args:
        address: where to.
        setup: done with each new connection before it is given out.
    """

    __slots__ = ("_connection", "_setup", "address", "closed")

    def __init__(self, address: Address, setup: Setup | None = None) -> None:
        self.address = address
        self._setup = setup
        self._connection: Connection | None = None
        self.closed = False

    async def get(self) -> Connection:
        """The connection.

        Raises:
            StoreUnreachable: the link was closed.
            OSError, asyncpg.PostgresError: as the driver says.
        """
        connection = self._connection
        if connection is not None and not connection.is_closed():
            return connection
        if self.closed:
            raise StoreUnreachable(f"the store {self.address.name} was closed")
        connection = await self.address.connect()
        try:
            if self._setup is not None:
                await self._setup(connection)
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection
        return connection

    @property
    def connected(self) -> Connection | None:
        """The connection, if there is one."""
        connection = self._connection
        return None if connection is None or connection.is_closed() else connection

    def drop(self) -> None:
        """Forget a connection that broke; the next `get` makes another."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    async def close(self) -> None:
        """Give the connection back for good."""
        self.closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await leave(connection)


class Clock:
    """The time of the database as this process knows it: what it said last, plus the time since; never
    backwards.

    Args:
        own: a clock that replaces the database's (tests), milliseconds since 1970.
    """

    __slots__ = ("_at", "_last", "_own", "_seen")

    def __init__(self, own: Callable[[], int] | None = None) -> None:
        self._own = own
        self._at = 0
        self._seen = 0
        self._last = 0

    def saw(self, at: int) -> None:
        """The database said what time it is."""
        if at >= self._at:
            self._at = at
            self._seen = time.monotonic_ns()

    def now(self) -> int:
        """Milliseconds since 1970."""
        if self._own is not None:
            now = self._own()
        else:
            now = self._at + (time.monotonic_ns() - self._seen) // 1_000_000
        if now < self._last:
            return self._last
        self._last = now
        return now

    def floor(self) -> int:
        """What a statement is given: a time to stay above, or (negative) the very time to use.

        Above what was *shown*, not only above what was seen: a queue row made eligible "now" must not be a
        millisecond away from the commit that writes it.
        """
        return -self.now() if self._own is not None else max(self._at, self._last)
