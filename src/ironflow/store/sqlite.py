"""The SQLite store: one file, any number of processes of one host, no service.

Owns the writer, the committer in front of it, the log, the readers and the wake-ups, and puts them
together; each has a module of its own. What it promises is what `Store` promises; what it adds is that a
program which holds the file, a full disk or a damaged file end in one clear error each, and in no call that
hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ironflow.model.capacity import RESERVED, RunHead, SessionRow
from ironflow.model.transition import Audit, Transition
from ironflow.model.wait import CLAIMABLE, WaitRow
from ironflow.store import migrate, rows, sqlite_lanes
from ironflow.store.base import Decide
from ironflow.store.clock import Floored, host_clock
from ironflow.store.committer import Committer
from ironflow.store.sqlite_batch import chunked, write_audits
from ironflow.store.sqlite_connection import connect, explained, prepare, verify
from ironflow.store.sqlite_heart import SqliteHeart
from ironflow.store.sqlite_log import LogKeeper
from ironflow.store.sqlite_reads import ORG, SqliteReads
from ironflow.store.sqlite_transaction import SqliteTransaction, SqliteTransactions
from ironflow.store.sqlite_wake import Waker
from ironflow.store.sqlite_writer import SqliteWriter
from ironflow.store.turnstile import Turnstile, give_back, turnstile_of

#: A decision about more runs than this does not run inside the loop.
_SHORT = 4
_CLAIM = (
    "with v(run_id, step_id) as (values @) update waits "
    "set pre_claim_status = status, status = 'waking', claimed_by = ?, claimed_at = ? "
    "from v where waits.run_id = v.run_id and waits.step_id = v.step_id returning " + ", ".join(rows.WAIT_COLUMNS)
)
_RESERVE = (
    "with v(run_id, token) as (values @) update dispatch_queue "
    f"set status = '{RESERVED}', reserved_by = ?, reservation_token = v.token, reserved_until = ? "
    "from v where dispatch_queue.run_id = v.run_id"
)
_LAST_TIMES = (
    "select max(heartbeat_at) from worker_sessions",
    # The whole index prefix, so that this reads one entry however many runs there are.
    "select max(created_at) from runs where org = 'default' and environment = 'default'",
)

Work = Callable[[sqlite3.Connection, int], Any]


class SqliteStore(SqliteReads):
    """See `Store`. Made by :func:`open_sqlite`, in the event loop that will use it."""

    dialect = "sqlite"
    exclusive_transactions = True

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, clock: Floored, read_only: bool) -> None:
        path = path.absolute()
        name = f"sqlite:///{path}"
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
                self._log = LogKeeper(lambda: connect(path, cache_kib=1024), self._turnstile)
            super().__init__(path, name)
            undo.callback(self._close_readers)
            with explained(name):
                if read_only:
                    verify(self._near)
                self._learn_the_time()
            undo.pop_all()
        self._writer = SqliteWriter(writing, self._turnstile, clock, name, self._wrote)
        self._committer = Committer(self._writer, loop)
        self._waker = Waker()
        self._closed = False
        self._transactions: SqliteTransactions | None = None
        if self._turnstile is not None:
            self._transactions = SqliteTransactions(
                path, name, self._turnstile, clock, self._wrote, migrate.tables()
            )

    def _learn_the_time(self) -> None:
        for sql in _LAST_TIMES:
            try:
                row = self._near.execute(sql).fetchone()
            except sqlite3.DatabaseError:
                continue  # damage is for `check` to report, which needs a store that opens
            self._clock.saw(row[0] if row else None)

    def _wrote(self, pages: int) -> None:
        if self._log is not None:
            self._log.wrote(pages)

    def now(self) -> int:
        """See `Store.now`."""
        return self._clock()

    @property
    def live_segments(self) -> int:
        """How many segments the worker beside this store has; the worker keeps it up to date."""
        return self._committer.live_segments

    @live_segments.setter
    def live_segments(self, count: int) -> None:
        self._committer.live_segments = count

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
    ) -> dict[str, Transition | Exception | None]:
        """See `Store.decide`. Its transaction locks the whole file, so nothing is ever skipped as locked."""
        ids = list(dict.fromkeys(run_ids))
        return await self._committer.run(lambda: self._writer.decide(ids, decide, audit), short=len(ids) <= _SHORT)

    async def begin(self, body: Callable[[Any], Any], *, deadline_ms: int) -> tuple[Any, SqliteTransaction]:
        """See `Store.begin`."""
        if self._transactions is None:
            raise self._writer.read_only()
        return await self._transactions.begin(body, deadline_ms)

    async def _change(self, work: Work, *, short: bool = True) -> Any:
        return await self._committer.run(lambda: self._writer.transaction(work), short=short)

    def _execute(self, connection: sqlite3.Connection, statement: str, /, **values: Any) -> sqlite3.Cursor:
        return connection.execute(self._statements[statement].text, values)

    # ---- the queue
    async def reserve(self, routes: Sequence[str], limit: int, session_id: str, ttl_ms: int) -> list[RunHead]:
        """See `Store.reserve`."""

        def work(connection: sqlite3.Connection, now: int) -> list[RunHead]:
            found: list[RunHead] = []
            while len(found) < limit:
                ready = self._ready(connection, routes, limit - len(found))
                # What a full lane keeps out is blocked by this, so the next round does not see it again.
                full = sqlite_lanes.refuse_stored(connection, [values[0] for values in ready], now)
                heads = [rows.head(values, secrets.token_hex(8)) for values in ready if values[0] not in full]
                pairs = [value for head in heads for value in (head.run_id, head.reservation)]
                chunked(connection, _RESERVE, pairs, 2, (session_id, now + ttl_ms))
                found += heads
                if not full:
                    break
            return found

        return await self._change(work)  # type: ignore[no-any-return]

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

    async def promote(self) -> int:
        """See `Store.promote`. Runs that a lane held back and that now fit are counted too."""
        if not self._read("promotable", now=self.now())[0][0]:
            return 0

        def work(connection: sqlite3.Connection, now: int) -> int:
            due = len(self._execute(connection, "promote", now=now).fetchall())
            return due + sqlite_lanes.let_through(connection, sqlite_lanes.blocked_lanes(connection), now)

        return await self._change(work, short=False)  # type: ignore[no-any-return]

    async def claim_waits(self, node: str, limit: int) -> list[WaitRow]:
        """See `Store.claim_waits`."""

        def work(connection: sqlite3.Connection, now: int) -> list[WaitRow]:
            due = [
                values
                for status in CLAIMABLE
                for values in self._execute(connection, "due_waits", status=status, now=now, limit=limit)
            ]
            due.sort(key=lambda values: (values[2], values[0], values[1]))
            pairs = [value for run_id, step_id, _ in due[:limit] for value in (run_id, step_id)]
            claimed = [WaitRow(*values) for values in chunked(connection, _CLAIM, pairs, 2, (node, now))]
            return sorted(claimed, key=lambda row: (row.due_at or 0, row.run_id, row.step_id))

        return await self._change(work, short=False)  # type: ignore[no-any-return]

    # ---- sessions
    async def open_session(self, session: SessionRow) -> None:
        """See `Store.open_session`."""
        await self._change(lambda connection, now: self._execute(
            connection, "open_session", **rows.session_values(session)))  # fmt: skip

    async def close_session(self, session_id: str) -> list[str]:
        """See `Store.close_session`."""

        def work(connection: sqlite3.Connection, now: int) -> list[str]:
            held = self._execute(connection, "runs_of_session", session_id=session_id).fetchall()
            self._execute(connection, "expire_leases_of_session", session_id=session_id, now=now)
            self._execute(connection, "expire_reservations_of_session", session_id=session_id, now=now)
            self._execute(connection, "delete_session", session_id=session_id)
            return [run_id for (run_id,) in held]

        return await self._change(work)  # type: ignore[no-any-return]

    # ---- workflows
    async def pause_workflow(self, workflow: str, actor: str) -> bool:
        """See `Store.pause_workflow`."""
        return await self._audited("pause_workflow", "workflow_paused", workflow, actor)

    async def resume_workflow(self, workflow: str, actor: str) -> bool:
        """See `Store.resume_workflow`."""
        return await self._audited("resume_workflow", "workflow_resumed", workflow, actor)

    async def _audited(self, name: str, action: str, workflow: str, actor: str) -> bool:
        def work(connection: sqlite3.Connection, now: int) -> bool:
            values = {"org": ORG, "workflow": workflow, "now": now, "actor": actor}
            changed = bool(self._execute(connection, name, **values).fetchall())
            if changed:
                write_audits(connection, [Audit(action, actor, fields={"workflow": workflow})], now)
            return changed

        return bool(await self._change(work))

    async def saw_workflows(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """See `Store.saw_workflows`."""

        def work(connection: sqlite3.Connection, now: int) -> None:
            for name, version, tags in rows:
                self._execute(connection, "saw_workflow", name=name, version=version, worker_tags=tags, now=now)

        await self._change(work)

    # ---- waking others, renewing, closing
    async def listen(self, wake: Callable[[str], None]) -> str | None:
        """See `Store.listen`."""
        return self._waker.listen(wake)

    def notify(self, topic: str, sessions: Sequence[SessionRow] = ()) -> None:
        """See `Store.notify`."""
        self._waker.notify(topic, sessions)

    def heart(self) -> SqliteHeart:
        """See `Store.heart`."""
        assert self._turnstile is not None, "a store that only reads renews nothing"
        statement = self._statements["beat_session"]
        return SqliteHeart(self._path, self._turnstile, self._clock, statement, self.name)

    async def close(self) -> None:
        """Commit what was submitted, answer it, and close everything. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._waker.close()
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
        StoreUnreachable: the file cannot be opened, or another program holds it.
        StoreTooNew: a newer release of Ironflow has written it.
        StoreCorrupt: it is damaged or no database.
    """
    loop = asyncio.get_running_loop()
    floored = Floored(clock or host_clock)
    # Opening may migrate, which waits for the disk: not in the loop.
    return await loop.run_in_executor(None, SqliteStore, Path(path), loop, floored, read_only)
