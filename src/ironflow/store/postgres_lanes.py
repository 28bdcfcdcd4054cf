"""Lanes on PostgreSQL: who may go, and who is next when a place is given up.

Use is counted from the rows that hold something, under the locked rows of the lanes. Counting without that
lock would over-admit: two transactions that both see one free place each take it, because neither sees the
other's row. Lane rows are locked by name, after the run and queue rows of the same transaction, so nobody
waits crosswise; whoever frees a place skips a blocked row that somebody else has in hand instead of waiting
for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ironflow.model.transition import GUARD_FRESH, Transition
from ironflow.store.guards import Lanes, admit, fitting
from ironflow.store.postgres_link import Connection
from ironflow.store.postgres_named import Named

#: How many waiting rows one pass looks at; more follow with the next release or the next tick of the scanner.
PAGE = 100


class LaneKeeper(Named):
    """The statements of lanes. Every method runs inside a transaction that the caller began."""

    __slots__ = ()

    async def wanted(self, connection: Connection, changes: Sequence[Transition]) -> dict[str, Lanes]:
        """The lanes (with limits, by name) of runs that are about to get a lease."""
        fresh = {change.run_id: sorted(change.lanes) for change in changes if change.guard == GUARD_FRESH}
        stored = [change.run_id for change in changes if change.guard != GUARD_FRESH]
        return {**fresh, **await self.of(connection, stored)}

    async def of(self, connection: Connection, run_ids: Collection[str]) -> dict[str, Lanes]:
        """The lanes of stored runs, every asked run with an entry."""
        found: dict[str, list[tuple[str, int]]] = {run_id: [] for run_id in run_ids}
        if found:
            for run_id, lane, limit in await self._fetch(connection, "lanes_of", ids=list(found)):
                found[run_id].append((lane, limit))
        return dict(found)

    async def lock(self, connection: Connection, lanes: Iterable[str]) -> None:
        """Queue up on these lanes until the transaction ends."""
        names = sorted(set(lanes))
        if names:
            await self._fetch(connection, "make_lanes", lanes=names)
            await self._fetch(connection, "lock_lanes", lanes=names)

    async def refuse(
        self, connection: Connection, wanted: Mapping[str, Lanes], now: int, most: int | None = None
    ) -> set[str]:
        """Of runs about to hold a place, those that a full lane keeps out; their queue rows are blocked.

        Earlier runs of `wanted` count for later ones; at most `most` of them go. The lanes were locked before.
        """
        held = await self._held(connection, {lane for lanes in wanted.values() for lane, _ in lanes}, now)
        refused = admit(wanted, held, most)
        if refused:
            await self._fetch(connection, "block", ids=list(refused), lanes=list(refused.values()))
        return set(refused)

    async def let_through(self, connection: Connection, lanes: Iterable[str], now: int) -> int:
        """Unblock as many runs as these lanes have free places, by priority and age. Returns how many.

        A run with a second lane that is full is blocked again by that one when it is claimed. The lanes
        were locked before.
        """
        names = sorted(set(lanes))
        held = await self._held(connection, names, now)
        free: list[str] = []
        for lane in names:
            waiting = await self._fetch(connection, "blocked_next", lane=lane, limit=PAGE)
            free += fitting(waiting, len(held[lane]))
        if free:
            await self._fetch(connection, "unblock", ids=free)
        return len(free)

    async def let_all_through(self, connection: Connection, now: int) -> int:
        """As :meth:`let_through` for every lane that holds somebody back: what the scanner checks each tick."""
        lanes = [lane for (lane,) in await self._fetch(connection, "blocked_lanes")]
        if not lanes:
            return 0
        await self.lock(connection, lanes)
        return await self.let_through(connection, lanes, now)

    async def _held(self, connection: Connection, lanes: Collection[str], now: int) -> dict[str, set[str]]:
        held: dict[str, set[str]] = {lane: set() for lane in lanes}
        if held:
            for lane, run_id in await self._fetch(connection, "lane_places", lanes=sorted(held), now=now):
                held[lane].add(run_id)
        return held
