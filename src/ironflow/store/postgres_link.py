"""Reaching PostgreSQL: addresses, connections that come back, and what an error of the driver means.

A `Link` is one connection with one user. It is opened when it is first needed and again after it broke, so
a restart of the server is a pause and not a failure: whoever writes waits up to `PATIENCE_MS` for it. What
a broken connection leaves unknown (was the last statement committed?) is for the writer to find out; the
link only tells that it broke.
"""

from __future__ import annotations

import asyncio
import secrets
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
#: A process that commits asks the database for its own time at least so often, ns; see `Clock`.
CHECKED_NS = 10_000_000_000

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
#: A prepared statement is not where it was made: what a pooler does that changes servers between transactions.
_ELSEWHERE = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
#: What to do about such a pooler.
UNPREPARED = (
    "Behind a pooler in transaction mode (PgBouncer), add `prepare=false` to the address of the database: "
    "`…/NAME?prepare=false`."
)
#: Statements that the driver keeps prepared on a connection.
STATEMENTS = 256


class _Connection(asyncpg.Connection):
    """A connection whose prepared statements have names that no other connection uses.

    The driver counts them up from 1 in every process. Where a pooler lends one session of the server to many, somebody
    else's statement of the same name would be executed, with these arguments; so it is one that does not exist.
    """

    __slots__ = ("_mark",)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._mark = secrets.token_hex(8)

    def _get_unique_id(self, prefix: str) -> str:
        return f"{super()._get_unique_id(prefix)}{self._mark}"  # type: ignore[misc]  # not in the stubs


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

    def options(self, statements: int = STATEMENTS) -> dict[str, Any]:
        """How the driver makes a connection, or a pool of them; `statements`: so many may be kept prepared."""
        return {
            "command_timeout": STATEMENT_TIMEOUT_S,
            "statement_cache_size": statements if self.prepare else 0,
            "connection_class": _Connection,
        }

    async def connect(self, statements: int = STATEMENTS) -> Connection:
        """A new connection; `statements`: so many may be kept prepared.

        Raises:
            OSError, asyncpg.PostgresError: as the driver says.
        """
        connection: Connection = await asyncpg.connect(self.dsn, timeout=CONNECT_TIMEOUT_S, **self.options(statements))
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
    if isinstance(error, _ELSEWHERE):
        return StoreError(f"{name} refused a statement: {reason(error)}", hint=UNPREPARED)
    if isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError)):
        return StoreError(f"{name} refused a statement: {error}")
    return error


def unreachable(name: str, error: BaseException | None, hint: str | None = None) -> StoreUnreachable:
    """No connection, with the reason in one line, and what to do if it is not the usual."""
    if hint is None and isinstance(error, _ELSEWHERE):
        hint = UNPREPARED
    return StoreUnreachable(f"cannot reach {name}: {reason(error)}", hint=hint)


def reason(error: BaseException | None) -> str:
    """What happened, in one line."""
    if isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError)) and lost(error):
        return "the connection broke"  # what the driver says is about its own state, and means nothing to anybody else
    if isinstance(error, _ELSEWHERE):
        return str(error.args[0])  # without the driver's advice, which is for who calls the driver
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

    What this process has shown is the least that its statements are given, and so the least that they answer. Were
    those answers believed, a clock of the database that is set back (or that of another server, after a failover) would
    never be noticed: this process would stay ahead of it, and take others, whose times are right, for silent. So the
    database is asked now and then what it says by itself (`store.ahead`), and time stands still here for as long as the
    database needs to come after.

    Args:
        own: a clock that replaces the database's (tests), milliseconds since 1970.
        monotonic: nanoseconds that never run backwards.
    """

    __slots__ = ("_at", "_last", "_monotonic", "_own", "_seen", "_unchecked")

    def __init__(self, own: Callable[[], int] | None = None, monotonic: Callable[[], int] = time.monotonic_ns) -> None:
        self._own = own
        self._monotonic = monotonic
        self._at = 0
        #: when the database said so; while time stands still, when it will
        self._seen = 0
        self._last = 0
        #: when the database has to be asked again
        self._unchecked = monotonic() + CHECKED_NS

    def saw(self, at: int) -> None:
        """The database answered with this time, which is at least what it was given."""
        if at > self._time():
            self._at = at
            self._seen = self._monotonic()

    def compare(self, shown: int, told: int) -> int:
        """How far this process was ahead of the database, ms; time stands still for so long from now on.

        Args:
            shown: the time here when the database was asked.
            told: what it said by itself.
        """
        self._unchecked = self._monotonic() + CHECKED_NS
        ahead = shown - told
        if ahead <= 0:
            self.saw(told)
            return 0
        self._at = max(self._time(), self._last)
        self._seen = self._monotonic() + ahead * 1_000_000
        return ahead

    def unchecked(self) -> bool:
        """Whether the database was not compared with for a while."""
        return self._own is None and self._monotonic() >= self._unchecked

    def now(self) -> int:
        """Milliseconds since 1970."""
        now = self._time()
        if now < self._last:
            return self._last
        self._last = now
        return now

    def bare(self) -> int:
        """What a statement is given to tell what the database says by itself."""
        return 0 if self._own is None else -self._own()

    def floor(self) -> int:
        """What a statement is given: a time to stay above, or (negative) the very time to use.

        Above what was *shown*, not only above what was seen: a queue row made eligible "now" must not be a
        millisecond away from the commit that writes it.
        """
        return -self.now() if self._own is not None else max(self._at, self._last)

    def _time(self) -> int:
        if self._own is not None:
            return self._own()
        return self._at + max(0, self._monotonic() - self._seen) // 1_000_000
