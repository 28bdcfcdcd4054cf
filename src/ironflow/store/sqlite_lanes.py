"""Lanes on SQLite: who may go, and who is next when a place is given up.

A lane is a concurrency limit. Its use is counted from the rows that hold something (leases, live reservations) inside
the write transaction, which nobody else shares: two claims cannot both take the last place. Counting starts from the
leases, of which there are as many as segments execute, never from the backlog. Runs without lanes never come here.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ironflow.model.transition import GUARD_FRESH, Transition
from ironflow.store.dialect import SHARED, SQLITE, load
from ironflow.store.guards import Lanes, admit, fitting

_SQL = load(SQLITE, *SHARED, "sqlite_loops")

#: How many waiting rows one pass looks at; more follow with the next release or the next tick of the scanner.
_PAGE = 100


def _execute(connection: sqlite3.Connection, statement: str, /, **values: Any) -> sqlite3.Cursor:
    return connection.execute(_SQL[statement].text, values)


def lanes_of(connection: sqlite3.Connection, run_ids: Collection[str]) -> set[str]:
    """The lanes these runs have a place in."""
    return {lane for lanes in _of(connection, run_ids).values() for lane, _ in lanes}


def blocked_lanes(connection: sqlite3.Connection) -> list[str]:
    """Every lane that a queued run is held back by."""
    return [lane for (lane,) in _execute(connection, "blocked_lanes")]


def refuse(connection: sqlite3.Connection, changes: Sequence[Transition], now: int) -> set[str]:
    """Of runs about to get a lease, those that a full lane keeps out; their queue rows are blocked.

    Earlier ones of the batch count for later ones.
    """
    stored = _of(connection, [change.run_id for change in changes if change.guard != GUARD_FRESH])
    return _block(
        connection,
        {change.run_id: change.lanes if change.guard == GUARD_FRESH else stored[change.run_id] for change in changes},
        now,
    )


def refuse_stored(connection: sqlite3.Connection, run_ids: Sequence[str], now: int, most: int) -> set[str]:
    """As :func:`refuse`, for runs of which the first `most` that may go are about to be reserved."""
    return _block(connection, _of(connection, run_ids), now, most)


def let_through(connection: sqlite3.Connection, lanes: Iterable[str], now: int) -> int:
    """Unblock as many runs as these lanes have free places, by priority and age. Returns how many.

    A run with a second lane that is full is blocked again by that one when it is claimed.
    """
    names = sorted(set(lanes))
    held = _held(connection, names, now)
    free: list[str] = []
    for lane in names:
        free += fitting(_execute(connection, "blocked_next", lane=lane, limit=_PAGE).fetchall(), len(held[lane]))
    if free:
        _execute(connection, "unblock", ids=json.dumps(free))
    return len(free)


def _of(connection: sqlite3.Connection, run_ids: Collection[str]) -> dict[str, Lanes]:
    """The lanes of stored runs, every asked run with an entry, in the order of asking."""
    found: dict[str, list[tuple[str, int]]] = {run_id: [] for run_id in run_ids}
    if found:
        for run_id, lane, limit in _execute(connection, "lanes_of", ids=json.dumps(list(found))):
            found[run_id].append((lane, limit))
    return dict(found)


def _block(connection: sqlite3.Connection, wanted: dict[str, Lanes], now: int, most: int | None = None) -> set[str]:
    held = _held(connection, {lane for lanes in wanted.values() for lane, _ in lanes}, now)
    refused = admit(wanted, held, most)
    for run_id, lane in refused.items():
        _execute(connection, "block", run_id=run_id, lane=lane)
    return set(refused)


def _held(connection: sqlite3.Connection, lanes: Collection[str], now: int) -> dict[str, set[str]]:
    held: dict[str, set[str]] = {lane: set() for lane in lanes}
    if held:
        for lane, run_id in _execute(connection, "lane_places", lanes=json.dumps(sorted(held)), now=now):
            held[lane].add(run_id)
    return held
