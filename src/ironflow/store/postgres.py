"""The PostgreSQL store: many processes on many machines over one database, which is the distributed part.

Puts together what has modules of its own: three batchers (owners, starts, activations) for the hot path,
the transaction that looks first for everything else, readers, the wire between processes, the heart. What
it promises is what `Store` promises. A restart of the server is a pause: writers wait for it and resolve
what they do not know.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from ironflow.errors import OUTAGES, StoreGone
from ironflow.model.capacity import LeaseRow, RunHead, SessionRow
from ironflow.model.journal import RUN_RESUMED, Event
from ironflow.model.run import RUNNING
from ironflow.model.transition import GUARD_FRESH, GUARD_OWNER, GUARD_QUEUED, Audit, Decide, Decisions, Transition
from ironflow.model.wait import WaitRow
from ironflow.observe.seam import Looking, Observer
from ironflow.store import postgres_shapes as shapes
from ironflow.store import rows
from ironflow.store.base import PROMOTED
from ironflow.store.guards import LOOKS, page
from ironflow.store.postgres_commit import Batcher, Shape
from ironflow.store.postgres_heart import PostgresHeart
from ironflow.store.postgres_link import Address, Clock, Connection, Link, atomically
from ironflow.store.postgres_listen import PRESENCE, WATCH, Wire
from ironflow.store.postgres_lone import Lone
from ironflow.store.postgres_open import look_in, set_session, statements
from ironflow.store.postgres_operator import PostgresOperator
from ironflow.store.postgres_reads import ready
from ironflow.store.postgres_sessions import PostgresSessions
from ironflow.store.postgres_transaction import PostgresTransaction, UserConnections

#: What stands between a proven death and the next owner, each harmless when it is given nothing.
_TAKEOVER = ("look", "requeue", "journals")


class PostgresStore(PostgresSessions, PostgresOperator):
    """See `Store`. Made by :func:`open_postgres`, in the event loop that will use it."""

    dialect = "postgres"
    exclusive_transactions = False

    def __init__(self, address: Address, channel: str, clock: Clock, read_only: bool) -> None:
        super().__init__(address, statements(), clock, read_only)
        #: See `Store`. A commit never blocks the loop here, so nothing depends on it; it is kept because it is set on
        #: every store.
        self.concurrent_writers = 0
        #: See `Store`. A server that is away may come back.
        self.gone: asyncio.Future[StoreGone] = asyncio.get_running_loop().create_future()
        known = self._statements
        lone = Lone(known)
        append = Shape(lone.append, known["append_many"], shapes.append_many)
        leave = Shape(lone.leave, known["leave_many"], shapes.leave_many)
        create = Shape(lone.create, known["create_many"], shapes.create_many, careful=lone.create_unless_there)
        activate = Shape(lone.activate, known["activate_many"], shapes.activate_many)

        def of_owners(batch: list[Transition]) -> Shape:
            return append if all(change.is_plain_append for change in batch) else leave

        self._owners = self._batcher(of_owners)
        self._starts = self._batcher(lambda batch: create)
        self._activations = self._batcher(lambda batch: activate)
        self._observer: Observer | None = None
        self._users = UserConnections(address)
        self._wire = Wire(address, channel, self._send)
        self._closed = False

    def _batcher(self, choose: Callable[[list[Transition]], Shape]) -> Batcher:
        setup = set_session if self._address.prepare else None
        link = Link(self._address, setup)
        return Batcher(link, self._clock, choose, self._decider, self._address.prepare)

    async def open(self) -> None:
        """Make the pools. They connect when they are used."""
        await self._readers.open()
        await self._users.open()

    def observe(self, observer: Observer | None) -> None:
        """See `Store.observe`."""
        self._observer = observer
        for batcher in (self._owners, self._starts, self._activations):
            batcher.wrote = None if observer is None else observer.wrote

    # ---- writing
    def submit(self, transition: Transition) -> asyncio.Future[str]:
        """See `Store.submit`. Always an awaitable: a commit crosses the network."""
        if self._read_only:
            raise self._refusal()
        guard = transition.guard
        if guard == GUARD_OWNER:
            return self._owners.submit(transition)
        if guard == GUARD_FRESH:
            return self._starts.submit(transition)
        return self._activations.submit(transition)

    async def decide(
        self,
        run_ids: Sequence[str],
        decide: Decide,
        *,
        skip_locked: bool = False,
        audit: Sequence[Audit] = (),
    ) -> Decisions:
        """See `Store.decide`."""
        ids = list(dict.fromkeys(run_ids))
        try:
            return await self._decide(ids, decide, skip_locked, audit)
        except OUTAGES:
            raise  # each run by itself would wait for the same database
        except Exception as error:
            if len(ids) == 1:
                return {ids[0]: error}
            if not ids:
                raise
        results: Decisions = {}
        for run_id in ids:
            found = await self.decide([run_id], decide, skip_locked=skip_locked, audit=audit)
            if not isinstance(found[run_id], Exception):
                audit = ()  # of the whole: it goes with the first that succeeds
            results.update(found)
        return results

    async def _decide(self, ids: list[str], decide: Decide, skip_locked: bool, audit: Sequence[Audit]) -> Decisions:
        earlier: dict[str, tuple[Transition, int]] = {}
        looking = None if self._observer is None else Looking(decide, self._observer)

        async def work(connection: Connection) -> Decisions:
            return await self._decider.decide(connection, ids, looking or decide, skip_locked, audit, earlier)

        found = await self._change(work)
        if looking is not None:
            looking.applied(found)
        return found

    async def begin(self, body: Callable[[Any], Any], *, deadline_ms: int) -> tuple[Any, PostgresTransaction]:
        """See `Store.begin`. Nobody waits for a body here, so the deadline (of the one writer) is not enforced."""
        if self._read_only:
            raise self._refusal()
        transaction = PostgresTransaction(self._users, self._decider, self._readers, self.name)
        return await transaction.open(body), transaction

    # ---- the queue
    async def reserve(self, routes: Sequence[str], limit: int, session_id: str, ttl_ms: int) -> list[RunHead]:
        """See `Store.reserve`."""
        found: list[RunHead] = []
        for look in range(LOOKS):
            left = limit - len(found)
            seen, got = await self._reserve(routes, page(look, left), left, session_id, ttl_ms)
            found += got
            # A page that was full, and of which others (or full lanes) took some, is worth another look.
            if len(found) >= limit or seen == len(got) or not seen:
                break
        return found

    async def _reserve(
        self, routes: Sequence[str], look_at: int, most: int, session_id: str, ttl_ms: int
    ) -> tuple[int, list[RunHead]]:
        async def work(connection: Connection) -> tuple[int, list[RunHead]]:
            async with atomically(connection):
                seen = await self._execute(connection, "peek_routes", **ready(routes, look_at))
                ids = [values[0] for values in seen]
                free = {run_id for (run_id,) in await self._execute(connection, "lock_ready", ids=ids)}
                wanted = await self._decider.lanes.of(connection, [run_id for run_id in ids if run_id in free])
                lanes = {name for one in wanted.values() for name, _ in one}
                await self._decider.lanes.lock(connection, lanes)
                now = await self._decider.now(connection)
                if lanes:
                    free -= await self._decider.lanes.refuse(connection, wanted, now, most)
                going = [values for values in seen if values[0] in free][:most]
                heads = [rows.head(values, secrets.token_hex(8)) for values in going]
                if heads:
                    await self._execute(
                        connection, "reserve_rows", session_id=session_id, until=now + ttl_ms,
                        ids=[head.run_id for head in heads], tokens=[head.reservation for head in heads],
                    )  # fmt: skip
                return len(seen), heads

        return await self._change(work)

    async def unreserve(self, reservations: Sequence[tuple[str, str]]) -> None:
        """See `Store.unreserve`."""

        async def work(connection: Connection) -> None:
            async with atomically(connection):
                freed = await self._execute(
                    connection, "unreserve_rows", ids=[one[0] for one in reservations],
                    tokens=[one[1] for one in reservations],
                )  # fmt: skip
                places = await self._decider.lanes.of(connection, [run_id for (run_id,) in freed])
                lanes = {lane for one in places.values() for lane, _ in one}
                if lanes:
                    await self._decider.lanes.lock(connection, lanes)
                    await self._decider.lanes.let_through(connection, lanes, await self._decider.now(connection))

        await self._change(work)

    async def promote(self, limit: int = PROMOTED) -> int:
        """See `Store.promote`. What somebody else has in hand is passed over, and counts for nothing."""

        async def work(connection: Connection) -> int:
            [(now, some)] = await self._execute(connection, "promotable", floor=self._clock.floor())
            self._clock.saw(now)
            if not some:
                return 0
            async with atomically(connection):
                due = len(await self._execute(connection, "promote_due", now=now, limit=limit))
                return due + await self._decider.lanes.let_all_through(connection, now)

        return await self._change(work)

    async def claim_waits(self, node: str, limit: int) -> list[WaitRow]:
        """See `Store.claim_waits`."""

        async def work(connection: Connection) -> list[WaitRow]:
            now = await self._decider.now(connection)
            claimed = await self._execute(connection, "claim_due", now=now, node=node, limit=limit)
            found = [WaitRow(*values) for values in claimed]
            return sorted(found, key=lambda row: (row.due_at or 0, row.run_id, row.step_id))

        return await self._change(work)

    # ---- waking others, renewing, closing
    async def gone_claimers(self) -> frozenset[str]:
        """See `Store.gone_claimers`."""
        if not self._address.prepare:  # behind a pooler nobody can show that he is there
            return frozenset()
        return frozenset(name for (name,) in await self._read("gone_claimers", presence=PRESENCE))

    async def listen(self, wake: Callable[[str], None], name: str = "") -> str | None:
        """See `Store.listen`. There is no address: everybody hears the channel of the database."""
        await self._wire.listen(wake, name)
        return None

    async def watch(self, on_time: bool) -> None:
        """See `Store.watch`."""
        await self._wire.watch(on_time)

    async def watched(self, within_ms: int) -> bool:
        """See `Store.watched`."""
        return bool((await self._read("watched", watch=WATCH, seconds=within_ms / 1000))[0][0])

    def notify(self, topic: str, sessions: Sequence[SessionRow] = ()) -> None:
        """See `Store.notify`."""
        self._wire.notify(topic)

    async def _send(self, channel: str, payloads: list[str]) -> None:
        await self._read("send", channel=channel, payloads=payloads)

    async def rehearse(self) -> None:
        """See `Store.rehearse`. The first use of a statement or function on a connection parses, plans and compiles it;
        a takeover uses a dozen, and in it every one of them is waited for.
        """
        nobody = f"rehearsal-{secrets.token_hex(8)}"

        async def work(connection: Connection) -> None:
            floor = self._clock.floor()
            async with atomically(connection):
                await self._execute(connection, "close_session", floor=floor, session_id=nobody)
                given: dict[str, Any] = {"floor": floor, "skip_locked": True}
                for name in _TAKEOVER:
                    named = {param: given.get(param, []) for param in self._statements[name].params}
                    await self._execute(connection, name, **named)
                await self._execute(connection, "peek_routes", **ready([nobody], 1))

        # Two connections: a death may be noticed while a sweep has the other one.
        await asyncio.gather(self._change(work), self._change(work))
        taken = Transition(nobody, GUARD_QUEUED)
        taken.state, taken.new_execution_seq, taken.new_token_hash = RUNNING, 1, nobody
        taken.lease = LeaseRow(nobody, 1, nobody, nobody, 0, 0)
        owned = Transition(nobody, GUARD_OWNER, 1, nobody)
        for change in (taken, owned):
            change.events = [Event(1, RUN_RESUMED)]
        await asyncio.gather(self.submit(taken), self.submit(owned))

    def heart(self) -> PostgresHeart:
        """See `Store.heart`."""
        return PostgresHeart(self._address, self._statements, self._clock)

    async def close(self) -> None:
        """Commit what was submitted, answer it, give every connection back. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        await self._wire.close()
        await asyncio.gather(self._owners.close(), self._starts.close(), self._activations.close())
        await self._users.close()
        await self._readers.close()


async def open_postgres(
    url: str,
    *,
    clock: Callable[[], int] | None = None,
    read_only: bool = False,
) -> PostgresStore:
    """Open a PostgreSQL store, creating or migrating its schema unless `read_only`.

    Args:
        url: `postgresql://user:password@host:port/name`, with the driver's parameters; `?prepare=false`
            behind a pooler that changes servers between transactions.
        clock: milliseconds since 1970 in place of the database's clock, for tests.
        read_only: refuse every write.

    Raises:
        InvalidSettings: the address is not one.
        StoreUnreachable: nothing answers there.
        StoreTooNew: a newer release of Ironflow has migrated it.
        StoreError: the server is too old.
    """
    address = Address(url)
    opened = await look_in(address, read_only)
    known_time = Clock(clock)
    known_time.saw(opened.at)
    store = PostgresStore(address, opened.channel, known_time, read_only)
    await store.open()
    return store
