"""A user's transaction in the engine's file: their writes and the completion of their step commit together.

Each has a thread and a connection of its own. It takes the turn like every writer, runs the user's function, and keeps
the turn until the owner of the step says commit or rollback. Everybody else who writes to the file waits meanwhile,
heartbeats included, so three things are promised: the function is over by its deadline, even if its Python code hangs
(the connection is taken back, and what the code does with it afterwards is refused); an owner that says nothing is
waited for only as long as the turn may last; and a store has one such transaction at a time, so that its own never
wait for each other at the turn.

Because it holds the turn, whoever has one open may wait for no other write before it is decided.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sqlite3
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from ironflow.errors import StoreError
from ironflow.model.transition import APPLIED, NEWS, Transition
from ironflow.store.plan import payload_size
from ironflow.store.sqlite_batch import commit_batch
from ironflow.store.sqlite_connection import explain
from ironflow.store.sqlite_file import DatabaseFile
from ironflow.store.sqlite_loan import LentConnection, Loan
from ironflow.store.turnstile import Turnstile

#: How long one transaction may keep the turn in all, ms: the function, then its owner's word. Everybody else waits 5 s
#: for the turn and not longer, heartbeats included, so the two share one budget that ends before.
TURN_MS = 4_500
#: The most of it that a function gets, whatever deadline it was given; the rest is its owner's.
LONGEST_MS = 4_000
#: How long after its deadline a function whose Python code hangs is cut off, ms; its statements end by themselves.
_GRACE_MS = 25
_CACHE_KIB = 2 * 1024

Asked = tuple["Transition | None", "asyncio.Future[str | None]"]


class SqliteTransactions:
    """The transactions of one store, one at a time in the order in which they were asked for.

    Args:
        file: the file.
        turnstile: of the file.
        now: database time.
        wrote: told after each commit, with the turn held, about how many pages of the log it took.
        tables: the engine's own.
    """

    def __init__(
        self,
        file: DatabaseFile,
        turnstile: Turnstile,
        now: Callable[[], int],
        wrote: Callable[[int], None],
        tables: frozenset[str],
    ) -> None:
        self.file = file
        self.name = file.name
        self.turnstile = turnstile
        self.now = now
        self.wrote = wrote
        self.tables = tables
        self.closed = False
        self._one = asyncio.Lock()
        self._open: SqliteTransaction | None = None

    async def begin(self, body: Callable[[Any], Any], deadline_ms: int) -> tuple[Any, SqliteTransaction]:
        """See `Store.begin`. The function sees the context variables of this call.

        Raises:
            TypeError: `body` is a coroutine function.
            StepTimeout: it was not over by its deadline; its writes are undone.
            StoreError: the file cannot be written, or the store is closed.
            Exception: whatever `body` raised; its writes are undone.
        """
        if inspect.iscoroutinefunction(body):
            raise _is_coroutine(body)
        await self._one.acquire()
        if self.closed:
            self._one.release()
            raise StoreError("the store is closed", hint="Open it again; nothing was written")
        opened = self._open = SqliteTransaction(self, min(deadline_ms, LONGEST_MS))
        try:
            opened.start(body)
        except RuntimeError:  # no thread is to be had; the next one may find one
            self.over()
            raise
        try:
            return await opened.value, opened
        except asyncio.CancelledError:
            # By the time the cancellation goes on, nothing of it can be written any more.
            await opened.cut(StoreError("the step was cancelled", hint="Its transaction was undone."))
            raise

    def over(self) -> None:
        """The open transaction gave the turn up; called in the loop."""
        self._open = None
        self._one.release()

    async def close(self) -> None:
        """Undo the one that is open; none begins any more."""
        self.closed = True
        if self._open is not None:
            await self._open.cut(StoreError("the store was closed", hint="Nothing was written."))


class SqliteTransaction:
    """See `OpenTransaction`. The upper half runs in the loop, the lower in the transaction's thread."""

    def __init__(self, host: SqliteTransactions, deadline_ms: int) -> None:
        self._host = host
        self._deadline_ms = deadline_ms
        #: when the turn must be given up, by the monotonic clock; known when the transaction has begun
        self._until = 0.0
        self._loop = asyncio.get_running_loop()
        self._asked: SimpleQueue[Asked] = SimpleQueue()
        self._watch: asyncio.TimerHandle | None = None
        # Held during each statement, and while the turn is given up: a transaction ends between statements.
        self._lock = threading.RLock()
        self._holds = False
        # Set on one side and read on the other, each before the other's: one of them sees it.
        self._cut: Exception | None = None
        self._connection: LentConnection | None = None
        self._loan: Loan | None = None
        self._served = False
        #: what the function returned, or raised
        self.value: asyncio.Future[Any] = self._loop.create_future()

    # ---- in the loop
    def start(self, body: Callable[[Any], Any]) -> None:
        """Begin, in a thread of its own."""
        context = contextvars.copy_context()
        thread = threading.Thread(target=self._serve, args=(body, context), name="ironflow-transaction", daemon=True)
        thread.start()

    async def commit(self, transition: Transition) -> str:
        """Apply the transition and commit; see `OpenTransaction.commit`.

        Raises:
            StoreError: nothing was committed, neither the transition nor the user's writes.
        """
        answer = await self._ask(transition)
        if answer is None:
            raise StoreError(
                f"the transaction on {self._host.name} was open for too long and was rolled back",
                hint="Nothing was written.",
            )
        return answer

    async def rollback(self) -> None:
        """Undo the user's writes. Does nothing after the end."""
        await self._ask(None)

    def _ask(self, transition: Transition | None) -> asyncio.Future[str | None]:
        future: asyncio.Future[str | None] = self._loop.create_future()
        self._asked.put((transition, future))
        if self._served:
            self._refuse_rest()
        return future

    async def cut(self, reason: Exception) -> None:
        """End it whatever it does; when this returns, nothing of it can be written and others have the turn."""
        await asyncio.shield(self._loop.run_in_executor(None, self._cut_off, reason))

    def _watch_it(self) -> None:
        self._watch = self._loop.call_later((self._deadline_ms + _GRACE_MS) / 1000, self._overdue)

    def _overdue(self) -> None:
        loan = self._loan
        if loan is not None and not self.value.done():
            self._loop.run_in_executor(None, self._cut_off, loan.late())

    def _over(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._host.over()

    # ---- in the transaction's thread, or (to cut it off) in another one
    def _cut_off(self, reason: Exception) -> None:
        self._cut = reason
        loan, connection = self._loan, self._connection
        if loan is not None and connection is not None:
            loan.forbid(reason)
            try:
                connection.interrupt()
            except sqlite3.ProgrammingError:
                pass  # closed: it ended by itself just now
            with self._lock:
                loan.end(reason)
                self._give_up(connection)
        self._tell(self.value, reason)
        self._asked.put((None, self._loop.create_future()))

    def _give_up(self, connection: sqlite3.Connection | None) -> None:
        """Undo what is not committed and let others have the turn. Whoever comes first does it."""
        with self._lock:
            if not self._holds:
                return
            self._holds = False
            try:
                if connection is not None and connection.in_transaction:
                    connection.execute("rollback")
            except sqlite3.Error:
                pass  # the end of the connection undoes it as well
            finally:
                self._host.turnstile.release()
                self._post(self._over)

    def _serve(self, body: Callable[[Any], Any], context: contextvars.Context) -> None:
        host = self._host
        connection: LentConnection | None = None
        try:
            host.turnstile.acquire()
        except Exception as error:
            self._tell(self.value, error)
            self._post(self._over)
            return
        self._holds = True
        try:
            found = host.file.connect(_CACHE_KIB, LentConnection)
            assert isinstance(found, LentConnection)
            connection = found
            connection.execute("begin immediate")
            self._until = monotonic() + TURN_MS / 1000
            value = self._run(connection, body, context)
            self._tell(self.value, value)
            self._wait_for_the_word(connection)
        except sqlite3.Error as error:
            self._give_up(connection)
            # Before the function began it is the file's error, afterwards the function's.
            self._tell(self.value, explain(error, host.name) if self._loan is None else error)
        except BaseException as error:
            self._give_up(connection)
            self._tell(self.value, error)
        finally:
            self._give_up(connection)
            if connection is not None:
                connection.close()
            self._served = True
            self._refuse_rest()

    def _run(self, connection: LentConnection, body: Callable[[Any], Any], context: contextvars.Context) -> Any:
        loan = Loan(self._host.tables, self._deadline_ms, self._lock)
        self._connection, self._loan = connection, loan
        if self._cut is not None:
            raise self._cut
        self._post(self._watch_it)
        connection.lend(loan)
        try:
            value = context.run(body, connection)
            if inspect.iscoroutine(value):
                value.close()
                raise _is_coroutine(body)
            loan.check()
        except StopIteration as error:
            # A future cannot carry it: awaiting would read it as the end of the awaiter.
            raise RuntimeError(f"the step raised {error!r}") from error
        finally:
            with self._lock:
                cut = loan.ended
                loan.end(sqlite3.ProgrammingError("the step that this connection was lent to has ended"))
                connection.take_back()
        if cut is not None:
            raise cut
        return value

    def _wait_for_the_word(self, connection: sqlite3.Connection) -> None:
        while True:
            try:
                change, future = self._asked.get(timeout=max(0.0, self._until - monotonic()))
            except Empty:
                return  # nobody is there to say it: the file is not held for them
            if change is None:
                self._give_up(connection)
                self._tell(future, None)
                return
            try:
                answer = self._commit(connection, change)
            except Exception as error:
                self._give_up(connection)
                self._tell(future, explain(error, self._host.name) if isinstance(error, sqlite3.Error) else error)
                return
            if answer != NEWS:
                self._give_up(connection)  # first, so that a lone caller's next commit finds the turn free
                self._tell(future, answer)
                return
            self._tell(future, answer)

    def _commit(self, connection: sqlite3.Connection, change: Transition) -> str:
        host = self._host
        with self._lock:
            if not self._holds:
                raise self._cut or StoreError("the transaction has ended")
            host.file.check()
            [answer] = commit_batch(connection, [change], host.now())
            if answer == APPLIED:
                connection.execute("commit")
                host.wrote(8 + connection.total_changes + payload_size(change) // 4096)
        return answer

    def _refuse_rest(self) -> None:
        """Answer whoever asks after the end. Both halves do this, so that no question falls between them."""
        while True:
            try:
                _, future = self._asked.get_nowait()
            except Empty:
                return
            self._tell(future, None)

    def _tell(self, future: asyncio.Future[Any], value: Any) -> None:
        self._post(_settle, future, value)

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            pass  # the loop is closed, and with it everybody who waited


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if future.done():
        return
    if isinstance(value, BaseException):
        future.set_exception(value)
    else:
        future.set_result(value)


def _is_coroutine(body: Callable[..., Any]) -> TypeError:
    return TypeError(
        f"{getattr(body, '__qualname__', body)} is a coroutine function; on SQLite the function of a transaction "
        "is a plain `def`: it gets a sqlite3.Connection and runs in a thread"
    )
