"""Lanes on SQLite: who may go, and who is next when a place is given up.

A lane is a concurrency limit. Its use is counted from the rows that hold something (leases, live
reservations) inside the write transaction, which nobody else shares: two claims cannot both take the last
place. Counting starts from the leases, of which there are as many as segments execute, never from the
backlog. Runs without lanes never come here.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence

from ironflow.model.transition import FRESH, Transition

_LANES_OF = (
    "select run_id, lane, lane_limit from run_lanes where run_id in (select value from json_each(?)) order by lane"
)
# `cross join` fixes the order: from what is held to its lanes.
_HELD = """
select l.lane, l.run_id from concurrency_leases c cross join run_lanes l
where l.run_id = c.run_id and l.lane in (select value from json_each(:lanes))
union
select l.lane, l.run_id from dispatch_queue q cross join run_lanes l
where q.status = 'reserved' and q.reserved_until > :now and l.run_id = q.run_id
  and l.lane in (select value from json_each(:lanes))
"""
_BLOCK = """
update dispatch_queue set status = 'blocked', blocked_lane = ?,
    reserved_by = null, reservation_token = null, reserved_until = null
where run_id = ?
"""
_NEXT = """
select q.run_id, l.lane_limit from dispatch_queue q cross join run_lanes l
where q.blocked_lane = ? and l.run_id = q.run_id and l.lane = q.blocked_lane
order by q.priority desc, q.enqueued_at, q.run_id limit ?
"""
_UNBLOCK = "update dispatch_queue set status = 'ready', blocked_lane = null where run_id = ?"
_BLOCKED_LANES = "select distinct blocked_lane from dispatch_queue where blocked_lane is not null order by 1"

#: How many waiting rows one pass looks at; more follow with the next release or the next tick of the scanner.
_PAGE = 100


def lanes_of(connection: sqlite3.Connection, run_ids: Collection[str]) -> set[str]:
    """The lanes these runs have a place in."""
    return {lane for _, lane, _ in connection.execute(_LANES_OF, (json.dumps(list(run_ids)),))}


def blocked_lanes(connection: sqlite3.Connection) -> list[str]:
    """Every lane that a queued run is held back by."""
    return [lane for (lane,) in connection.execute(_BLOCKED_LANES)]


def refuse(connection: sqlite3.Connection, changes: Sequence[Transition], now: int) -> list[str]:
    """Of runs about to get a lease, those that a full lane keeps out; their queue rows are blocked.

    Earlier ones of the batch count for later ones.
    """
    wanted: dict[str, list[tuple[str, int]]] = {change.run_id: [] for change in changes}
    stored = [change.run_id for change in changes if change.guard != FRESH]
    for run_id, lane, limit in connection.execute(_LANES_OF, (json.dumps(stored),)):
        wanted[run_id].append((lane, limit))
    for change in changes:
        if change.guard == FRESH:
            wanted[change.run_id] = list(change.lanes)
    refused = admit(connection, wanted, now)
    for run_id, lane in refused.items():
        connection.execute(_BLOCK, (lane, run_id))
    return list(refused)


def refuse_stored(connection: sqlite3.Connection, run_ids: Sequence[str], now: int) -> set[str]:
    """As :func:`refuse`, for runs that are about to be reserved."""
    wanted: dict[str, list[tuple[str, int]]] = {run_id: [] for run_id in run_ids}
    for run_id, lane, limit in connection.execute(_LANES_OF, (json.dumps(list(run_ids)),)):
        wanted[run_id].append((lane, limit))
    refused = admit(connection, wanted, now)
    for run_id, lane in refused.items():
        connection.execute(_BLOCK, (lane, run_id))
    return set(refused)


def admit(connection: sqlite3.Connection, wanted: dict[str, list[tuple[str, int]]], now: int) -> dict[str, str]:
    """The runs of `wanted` (run → lanes and limits, in order) that may not go, each with its full lane."""
    held = _held(connection, {lane for lanes in wanted.values() for lane, _ in lanes}, now)
    refused: dict[str, str] = {}
    for run_id, lanes in wanted.items():
        full = next((lane for lane, limit in lanes if len(held[lane] - {run_id}) >= limit), None)
        if full is not None:
            refused[run_id] = full
            continue
        for lane, _ in lanes:
            held[lane].add(run_id)
    return refused


def let_through(connection: sqlite3.Connection, lanes: Iterable[str], now: int) -> int:
    """Unblock as many runs as these lanes have free places, by priority and age. Returns how many.

    A run with a second lane that is full is blocked again by that one when it is claimed.
    """
    names = sorted(lanes)
    held = _held(connection, set(names), now)
    count = 0
    for lane in names:
        using = len(held[lane])
        for run_id, limit in connection.execute(_NEXT, (lane, _PAGE)).fetchall():
            if using >= limit:
                break
            connection.execute(_UNBLOCK, (run_id,))
            using += 1
            count += 1
    return count


def _held(connection: sqlite3.Connection, lanes: set[str], now: int) -> dict[str, set[str]]:
    held: dict[str, set[str]] = {lane: set() for lane in lanes}
    for lane, run_id in connection.execute(_HELD, {"lanes": json.dumps(sorted(lanes)), "now": now}):
        held[lane].add(run_id)
    return held
