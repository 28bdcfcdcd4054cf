"""A connection to the engine's file in a user's hands: what may be done with it, and for how long.

A transactional step shares the file, and the one transaction that can write to it, with the engine. So the user gets a
real `sqlite3.Connection` on which three things are impossible: ending the transaction (its commit belongs to the
step's completion), changing what everybody shares (the engine's tables, other files, pragmas), and going on after the
time is up. The first two are refused when a statement is prepared, by SQLite's own authorizer; the third at every
statement, and inside long ones by the progress handler.

It also promises that the engine can take the connection back while the user's Python code still runs: statements of
both sides take turns by one lock, and none of the user's begins after `end`. SQLite itself need not be built for
threads that share a connection.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from ironflow.errors import StepTimeout
from ironflow.store.sqlite_connection import statements

#: Instructions of SQLite's machine between two looks at the clock: some hundred microseconds.
_INSTRUCTIONS = 2_000
#: Pragmas that only tell something; libraries that build statements ask for them.
_TELLING = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
)
_ROWS = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
#: Actions that change nothing, whatever they name.
_HARMLESS = frozenset(
    {
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_SAVEPOINT,
    }
)
_NO_COMMIT = "the transaction of a step is committed by the engine, together with the record that the step is done"


class Loan:
    """The terms on which one connection is lent.

    Args:
        tables: the engine's own, which may be read and not written.
        deadline_ms: how long the user may keep it, in milliseconds. Every other writer of the file waits meanwhile.
        lock: held during each statement, by whoever executes it.
    """

    __slots__ = ("_deadline_ms", "_engine", "_reason", "_refused", "_tables", "_until", "lock")

    def __init__(self, tables: frozenset[str], deadline_ms: int, lock: threading.RLock) -> None:
        self._tables = tables
        self._deadline_ms = deadline_ms
        self._until = monotonic() + deadline_ms / 1000
        #: why the user may do nothing more
        self._reason: Exception | None = None
        #: the thread in which the engine uses the connection again
        self._engine = 0
        #: what the authorizer said no to last, for the message
        self._refused = ""
        self.lock = lock

    @property
    def ended(self) -> Exception | None:
        """Why it is over, or None."""
        return self._reason

    def end(self, reason: Exception) -> None:
        """Refuse everything from now on, except what this thread does. The lock is the caller's."""
        if self._reason is None:
            self._reason = reason
        self._engine = threading.get_ident()

    def forbid(self, reason: Exception) -> None:
        """As :meth:`end`, at once and without the lock: the statement that runs now is interrupted."""
        if self._reason is None:
            self._reason = reason

    def overdue(self) -> bool:
        """Whether it is over, or should be. The progress handler: true interrupts the statement that runs."""
        if threading.get_ident() == self._engine:
            return False
        return self._reason is not None or monotonic() > self._until

    def late(self) -> StepTimeout:
        """The error of a user who kept the connection for too long."""
        return StepTimeout(
            f"the transaction did not end within {self._deadline_ms} ms, while every other writer waited",
            hint="Do less in it: what needs no transaction belongs in a step of its own.",
        )

    def check(self) -> None:
        """Refuse a statement that would begin after the end."""
        if self.overdue():
            raise self._reason or self.late()

    def judge(self, action: int, one: str | None, two: str | None, *_: str | None) -> int:
        """The authorizer. What it is given depends on the action: see `sqlite3_set_authorizer`."""
        if threading.get_ident() == self._engine or (self._reason is None and self._allows(action, one, two)):
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _allows(self, action: int, one: str | None, two: str | None) -> bool:
        if action in _HARMLESS:
            return True
        if action == sqlite3.SQLITE_TRANSACTION:
            self._refused = _NO_COMMIT
        elif action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
            self._refused = "a transactional step writes to the engine's file alone"
        elif action == sqlite3.SQLITE_PRAGMA:
            if one in _TELLING:
                return True
            self._refused = f"pragma {one} would change what the engine relies on"
        else:
            # The second name of a change of rows is a column, which may be called anything.
            named = (one,) if action in _ROWS else (one, two)
            own = [name for name in named if name is not None and name.lower() in self._tables]
            if not own:
                return True
            self._refused = f"table {own[0]} is the engine's: it may be read, and not changed or hidden"
        return False

    def explained(self, error: sqlite3.Error) -> Exception:
        """The error to raise for one of the driver: what SQLite says in two words, with the reason."""
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_INTERRUPT and self.overdue():
            return self._reason or self.late()
        if code == sqlite3.SQLITE_AUTH:
            return self._reason or sqlite3.DatabaseError(f"not authorized: {self._refused}")
        return error


class LentCursor(sqlite3.Cursor):
    """A cursor whose statements keep to the loan."""

    connection: LentConnection

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """See `sqlite3.Cursor.execute`."""
        with self.connection.statement():
            return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        """See `sqlite3.Cursor.executemany`."""
        with self.connection.statement():
            return super().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> Self:
        """Execute several statements. The driver's own would commit first."""
        for sql in statements(sql_script):
            self.execute(sql)
        return self

    def fetchone(self) -> Any:
        """See `sqlite3.Cursor.fetchone`."""
        with self.connection.statement():
            return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """See `sqlite3.Cursor.fetchmany`."""
        with self.connection.statement():
            return super().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        """See `sqlite3.Cursor.fetchall`."""
        with self.connection.statement():
            return super().fetchall()

    def __next__(self) -> Any:
        with self.connection.statement():
            return super().__next__()


class LentConnection(sqlite3.Connection):
    """A connection that can be lent. Until it is, it is like any other."""

    _loan: Loan | None = None

    def lend(self, loan: Loan) -> None:
        """Hand it out on these terms."""
        self.set_authorizer(loan.judge)
        self.set_progress_handler(loan.overdue, _INSTRUCTIONS)
        self._loan = loan

    def take_back(self) -> None:
        """Undo what a user may have set for their own convenience. The loan has ended, and its lock is held."""
        super().set_progress_handler(None, 0)
        super().set_authorizer(None)
        self.row_factory, self.text_factory = None, str

    @contextlib.contextmanager
    def statement(self) -> Iterator[None]:
        """Around whatever makes SQLite work on this connection."""
        loan = self._loan
        if loan is None:
            yield
            return
        with loan.lock:
            loan.check()
            try:
                yield
            except sqlite3.Error as error:
                found = loan.explained(error)
                if found is error:
                    raise
                raise found from error

    def cursor(self, factory: Callable[[sqlite3.Connection], Any] = LentCursor) -> Any:  # type: ignore[override]
        """See `sqlite3.Connection.cursor`."""
        return super().cursor(factory)

    # The driver's own versions of these three make a plain cursor, whatever `cursor` says.
    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """See `sqlite3.Connection.execute`."""
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """See `sqlite3.Connection.executemany`."""
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        """See `LentCursor.executescript`."""
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.executescript(sql_script)

    def __enter__(self) -> Self:
        """A part that can fail by itself: committed with the whole, undone alone. (Elsewhere this commits.)"""
        self.execute("savepoint part")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if kind is not None:
            self.execute("rollback to part")
        self.execute("release part")
        return False

    def commit(self) -> None:
        """Refused to a user."""
        self._refuse("commit()")

    def rollback(self) -> None:
        """Refused to a user."""
        self._refuse("rollback()")

    def blobopen(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: no authorizer sees what is written through a blob."""
        self._refuse("blobopen()")

    def set_authorizer(self, authorizer_callback: Any) -> None:
        """Refused to a user."""
        if self._loan is not None:
            self._refuse("set_authorizer()")
        super().set_authorizer(authorizer_callback)

    def set_progress_handler(self, progress_handler: Any, n: int) -> None:
        """Refused to a user."""
        if self._loan is not None:
            self._refuse("set_progress_handler()")
        super().set_progress_handler(progress_handler, n)

    def close(self) -> None:
        """Refused to a user, whose step has not ended."""
        loan = self._loan
        if loan is not None and loan.ended is None:
            self._refuse("close()")
        super().close()

    def _refuse(self, what: str) -> NoReturn:
        raise sqlite3.ProgrammingError(f"{what} is not for the function of a step: {_NO_COMMIT}")
