"""The renewal path on PostgreSQL: a connection and a tiny event loop of its own, in the thread that renews.

A worker whose loop is blocked by a long computation, or whose other connections are busy with a large
batch, must still keep its leases; so nothing is shared with them. One statement per beat. It skips lease
rows that somebody has locked instead of waiting (waiting for rows in the order of the heap, while sweeps
lock them in order of id, is how deadlocks are made), and it asks once more before it calls a skipped lease
stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ironflow.store.dialect import Statement
from ironflow.store.heart import LEASE_STALE, LEASE_UNKNOWN, REFRESHED, Beat, Held, Verdict
from ironflow.store.postgres_link import Address, Clock, Connection, Link, lost, outdated, translated

#: How long the session and its leases hold from now, in milliseconds.
Ttls = tuple[int, int]


class PostgresHeart:
    """See `Heart`. Made, used and closed in one thread.

    Args:
        address: of the database.
        statements: the named statements for PostgreSQL.
        clock: the store's; only its floor is read, and that is safe from any thread.
    """

    def __init__(self, address: Address, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._address = address
        self._statements = statements
        self._clock = clock
        self._link = Link(address)
        # The driver needs a loop. This one runs only while a beat is under way, so the thread stays a plain
        # one.
        self._loop = asyncio.new_event_loop()

    def beat(self, session_id: str, session_ttl_ms: int, lease_ttl_ms: int, credits: int, held: Sequence[Held]) -> Beat:
        """See `Heart.beat`. A lease is `unknown` where somebody held its row both times it was asked for."""
        return self._loop.run_until_complete(self._beat(session_id, (session_ttl_ms, lease_ttl_ms), credits, held))

    async def _beat(self, session_id: str, ttls_ms: Ttls, credits: int, held: Sequence[Held]) -> Beat:
        for last_try in (False, True):
            try:
                connection = await self._link.get()
                return await self._renew(connection, session_id, ttls_ms, credits, held)
            except Exception as error:
                if lost(error) or outdated(error):
                    self._link.drop()
                    # A connection that died of old age shows only when it is used. A second failure is the
                    # server's.
                    if not last_try:
                        continue
                raise translated(error, self._address.name) from error
        raise AssertionError("the second try returns or raises")

    async def _renew(
        self, connection: Connection, session_id: str, ttls_ms: Ttls, credits: int, held: Sequence[Held]
    ) -> Beat:
        verdicts = [Verdict(run_id, seq, LEASE_STALE) for run_id, seq, _, _ in held]
        asking = list(range(len(held)))
        draining: bool | None = False
        for _ in range(2):
            part = [held[n] for n in asking]
            draining, renewed = await self._push(connection, session_id, ttls_ms, credits, part)
            if draining is None:
                # Declared dead: its leases expired with it, and renewing one would revive it.
                return Beat(False, False, [Verdict(run_id, seq, LEASE_STALE) for run_id, seq, _, _ in held])
            for n in renewed:
                verdicts[asking[n]].verdict = REFRESHED
            if len(renewed) == len(asking):
                return Beat(True, bool(draining), verdicts)
            there = await self._still_held(connection, session_id, part)
            asking = [asking[n] for n in there - renewed]
            if not asking:
                return Beat(True, bool(draining), verdicts)
        for n in asking:
            verdicts[n].verdict = LEASE_UNKNOWN
        return Beat(True, bool(draining), verdicts)

    async def _push(
        self, connection: Connection, session_id: str, ttls_ms: Ttls, credits: int, held: Sequence[Held]
    ) -> tuple[bool | None, set[int]]:
        """Whether the session is wished to drain (None: it is gone), and which of the leases were renewed."""
        statement = self._statements["beat"]
        values: dict[str, Any] = {
            "floor": self._clock.floor(),
            "session_id": session_id,
            "session_ttl": ttls_ms[0],
            "lease_ttl": ttls_ms[1],
            "credits": credits,
            "ids": [one[0] for one in held],
            "seqs": [one[1] for one in held],
            "tokens": [one[2] for one in held],
            "executing": [bool(one[3]) for one in held],
        }
        found = await connection.fetchrow(statement.text, *statement.arguments(values))
        assert found is not None
        draining = bool(found["draining"]) if found["alive"] else None
        return draining, {n - 1 for n in found["renewed"]}

    async def _still_held(self, connection: Connection, session_id: str, held: Sequence[Held]) -> set[int]:
        statement = self._statements["still_held"]
        values = {
            "session_id": session_id,
            "ids": [one[0] for one in held],
            "seqs": [one[1] for one in held],
            "tokens": [one[2] for one in held],
        }
        return {n - 1 for (n,) in await connection.fetch(statement.text, *statement.arguments(values))}

    def close(self) -> None:
        """Give the connection back."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._link.close())
            self._loop.close()
