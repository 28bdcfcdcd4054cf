"""The SQLite store: one file, any number of processes of one host, no service.

Owns the writer, the committer in front of it, the log, the readers and the wake-ups, and puts them
together; each has a module of its own. What it promises is what `Store` promises; what it adds is that a
program which holds the file, a full disk or a damaged file end in one clear error each, and in no call that
hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ironflow.address import redact_url
from ironflow.errors import StoreReadOnly, StoreUnreachable
from ironflow.model.capacity import RunHead, SessionRow
from ironflow.model.transition import Audit, Decide, Decisions, Transition
from ironflow.model.wait import CLAIMABLE, WaitRow
from ironflow.observe.seam import Looking, Observer
from ironflow.store import migrate, rows, sqlite_lanes
from ironflow.store.base import PROMOTED
from ironflow.store.clock import Floored, host_clock
from ironflow.store.committer import Committer
from ironflow.store.guards import LOOKS, page
from ironflow.store.sqlite_connection import check_ours, check_writable, connect, explained, prepare, verify
from ironflow.store.sqlite_file import DatabaseFile
from ironflow.store.sqlite_heart import SqliteHeart
from ironflow.store.sqlite_log import LogKeeper
from ironflow.store.sqlite_operator import SqliteOperator
from ironflow.store.sqlite_sessions import SqliteSessions
from ironflow.store.sqlite_transaction import SqliteTransaction, SqliteTransactions
from ironflow.store.sqlite_wake import WakeSocket
from ironflow.store.sqlite_writer import SqliteWriter
from ironflow.store.turnstile import Turnstile, give_back, turnstile_of

#: A decision about more runs than this does not run inside the loop.
_SHORT = 4
#: How long a reader waits for a file that another process is making, seconds; and up to which age it may be that.
BEING_MADE_S, YOUNG_S = 1.0, 10.0


class SqliteStore(SqliteSessions, SqliteOperator):
    """See `Store`. Made by :func:`open_sqlite`, in the event loop that will use it."""

    dialect = "sqlite"
    exclusive_transactions = True

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, clock: Floored, read_only: bool) -> None:
        path = path.absolute()
        name = _shown(path)
        self._clock = clock
        self._turnstile: Turnstile | None = None
        self._log: LogKeeper | None = None
        writing: sqlite3.Connection | None = None
        with contextlib.ExitStack() as undo:
            if not read_only:
                self._turnstile = turnstile_of(path)
                undo.callback(give_back, self._turnstile)
                writing = _open_for_writing(path, self._turnstile, clock, name)
                undo.callback(writing.close)
            file = DatabaseFile(path, name, loop, written=not read_only)
            super().__init__(file)
            undo.callback(self._close_readers)
            with explained(name):
                if read_only:
                    verify(self._near, name)
                self._learn_the_time()
            undo.pop_all()
        self._writer = SqliteWriter(writing, self._turnstile, clock, file, self._wrote)
        self._committer = Committer(self._writer, loop)
        self._wake = WakeSocket()
        self._observer: Observer | None = None
        self._closed = False
        self._transactions: SqliteTransactions | None = None
        if self._turnstile is not None:
            self._log = LogKeeper(file, self._turnstile)
            self._transactions = SqliteTransactions(file, self._turnstile, clock, self._wrote, migrate.tables())

    def _learn_the_time(self) -> None:
        try:
            [(at,)] = self._execute(self._near, "last_heartbeat").fetchall()
            self._clock.saw(at)
            for org, environment in self._execute(self._near, "scopes").fetchall():
                [(at,)] = self._execute(self._near, "last_created", org=org, environment=environment).fetchall()
                self._clock.saw(at)
        except sqlite3.DatabaseError:
            return  # damage is for `check` to report, which needs a store that opens

    def _wrote(self, pages: int) -> None:
        if self._log is not None:
            self._log.wrote(pages)

    def now(self) -> int:
        """See `Store.now`."""
        return self._clock()

    async def ahead(self) -> int:
        """See `Store.ahead`."""
        return self._clock.ahead()

    @property
    def concurrent_writers(self) -> int:
        """See `Store`."""
        return self._committer.concurrent_writers

    @concurrent_writers.setter
    def concurrent_writers(self, count: int) -> None:
        self._committer.concurrent_writers = count

    def observe(self, observer: Observer | None) -> None:
        """See `Store.observe`."""
        self._observer = observer
        self._committer.wrote = None if observer is None else observer.wrote

    # ---- writing
    def submit(self, transition: Transition) -> str | asyncio.Future[str]:
        """See `Store.submit`."""
        return self._committer.submit(transition)

    async def decide(
        self,
        run_ids: Sequence[str],
        decide: Decide,
        *,
        skip_locked: bool = False,
        audit: Sequence[Audit] = (),
    ) -> Decisions:
        """See `Store.decide`. Its transaction locks the whole file, so nothing is ever skipped as locked."""
        ids = list(dict.fromkeys(run_ids))
        looking = None if self._observer is None else Looking(decide, self._observer)
        found = await self._committer.run(
            lambda: self._writer.decide(ids, looking or decide, audit), short=len(ids) <= _SHORT
        )
        if looking is not None:
            looking.applied(found)
        return found

    async def begin(self, body: Callable[[Any], Any], *, deadline_ms: int) -> tuple[Any, SqliteTransaction]:
        """See `Store.begin`."""
        if self._transactions is None:
            raise self._writer.read_only()
        return await self._transactions.begin(body, deadline_ms)

    # ---- the queue
    async def reserve(self, routes: Sequence[str], limit: int, session_id: str, ttl_ms: int) -> list[RunHead]:
        """See `Store.reserve`."""

        def work(connection: sqlite3.Connection, now: int) -> list[RunHead]:
            found: list[RunHead] = []
            for look in range(LOOKS):
                left = limit - len(found)
                ready = self._ready(connection, routes, page(look, left))
                # What a full lane keeps out is blocked by this, so the next look does not see it again.
                full = sqlite_lanes.refuse_stored(connection, [values[0] for values in ready], now, left)
                going = [values for values in ready if values[0] not in full][:left]
                heads = [rows.head(values, secrets.token_hex(8)) for values in going]
                if heads:
                    pairs = json.dumps([(head.run_id, head.reservation) for head in heads])
                    until = now + ttl_ms
                    self._execute(connection, "reserve_rows", pairs=pairs, session_id=session_id, until=until)
                found += heads
                if not full or len(found) >= limit:
                    break
            return found

        return await self._change(work)

    async def unreserve(self, reservations: Sequence[tuple[str, str]]) -> None:
        """See `Store.unreserve`."""

        def work(connection: sqlite3.Connection, now: int) -> None:
            freed = [
                run_id
                for run_id, token in reservations
                if self._execute(connection, "unreserve_row", run_id=run_id, token=token).fetchall()
            ]
            sqlite_lanes.let_through(connection, sqlite_lanes.lanes_of(connection, freed), now)

        await self._change(work)

    async def promote(self, limit: int = PROMOTED) -> int:
        """See `Store.promote`."""
        if not self._read("promotable", now=self.now())[0][0]:
            return 0

        def due(connection: sqlite3.Connection, now: int) -> int:
            return len(self._execute(connection, "promote", now=now, limit=limit).fetchall())

        def let_through(connection: sqlite3.Connection, now: int) -> int:
            return sqlite_lanes.let_through(connection, sqlite_lanes.blocked_lanes(connection), now)

        # Each in a transaction of its own, so that others have their turn in between.
        return await self._change(due, short=False) + await self._change(let_through, short=False)

    async def claim_waits(self, node: str, limit: int) -> list[WaitRow]:
        """See `Store.claim_waits`."""

        def work(connection: sqlite3.Connection, now: int) -> list[WaitRow]:
            due = [
                values
                for status in CLAIMABLE
                for values in self._execute(connection, "due_waits", status=status, now=now, limit=limit)
            ]
            due.sort(key=lambda values: (values[2], values[0], values[1]))
            pairs = json.dumps([(run_id, step_id) for run_id, step_id, _ in due[:limit]])
            found = self._execute(connection, "claim_rows", pairs=pairs, node=node, now=now)
            claimed = [WaitRow(*values) for values in found]
            return sorted(claimed, key=lambda row: (row.due_at or 0, row.run_id, row.step_id))

        return await self._change(work, short=False)

    # ---- waking others, renewing, closing
    async def gone_claimers(self) -> frozenset[str]:
        """See `Store.gone_claimers`."""
        return self._wake.gone([name for (name,) in self._read("claimers")])

    async def listen(self, wake: Callable[[str], None], name: str = "") -> str | None:
        """See `Store.listen`."""
        return self._wake.listen(wake, name)

    async def watch(self, on_time: bool) -> None:
        """See `Store.watch`. Nothing is shown here: few share a file, and each sees for itself."""

    async def watched(self, within_ms: int) -> bool:
        """See `Store.watched`."""
        return False

    def notify(self, topic: str, sessions: Sequence[SessionRow] = ()) -> None:
        """See `Store.notify`."""
        self._wake.notify(topic, sessions)

    async def rehearse(self) -> None:
        """See `Store.rehearse`. Nothing to do here: a statement is compiled in microseconds."""

    def heart(self) -> SqliteHeart:
        """See `Store.heart`."""
        assert self._turnstile is not None, "a store that only reads renews nothing"
        return SqliteHeart(self._file, self._turnstile, self._clock, self._statements)

    async def close(self) -> None:
        """Commit what was submitted, answer it, and close everything. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._wake.close()
        if self._transactions is not None:
            await self._transactions.close()
        await self._committer.close()
        await asyncio.get_running_loop().run_in_executor(None, self._close_all)

    def _close_all(self) -> None:
        if self._log is not None:
            self._log.close()
        self._close_readers()
        # Last: the connection that closes last of all processes copies the log back and removes it.
        self._writer.close()
        if self._turnstile is not None:
            give_back(self._turnstile)


def _open_for_writing(path: Path, turnstile: Turnstile, clock: Callable[[], int], name: str) -> sqlite3.Connection:
    with explained(name):
        connection = connect(path)
        try:
            prepare(connection, turnstile, clock())
        except BaseException:
            connection.close()
            raise
        return connection


async def open_sqlite(path: str, *, clock: Callable[[], int] | None = None, read_only: bool = False) -> SqliteStore:
    """Open a SQLite store; creates the file and brings its schema up to date unless `read_only`.

    Args:
        path: the file, absolute or relative to the current folder.
        clock: milliseconds since 1970; None takes the host's.
        read_only: refuse every write.

    Raises:
        StoreUnreachable: the file cannot be opened, another program holds it, or (to read) there is none yet.
        StoreReadOnly: this user may not write the file or its folder.
        StoreTooNew: a newer release of Ironflow has written it.
        StoreCorrupt: it is damaged, no database, or another program's.
    """
    loop = asyncio.get_running_loop()
    floored = Floored(clock or host_clock)
    # Opening may migrate, which waits for the disk: not in the loop.
    opening = _opened_for_reading if read_only else _opened
    return await loop.run_in_executor(None, opening, Path(path), loop, floored)


def _shown(path: Path) -> str:
    """The name of a database in errors; of a path that looks like the rest of another address, nothing is shown."""
    return redact_url(f"sqlite:///{path}")


def _opened(path: Path, loop: asyncio.AbstractEventLoop, clock: Floored) -> SqliteStore:
    name = _shown(path.absolute())
    check_writable(path, name)
    check_ours(path, name)
    return SqliteStore(path, loop, clock, False)


def _opened_for_reading(path: Path, loop: asyncio.AbstractEventLoop, clock: Floored) -> SqliteStore:
    """Open to read. Another process may be making the file right now: that takes a moment, which is waited for."""
    until = time.monotonic() + BEING_MADE_S
    while True:
        try:
            if not path.exists():
                raise migrate.nothing_there(_shown(path.absolute()))
            return SqliteStore(path, loop, clock, True)
        except (StoreUnreachable, StoreReadOnly):
            if time.monotonic() > until or not _is_young(path):
                raise
            time.sleep(BEING_MADE_S / 20)


def _is_young(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < YOUNG_S
    except OSError:
        return False
