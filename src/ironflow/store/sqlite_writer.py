"""The one writer of a SQLite store: its connection, its turn, its transactions.

The loop's thread (a lone commit) and the writer's thread use the same connection, never at once: who holds
the turn holds the connection. Keeping one means one page cache that is always warm.

It promises that a failing batch does not take its neighbours along: on an unexpected error every transition
gets a transaction of its own, and its own answer. What the disk or another program causes is answered at
once, as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from ironflow.errors import StoreReadOnly, StoreUnreachable
from ironflow.model.transition import Audit, Decide, Decisions, Transition
from ironflow.store.committer import Answer
from ironflow.store.plan import payload_size
from ironflow.store.sqlite_alone import append_alone, appends_alone, leave_alone, leaves_alone
from ironflow.store.sqlite_batch import commit_batch, decide_batch
from ironflow.store.sqlite_connection import BUSY_MS, environmental, explain
from ironflow.store.sqlite_file import DatabaseFile
from ironflow.store.turnstile import Turnstile

Result = TypeVar("Result")
#: About how many pages a transaction writes besides one for each transition in it.
_PAGES = 4
#: An append to one journal writes its last page, and now and then the one above.
_APPEND_PAGES = 2
#: Rows for which anything else (the deletion of many runs, above all) writes about one page more; it was twelve.
_ROWS = 8


class SqliteWriter:
    """Runs write transactions. Every method takes the turn itself, but `transaction` and `decide` (see `perform`).

    Args:
        connection: open for writing; None in a store that only reads.
        turnstile: of its file.
        now: database time, read inside each transaction.
        file: which each of them expects to find.
        wrote: told after each transaction about how many pages of the log it took.
    """

    def __init__(
        self,
        connection: sqlite3.Connection | None,
        turnstile: Turnstile | None,
        now: Callable[[], int],
        file: DatabaseFile,
        wrote: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._turnstile = turnstile
        self._now = now
        self._file = file
        self._name = file.name
        self._wrote = wrote
        self._patience_ms = BUSY_MS

    # ---- transitions
    def try_commit(self, change: Transition) -> Answer | None:
        """Commit one transition if the turn is free this instant; None where it is not."""
        turnstile = self._turnstile
        if turnstile is None:
            return self.read_only()
        if not turnstile.try_acquire():
            return None
        try:
            return self._commit_now((change,), 0)[0]
        except sqlite3.Error as error:
            # A program that is not ours holds the file: the writer's thread waits for it, the loop does not.
            return None if _busy(error) else explain(error, self._name)
        except Exception as error:
            return error
        finally:
            turnstile.release()

    def commit(self, batch: Sequence[Transition]) -> Sequence[Answer]:
        """Commit a batch; where that fails unexpectedly, each transition by itself."""
        if self._turnstile is None:
            return [self.read_only()] * len(batch)
        try:
            with self._turnstile.turn():
                return self._commit_now(batch, BUSY_MS)
        except sqlite3.Error as error:
            if environmental(error):
                return [explain(error, self._name)] * len(batch)
            if len(batch) == 1:
                return [explain(error, self._name)]
        except Exception as error:
            if len(batch) == 1 or isinstance(error, OSError | StoreUnreachable):
                return [error] * len(batch)
        return [self.commit((change,))[0] for change in batch]

    def _commit_now(self, batch: Sequence[Transition], patience_ms: int) -> Sequence[str]:
        if len(batch) == 1 and appends_alone(batch[0]):
            # One statement is a transaction of its own: two calls fewer for the commonest write of a lone run.
            answers: Sequence[str] = (append_alone(self._ready(patience_ms), batch[0], self._now()),)
            self._wrote(_APPEND_PAGES)
            return answers
        connection = self._begin(patience_ms)
        try:
            alone = len(batch) == 1 and leaves_alone(batch[0])
            word = leave_alone(connection, batch[0], self._now()) if alone else None
            answers = commit_batch(connection, batch, self._now()) if word is None else (word,)
            connection.execute("commit")
        except BaseException:
            self._roll_back()
            raise
        self._wrote(_PAGES + len(batch) + sum(map(payload_size, batch)) // 4096)
        return answers

    # ---- decisions
    def decide(
        self, run_ids: Sequence[str], decide: Decide, audit: Sequence[Audit]
    ) -> Decisions:
        """One transaction for all; on an unexpected error one for each run, so that a bad one stops no other.

        The audit rows of the whole then go with the first that succeeds.
        """
        try:
            return self._decide_now(run_ids, decide, audit)
        except sqlite3.Error as error:
            if environmental(error) or not run_ids:
                raise
            if len(run_ids) == 1:
                return {run_ids[0]: explain(error, self._name)}
        except (OSError, StoreUnreachable):
            raise  # the machine: a smaller transaction would meet it just the same
        except Exception as error:
            if not run_ids:
                raise
            if len(run_ids) == 1:
                return {run_ids[0]: error}
        results: Decisions = {}
        for run_id in run_ids:
            found = self.decide([run_id], decide, audit)
            if not isinstance(found[run_id], Exception):
                audit = ()
            results.update(found)
        return results

    def _decide_now(
        self, run_ids: Sequence[str], decide: Decide, audit: Sequence[Audit]
    ) -> Decisions:
        return self.transaction(lambda connection, now: decide_batch(connection, run_ids, decide, audit, now))

    # ---- anything else
    def transaction(self, work: Callable[[sqlite3.Connection, int], Result]) -> Result:
        """Run `work(connection, now)` in a transaction. The turn is the caller's already (see `perform`)."""
        connection = self._begin(self._patience_ms)
        before = connection.total_changes
        try:
            result = work(connection, self._now())
            connection.execute("commit")
        except BaseException:
            self._roll_back()
            raise
        self._wrote(_PAGES * 2 + (connection.total_changes - before) // _ROWS)
        return result

    def perform(self, job: Callable[[], Result]) -> Result:
        """Take the turn for a job that uses `transaction` or `decide`."""
        if self._turnstile is None:
            raise self.read_only()
        try:
            with self._turnstile.turn():
                self._wait_at_most(BUSY_MS)
                return job()
        except sqlite3.Error as error:
            raise explain(error, self._name) from error

    def try_perform(self, job: Callable[[], Result]) -> tuple[Result] | None:
        """As `perform`, if the turn is free this instant."""
        if self._turnstile is None:
            raise self.read_only()
        if not self._turnstile.try_acquire():
            return None
        try:
            self._wait_at_most(0)
            return (job(),)
        except sqlite3.Error as error:
            if _busy(error):
                return None
            raise explain(error, self._name) from error
        finally:
            self._turnstile.release()

    # ---- inside
    def _begin(self, patience_ms: int) -> sqlite3.Connection:
        connection = self._ready(patience_ms)
        connection.execute("begin immediate")
        return connection

    def _ready(self, patience_ms: int) -> sqlite3.Connection:
        connection = self._connection
        assert connection is not None
        self._file.check()
        self._wait_at_most(patience_ms)
        return connection

    def _wait_at_most(self, patience_ms: int) -> None:
        """How long SQLite waits for a foreign program: in the loop not at all. Set only when it changes."""
        if patience_ms != self._patience_ms and self._connection is not None:
            self._connection.execute(f"pragma busy_timeout={patience_ms}")
            self._patience_ms = patience_ms

    def _roll_back(self) -> None:
        connection = self._connection
        # A full disk or an input/output error may have rolled back already.
        if connection is not None and connection.in_transaction:
            try:
                connection.execute("rollback")
            except sqlite3.Error:
                pass  # the first error is the one to tell

    def read_only(self) -> StoreReadOnly:
        """The error of whoever wants to write to a store that only reads."""
        return StoreReadOnly(f"{self._name} was opened for reading", hint="Open it without read_only to write.")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def _busy(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
