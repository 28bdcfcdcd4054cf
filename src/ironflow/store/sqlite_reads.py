"""What a SQLite store reads. Readers have connections of their own: in WAL mode they wait for no writer.

A short read (a row, a page) runs in the caller's thread: it takes tens of microseconds, and a hop to
another thread would cost more than it and delay it further. What may be long (lists, large events, the rest of a long
journal, sweeps over all live runs) runs in one thread of its own, so that no list holds up the event loop.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from ironflow.errors import StoreCorrupt
from ironflow.model.capacity import Holdings, LeaseRow, QueueRow, RunHead, SessionRow
from ironflow.model.ids import split_route
from ironflow.model.journal import APART, Event
from ironflow.model.key import KeyRow
from ironflow.model.run import RunRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.suspicion import Suspects, Suspicion
from ironflow.model.wait import CLAIMABLE, WaitRow
from ironflow.store import rows
from ironflow.store.dialect import SHARED, SQLITE, Statement, load
from ironflow.store.reader import Expired, RunFilter, Standing, Unowned
from ironflow.store.sqlite_connection import connect, explain, explained
from ironflow.store.sqlite_file import DatabaseFile

#: Rows that are looked up one by one in the loop; more are looked up in the thread.
FEW = 16
#: Of a journal so many events are read in the loop, and so many characters of payload, none of them in a large event;
#: the rest of a longer one is read in the thread. That is a millisecond.
PAGE, PAGE_SIZE = 256, 256 * 1024


class SqliteReads:
    """The reading half of the store."""

    def __init__(self, file: DatabaseFile) -> None:
        self.name = file.name
        self.gone = file.gone
        self._file = file
        self._statements: dict[str, Statement] = load(SQLITE, *SHARED, "sqlite_loops")
        with explained(file.name):
            self._near = connect(file.path, read_only=True, cache_kib=16 * 1024)
            self._far = connect(file.path, read_only=True, cache_kib=16 * 1024)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ironflow-reader")

    def now(self) -> int:
        """See `Store.now`."""
        raise AssertionError("the writing half knows the clock")

    # ---- two ways to read
    def _read(self, name: str, **values: Any) -> list[Any]:
        if rows.unheard_of(values.values()):
            return []
        self._file.glance()
        try:
            found: list[Any] = self._near.execute(self._statements[name].text, values).fetchall()
        except sqlite3.Error as error:
            raise explain(error, self.name) from error
        return found

    async def _read_far(self, name: str, **values: Any) -> list[Any]:
        text = self._statements[name].text
        if rows.unheard_of(values.values()):
            return []
        return await self._in_thread(lambda connection: connection.execute(text, values).fetchall())

    async def _in_thread(self, read: Callable[[sqlite3.Connection], list[Any]]) -> list[Any]:
        def call() -> list[Any]:
            self._file.glance()
            with explained(self.name):
                return read(self._far)

        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    # ---- runs and journals
    async def run(self, run_id: str) -> RunRow | None:
        """See `Store.run`."""
        found = self._read("run", run_id=run_id)
        return RunRow(*found[0]) if found else None

    async def standings(self, run_ids: Collection[str]) -> dict[str, Standing]:
        """See `Store.standings`."""
        ids = json.dumps(rows.heard_of(run_ids))
        few = len(run_ids) <= FEW
        return rows.standings(self._read("standings", ids=ids) if few else await self._read_far("standings", ids=ids))

    async def holdings(self, run_id: str) -> Holdings | None:
        """See `Store.holdings`."""
        # Between these two lines nothing is awaited, so nobody else reads in this transaction.
        with explained(self.name):
            self._near.execute("begin")
        try:
            found = self._read("run", run_id=run_id)
            others = [self._read(name, run_id=run_id) for name in rows.HOLDINGS] if found else []
        finally:
            self._near.rollback()
        return rows.holdings(found[0], *others) if found else None

    async def runs(self, filter: RunFilter) -> list[RunRow]:
        """See `Store.runs`."""
        states = json.dumps(list(filter.states))
        if filter.scope is not None:
            return await self._page(filter, filter.scope, states)
        pages = [await self._page(filter, scope, states) for scope in await self.scopes()]
        return rows.newest(pages, filter.limit)

    async def _page(self, filter: RunFilter, scope: Scope, states: str) -> list[RunRow]:
        found = await self._read_far("runs", states=states, **rows.listed(filter, scope))
        return [RunRow(*values) for values in found]

    async def find_key(self, column: str, value: str, workflow: str | None, scope: Scope = DEFAULT) -> RunRow | None:
        """See `Store.find_key`."""
        found = self._read(f"find_{column}", **rows.scoped(scope, value=value, workflow=workflow))
        return RunRow(*found[0]) if found else None

    async def journal(self, run_id: str, after: int = 0, limit: int = 0) -> list[Event]:
        """See `Store.journal`."""
        wanted = limit or rows.ENDLESS
        found, more = self._beginning(run_id, after, min(wanted, PAGE))
        if more and len(found) < wanted:
            rest = {"run_id": run_id, "after": found[-1][0] if found else after, "limit": wanted - len(found)}
            found += await self._read_far("journal", **rest)
        return [Event(*values) for values in found]

    def _beginning(self, run_id: str, after: int, limit: int) -> tuple[list[Any], bool]:
        """What may be read in the loop of the events behind a seq, and whether there may be more behind that."""
        if rows.unheard_of((run_id,)):
            return [], False
        found: list[Any] = []
        size = 0
        named = {"run_id": run_id, "after": after, "limit": limit}
        self._file.glance()
        with explained(self.name), closing(self._near.execute(self._statements["slim_journal"].text, named)) as events:
            for values in events:
                size += len(values[3] or "")
                if values[3] == APART or size > PAGE_SIZE:
                    return found, True
                found.append(values)
        return found, len(found) == limit

    async def last_event(self, run_id: str) -> Event | None:
        """See `Store.last_event`."""
        found = await self._read_far("last_event", run_id=run_id)
        return Event(*found[0]) if found else None

    async def journals(self, run_ids: Sequence[str]) -> dict[str, list[Event]]:
        """See `Store.journals`."""
        found = await self._read_far("journals", ids=json.dumps(list(run_ids)))
        return rows.journals(found, run_ids)

    async def outline(self, run_id: str, after: int, limit: int) -> list[Event]:
        """See `Store.outline`."""
        return [Event(*values) for values in await self._read_far("outline", run_id=run_id, after=after, limit=limit)]

    async def events_at(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], Event]:
        """See `Store.events_at`."""
        heard = [place for place in places if not rows.unheard_of(place)]
        return rows.events_at(await self._read_far("events_at", pairs=json.dumps(heard)))

    async def tail(self, after: Mapping[str, int], limit: int) -> dict[str, list[Event]]:
        """See `Store.tail`."""
        found = await self._read_far("tail", pairs=json.dumps(list(after.items())), limit=limit)
        return rows.journals(found, after)

    # ---- the queue and the waits
    async def peek(self, routes: Sequence[str], limit: int) -> list[RunHead]:
        """See `Store.peek`."""
        self._file.glance()
        with explained(self.name):
            return [rows.head(values) for values in self._ready(self._near, routes, limit)]

    def _ready(self, connection: sqlite3.Connection, routes: Sequence[str], limit: int) -> list[Any]:
        """The next ready rows of these routes in the order of handing out, each read along its index."""
        text = self._statements["peek"].text
        found: list[Any] = []
        for route in routes:
            parts = split_route(route)
            named = rows.scoped(parts.scope, route=route, workflow=parts.workflow, limit=limit)
            found += connection.execute(text, named)
        if len(routes) > 1:
            priority, enqueued_at = rows.HEAD_WIDTH, rows.HEAD_WIDTH + 1
            found.sort(key=lambda values: (-values[priority], values[enqueued_at], values[0]))
        return found[:limit]

    async def queue_routes(self) -> list[str]:
        """See `Store.queue_routes`."""
        return [route for (route,) in self._read("queue_routes")]

    async def backlog(self) -> list[tuple[str, str, int]]:
        """See `Store.backlog`."""
        return await self._read_far("backlog")

    async def next_due(self) -> int | None:
        """See `Store.next_due`."""
        found: int | None = self._read("next_due")[0][0]
        return found

    async def due(self, limit: int, routes: Sequence[str]) -> list[RunHead]:
        """See `Store.due`."""
        named = {"now": self.now(), "limit": limit, "routes": json.dumps(list(routes))}
        found = [values for status in CLAIMABLE for values in self._read("due", status=status, **named)]
        found.sort(key=lambda values: (values[rows.HEAD_WIDTH], values[0]))
        # A run may have several waits that are due; it is woken once.
        heads = {values[0]: rows.head(values) for values in reversed(found)}
        return [heads[run_id] for run_id in dict.fromkeys(values[0] for values in found)][:limit]

    async def stale_claims(self, older_than: int, limit: int) -> list[str]:
        """See `Store.stale_claims`."""
        return [run_id for (run_id,) in await self._read_far("stale_claims", older_than=older_than, limit=limit)]

    async def waits(self, run_id: str) -> list[WaitRow]:
        """See `Store.waits`."""
        return [WaitRow(*values) for values in self._read("waits", run_id=run_id)]

    # ---- sessions and sweeps
    async def sessions(self) -> list[SessionRow]:
        """See `Store.sessions`."""
        return [SessionRow(*values) for values in self._read("sessions")]

    async def expired_sessions(self, limit: int) -> list[SessionRow]:
        """See `Store.expired_sessions`."""
        return [SessionRow(*values) for values in self._read("expired_sessions", now=self.now(), limit=limit)]

    async def suspects(self, suspicion: Suspicion, limit: int) -> Suspects:
        """See `Store.suspects`."""
        return rows.suspects_of(self._read("suspects", now=self.now(), limit=limit, **rows.of_suspicion(suspicion)))

    async def expired_leases(self, limit: int, after: str = "") -> list[str]:
        """See `Store.expired_leases`."""
        found = self._read("expired_leases", now=self.now(), after=after, limit=limit)
        return [run_id for (run_id,) in found]

    async def expired_reservations(self, limit: int) -> list[str]:
        """See `Store.expired_reservations`."""
        return [run_id for (run_id,) in self._read("expired_reservations", now=self.now(), limit=limit)]

    async def unowned(self, older_than: int, limit: int, after: str = "") -> Unowned:
        """See `Store.unowned`."""
        named = {"after": after, "page": rows.LIVE_PAGE, "older_than": older_than, "limit": limit}
        return rows.unowned(await self._read_far("unowned", **named), limit)

    async def overdue(self, older_than: int, limit: int) -> list[str]:
        """See `Store.overdue`."""
        return [run_id for (run_id,) in self._read("overdue", older_than=older_than, limit=limit)]

    async def scopes(self) -> list[Scope]:
        """See `Store.scopes`."""
        return [Scope(*values) for values in await self._read_far("scopes")]

    async def expired_trees(
        self, scope: Scope, ended_before: int, after: tuple[int, str], page: int, limit: int
    ) -> Expired:
        """See `Store.expired_trees`."""
        asked = rows.page_asked(scope, ended_before, after, page)
        end = await self._read_far("page_end", **asked)
        return rows.expired(await self._read_far("expired_trees", **rows.on_page(asked, end, limit)), end, limit)

    # ---- lists for people
    async def leases(self) -> list[LeaseRow]:
        """See `Store.leases`."""
        return [LeaseRow(*values) for values in await self._read_far("leases", now=self.now())]

    async def queue(self, limit: int = 1000) -> list[QueueRow]:
        """See `Store.queue`."""
        return [QueueRow(*values) for values in await self._read_far("queue", limit=rows.bounded(limit))]

    async def reservations(self, session_id: str) -> list[tuple[str, str]]:
        """See `Store.reservations`."""
        return await self._read_far("reservations", session_id=session_id)

    async def lanes(self) -> list[dict[str, Any]]:
        """See `Store.lanes`."""
        return rows.named(rows.LANE_COLUMNS, await self._read_far("lanes"))

    async def counts(self, scope: Scope | None = None) -> dict[str, int]:
        """See `Store.counts`."""
        if scope is None:
            return dict(await self._read_far("counts_of_all"))
        return dict(await self._read_far("counts", **rows.scoped(scope)))

    async def audits(
        self, limit: int = 100, run_id: str | None = None, scope: Scope | None = None, before: str | None = None
    ) -> list[dict[str, Any]]:
        """See `Store.audits`."""
        name, named = rows.audits_asked(limit, run_id, scope, before)
        return [rows.audit(values) for values in await self._read_far(name, **named)]

    async def key_by_hash(self, key_hash: str) -> KeyRow | None:
        """See `Store.key_by_hash`."""
        found = self._read("key_by_hash", key_hash=key_hash)
        return KeyRow(*found[0]) if found else None

    async def keys(self, org: str | None) -> list[KeyRow]:
        """See `Store.keys`."""
        found = await (self._read_far("keys_of_all") if org is None else self._read_far("keys", org=org))
        return [KeyRow(*values) for values in found]

    async def paused_workflows(self, scope: Scope = DEFAULT) -> dict[str, int]:
        """See `Store.paused_workflows`."""
        return dict(self._read("paused_workflows", **rows.scoped(scope)))

    async def workflows(self, scope: Scope = DEFAULT) -> list[dict[str, Any]]:
        """See `Store.workflows`."""
        seen = await self._read_far("workflows", **rows.scoped(scope))
        return rows.current_workflows(seen, self._read("serving", **rows.scoped(scope, now=self.now())))

    async def check(self) -> list[str]:
        """See `Store.check`."""
        try:
            found = await self._in_thread(lambda open_: open_.execute("pragma integrity_check").fetchall())
        except StoreCorrupt as error:
            return [error.message]  # too damaged for SQLite to say more
        return [text for (text,) in found if text != "ok"]

    def _close_readers(self) -> None:
        self._pool.shutdown(wait=True)
        self._near.close()
        self._far.close()
