"""What a PostgreSQL store reads, on the connections of a small pool that the writers do not use.

A read (and every small write of the store) is tried again while the server is away, like a commit is: a
restart is a pause for everybody. What is tried again is harmless to do twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import asyncpg

from ironflow.errors import StoreUnreachable
from ironflow.model.capacity import Holdings, LeaseRow, QueueRow, RunHead, SessionRow
from ironflow.model.ids import split_route
from ironflow.model.journal import Event
from ironflow.model.key import KeyRow
from ironflow.model.run import RunRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.suspicion import Suspects, Suspicion
from ironflow.model.wait import WaitRow
from ironflow.store import rows
from ironflow.store.dialect import Statement
from ironflow.store.postgres_link import (
    TRIES,
    Address,
    Clock,
    Connection,
    Patience,
    again,
    atomically,
    lost,
    outdated,
    translated,
    unreachable,
)
from ironflow.store.postgres_open import OLDEST
from ironflow.store.reader import Expired, RunFilter, Standing, Unowned

T = TypeVar("T")

POOL_CONNECTIONS = 6


class Readers:
    """A pool of connections for reads and small transactions, opened when they are needed."""

    __slots__ = ("_address", "_pool")

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: asyncpg.Pool[Any] | None = None

    async def open(self) -> None:
        """Make the pool. It connects later."""
        self._pool = await asyncpg.create_pool(
            self._address.dsn,
            min_size=0,
            max_size=POOL_CONNECTIONS,
            # The usual reset is a round trip per use, and there is nothing to reset: nobody sets anything.
            reset=_leave,
            **self._address.options(),
        )

    async def use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` on a connection; again while the server is away, or after a deadlock.

        Raises:
            StoreUnreachable: the server stayed away.
            StoreError: it refused.
        """
        pool = self._pool
        if pool is None:
            raise StoreUnreachable(f"{self._address.name} is closed here", hint="Open it again; nothing was written")
        patience = Patience()
        tries = 0
        while True:
            try:
                async with pool.acquire() as connection:
                    try:
                        return await work(connection)
                    except Exception as error:
                        if lost(error) or outdated(error):
                            _discard(connection)
                        raise
                    except asyncio.CancelledError:
                        # The driver would ask the server to stop, and wait for that: of one that is silent, for ever.
                        _discard(connection)
                        raise
            except Exception as error:
                if lost(error) or outdated(error):
                    if not pool.is_closing() and await patience.wait():
                        continue
                    raise unreachable(self._address.name, error) from error
                tries += 1
                if again(error) and tries < TRIES:
                    continue
                raise translated(error, self._address.name) from error

    async def close(self) -> None:
        """Give the connections back."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()


def _discard(connection: Connection) -> None:
    """Keep a doubtful connection from being used again."""
    try:
        connection.terminate()
    except asyncpg.InterfaceError:
        pass  # the pool has noticed by itself and taken it back


async def _leave(_connection: Any) -> None:
    """Put a connection back as it is."""


class PostgresReads:
    """The reading half of the store."""

    def __init__(self, address: Address, statements: Mapping[str, Statement], clock: Clock) -> None:
        self.name = address.name
        self._address = address
        self._statements = statements
        self._clock = clock
        self._readers = Readers(address)

    def now(self) -> int:
        """See `Store.now`."""
        return self._clock.now()

    async def ahead(self) -> int:
        """See `Store.ahead`."""
        shown = self._clock.now()
        [(told,)] = await self._read("clock", floor=self._clock.bare())
        return self._clock.compare(shown, told)

    async def _read(self, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        arguments = statement.arguments(values)
        if rows.unheard_of(arguments):
            return []

        async def work(connection: Connection) -> list[Any]:
            return await connection.fetch(statement.text, *arguments)

        return await self._readers.use(work)

    async def _ids(self, name: str, /, **values: Any) -> list[str]:
        return [found[0] for found in await self._read(name, **values)]

    # ---- runs and journals
    async def run(self, run_id: str) -> RunRow | None:
        """See `Store.run`."""
        found = await self._read("run", run_id=run_id)
        return RunRow(*found[0]) if found else None

    async def standings(self, run_ids: Collection[str]) -> dict[str, Standing]:
        """See `Store.standings`."""
        return rows.standings(await self._read("standings", ids=rows.heard_of(run_ids)))

    async def holdings(self, run_id: str) -> Holdings | None:
        """See `Store.holdings`."""
        if rows.unheard_of((run_id,)):
            return None
        run, *others = (self._statements[name].text for name in ("run", *rows.HOLDINGS))

        async def work(connection: Connection) -> Holdings | None:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                found = await connection.fetchrow(run, run_id)
                if found is None:
                    return None
                return rows.holdings(found, *[await connection.fetch(text, run_id) for text in others])

        return await self._readers.use(work)

    async def runs(self, filter: RunFilter) -> list[RunRow]:
        """See `Store.runs`."""
        if filter.scope is not None:
            return await self._page(filter, filter.scope)
        return rows.newest([await self._page(filter, scope) for scope in await self.scopes()], filter.limit)

    async def _page(self, filter: RunFilter, scope: Scope) -> list[RunRow]:
        found = await self._read("runs", states=list(filter.states), **rows.listed(filter, scope))
        return [RunRow(*values) for values in found]

    async def find_key(self, column: str, value: str, workflow: str | None, scope: Scope = DEFAULT) -> RunRow | None:
        """See `Store.find_key`."""
        found = await self._read(f"find_{column}", **rows.scoped(scope, value=value, workflow=workflow))
        return RunRow(*found[0]) if found else None

    async def journal(self, run_id: str, after: int = 0, limit: int = 0) -> list[Event]:
        """See `Store.journal`."""
        found = await self._read("journal", run_id=run_id, after=after, limit=limit or None)
        return [Event(*values) for values in found]

    async def last_event(self, run_id: str) -> Event | None:
        """See `Store.last_event`."""
        found = await self._read("last_event", run_id=run_id)
        return Event(*found[0]) if found else None

    async def journals(self, run_ids: Sequence[str]) -> dict[str, list[Event]]:
        """See `Store.journals`."""
        return rows.journals(await self._read("journals", ids=list(run_ids)), run_ids)

    async def outline(self, run_id: str, after: int, limit: int) -> list[Event]:
        """See `Store.outline`."""
        return [Event(*values) for values in await self._read("outline", run_id=run_id, after=after, limit=limit)]

    async def events_at(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], Event]:
        """See `Store.events_at`."""
        heard = [place for place in places if not rows.unheard_of(place)]
        ids, seqs = [run_id for run_id, _ in heard], [seq for _, seq in heard]
        return rows.events_at(await self._read("events_at", ids=ids, seqs=seqs))

    async def tail(self, after: Mapping[str, int], limit: int) -> dict[str, list[Event]]:
        """See `Store.tail`."""
        found = await self._read("tail", ids=list(after), after=list(after.values()), limit=limit)
        return rows.journals(found, after)

    # ---- the queue and the waits
    async def peek(self, routes: Sequence[str], limit: int) -> list[RunHead]:
        """See `Store.peek`."""
        return [rows.head(values) for values in await self._read("peek_routes", **ready(routes, limit))]

    async def queue_routes(self) -> list[str]:
        """See `Store.queue_routes`."""
        return await self._ids("queue_routes")

    async def backlog(self) -> list[tuple[str, str, int]]:
        """See `Store.backlog`."""
        return [tuple(values) for values in await self._read("backlog")]

    async def next_due(self) -> int | None:
        """See `Store.next_due`."""
        found: int | None = (await self._read("next_due"))[0][0]
        return found

    async def due(self, limit: int, routes: Sequence[str]) -> list[RunHead]:
        """See `Store.due`."""
        found = await self._read("due_of_any", now=self.now(), limit=limit, routes=list(routes))
        # A run may have several waits that are due; it is woken once, at the earliest.
        heads: dict[str, RunHead] = {}
        for values in found:
            if values[0] not in heads:
                heads[values[0]] = rows.head(values)
        return list(heads.values())

    async def stale_claims(self, older_than: int, limit: int) -> list[str]:
        """See `Store.stale_claims`."""
        return await self._ids("stale_claims", older_than=older_than, limit=limit)

    async def waits(self, run_id: str) -> list[WaitRow]:
        """See `Store.waits`."""
        return [WaitRow(*values) for values in await self._read("waits", run_id=run_id)]

    # ---- sessions and sweeps
    async def sessions(self) -> list[SessionRow]:
        """See `Store.sessions`."""
        return [SessionRow(*values) for values in await self._read("sessions")]

    async def expired_sessions(self, limit: int) -> list[SessionRow]:
        """See `Store.expired_sessions`."""
        found = await self._read("expired_sessions", now=self.now(), limit=limit)
        return [SessionRow(*values) for values in found]

    async def suspects(self, suspicion: Suspicion, limit: int) -> Suspects:
        """See `Store.suspects`."""
        found = await self._read("suspects", now=self.now(), limit=limit, **rows.of_suspicion(suspicion))
        return rows.suspects_of(found)

    async def expired_leases(self, limit: int, after: str = "") -> list[str]:
        """See `Store.expired_leases`."""
        return await self._ids("expired_leases", now=self.now(), after=after, limit=limit)

    async def expired_reservations(self, limit: int) -> list[str]:
        """See `Store.expired_reservations`."""
        return await self._ids("expired_reservations", now=self.now(), limit=limit)

    async def unowned(self, older_than: int, limit: int, after: str = "") -> Unowned:
        """See `Store.unowned`."""
        named = {"after": after, "page": rows.LIVE_PAGE, "older_than": older_than, "limit": limit}
        return rows.unowned(await self._read("unowned", **named), limit)

    async def overdue(self, older_than: int, limit: int) -> list[str]:
        """See `Store.overdue`."""
        return await self._ids("overdue", older_than=older_than, limit=limit)

    async def scopes(self) -> list[Scope]:
        """See `Store.scopes`."""
        return [Scope(*values) for values in await self._read("scopes")]

    async def expired_trees(
        self, scope: Scope, ended_before: int, after: tuple[int, str], page: int, limit: int
    ) -> Expired:
        """See `Store.expired_trees`."""
        asked = rows.page_asked(scope, ended_before, after, page)
        straight, page_end, trees = (self._statements[name] for name in ("straight", "page_end", "expired_trees"))

        async def work(connection: Connection) -> Expired:
            async with atomically(connection):
                await connection.fetch(straight.text)
                end = await connection.fetch(page_end.text, *page_end.arguments(asked))
                found = await connection.fetch(trees.text, *trees.arguments(rows.on_page(asked, end, limit)))
            return rows.expired(found, end, limit)

        return await self._readers.use(work)

    # ---- lists for people
    async def leases(self) -> list[LeaseRow]:
        """See `Store.leases`."""
        return [LeaseRow(*values) for values in await self._read("leases", now=self.now())]

    async def queue(self, limit: int = 1000) -> list[QueueRow]:
        """See `Store.queue`."""
        return [QueueRow(*values) for values in await self._read("queue", limit=rows.bounded(limit))]

    async def reservations(self, session_id: str) -> list[tuple[str, str]]:
        """See `Store.reservations`."""
        return [(run_id, token) for run_id, token in await self._read("reservations", session_id=session_id)]

    async def lanes(self) -> list[dict[str, Any]]:
        """See `Store.lanes`."""
        return [dict(one) for one in rows.named(rows.LANE_COLUMNS, await self._read("lanes"))]

    async def counts(self, scope: Scope | None = None) -> dict[str, int]:
        """See `Store.counts`."""
        found = await (self._read("counts_of_all") if scope is None else self._read("counts", **rows.scoped(scope)))
        return {state: n for state, n in found}  # noqa: C416

    async def audits(
        self, limit: int = 100, run_id: str | None = None, scope: Scope | None = None, before: str | None = None
    ) -> list[dict[str, Any]]:
        """See `Store.audits`."""
        name, named = rows.audits_asked(limit, run_id, scope, before)
        return [rows.audit(values) for values in await self._read(name, **named)]

    async def key_by_hash(self, key_hash: str) -> KeyRow | None:
        """See `Store.key_by_hash`."""
        found = await self._read("key_by_hash", key_hash=key_hash)
        return KeyRow(*found[0]) if found else None

    async def keys(self, org: str | None) -> list[KeyRow]:
        """See `Store.keys`."""
        found = await (self._read("keys_of_all") if org is None else self._read("keys", org=org))
        return [KeyRow(*values) for values in found]

    async def paused_workflows(self, scope: Scope = DEFAULT) -> dict[str, int]:
        """See `Store.paused_workflows`."""
        return {name: at for name, at in await self._read("paused_workflows", **rows.scoped(scope))}  # noqa: C416

    async def workflows(self, scope: Scope = DEFAULT) -> list[dict[str, Any]]:
        """See `Store.workflows`."""
        seen = await self._read("workflows", **rows.scoped(scope))
        return rows.current_workflows(seen, await self._read("serving", **rows.scoped(scope, now=self.now())))

    async def check(self) -> list[str]:
        """See `Store.check`: what of the server's own settings and counters takes a promise away."""
        [found] = await self._read("health")
        problems = []
        if found["version"] < OLDEST:
            problems.append(f"PostgreSQL {found['version_text']} is older than {OLDEST // 10_000}")
        if found["fsync"] != "on":
            problems.append("fsync is off: what was acknowledged does not survive a crash of the machine")
        if found["full_page_writes"] != "on":
            problems.append("full_page_writes is off: a crash of the machine may leave torn pages")
        if found["synchronous_commit"] == "off":
            problems.append("synchronous_commit is off: the last acknowledged commits may be lost")
        if found["standby"]:
            problems.append("this server is a standby: it takes no writes")
        if found["failures"]:
            problems.append(f"{found['failures']} pages failed their checksum")
        return problems


def ready(routes: Sequence[str], limit: int) -> dict[str, Any]:
    """The parameters of `peek_routes`."""
    parts = [split_route(route) for route in routes]
    return {
        "routes": list(routes),
        "orgs": [one.scope.org for one in parts],
        "environments": [one.scope.environment for one in parts],
        "workflows": [one.workflow for one in parts],
        "limit": limit,
    }
