"""Transitions as tests need them: short to write, and nothing hidden that a test is about."""

from __future__ import annotations

import inspect
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import asyncpg

from ironflow.model import journal as j
from ironflow.model.capacity import LeaseRow, QueueRow, RunHead, SessionRow
from ironflow.model.journal import Event
from ironflow.model.run import PENDING, RUNNING, RunRow
from ironflow.model.transition import (
    APPLIED,
    GUARD_FRESH,
    GUARD_OWNER,
    GUARD_QUEUED,
    GUARD_SUSPENDED,
    Locked,
    Transition,
)
from ironflow.model.wait import TIMER, WaitRow
from ironflow.store.base import Store
from ironflow.store.dialect import SHARED, load

TTL = 60_000
#: A lease given this long has expired at once.
EXPIRED = -1
HOUR = 3_600_000


async def answer(store: Store, change: Transition) -> str:
    """Submit one transition and wait for its answer."""
    found = store.submit(change)
    return await found if inspect.isawaitable(found) else found


async def answers(store: Store, *changes: Transition) -> list[str]:
    """Submit several at once, so that they share a batch where the store makes batches."""
    store.concurrent_writers = len(changes)
    try:
        found = [store.submit(change) for change in changes]
        return [await one if inspect.isawaitable(one) else one for one in found]
    finally:
        store.concurrent_writers = 0


def start(run_id: str, *, token: str = "token", ttl: int = TTL, session: str = "s1", **row: Any) -> Transition:
    """A run that is created and taken on by its creator, with its first three events."""
    change = Transition(run_id, GUARD_FRESH)
    change.row = _row(run_id, RUNNING, **{"execution_seq": 1, **row})
    change.state, change.new_execution_seq, change.new_token_hash = RUNNING, 1, token
    change.lease = LeaseRow(run_id, 1, token, session, 0, ttl)
    change.events = [
        Event(1, j.RUN_CREATED, None, '{"input":7}', 1),
        Event(2, j.RUN_STARTED, None, None, 1),
        Event(3, j.STEP_STARTED, "0:a", '{"try":1}', 1),
    ]
    return change


def create(run_id: str, *, route: str | None = None, eligible_at: int = 0, priority: int = 0, **row: Any) -> Transition:
    """A run that is created and waits in the queue."""
    change = Transition(run_id, GUARD_FRESH)
    change.row = _row(run_id, PENDING, route=route, priority=priority, **row)
    change.events = [Event(1, j.RUN_CREATED, None, '{"input":7}')]
    change.enqueue = QueueRow(run_id, change.row.route, priority, 0, eligible_at, 0)
    return change


def _row(run_id: str, state: str, **values: Any) -> RunRow:
    workflow = values.pop("workflow", "order")
    route = values.pop("route", None) or workflow
    root = values.pop("root_run_id", run_id)
    return RunRow(run_id, workflow, "1", state, route, root, values.pop("created_at", 1_000), **values)


def append(run_id: str, seq: int, *, count: int = 1, fence: int = 1, token: str = "token") -> Transition:
    """What the owner of a run writes while it executes."""
    change = Transition(run_id, GUARD_OWNER, fence, token)
    change.events = [
        Event(seq + i, j.STEP_COMPLETED if i % 2 == 0 else j.STEP_STARTED, "0:a", '{"result":1}') for i in range(count)
    ]
    return change


def leave(
    run_id: str,
    seq: int,
    state: str,
    *,
    facts: int | None = 0,
    fence: int = 1,
    token: str = "token",
    waits: Sequence[WaitRow] = (),
) -> Transition:
    """The owner leaves: suspended, or ended when the state is terminal."""
    change = Transition(run_id, GUARD_OWNER, fence, token)
    change.facts = facts
    change.state, change.release, change.waits = state, True, waits
    change.ended = state in ("completed", "failed", "cancelled", "warning")
    kind = j.RUN_SUCCEEDED if change.ended else j.RUN_SUSPENDED
    change.events = [Event(seq, kind, None, '{"output":1}' if change.ended else f'{{"state":"{state}"}}')]
    return change


def activate(head: RunHead, seq: int, *, token: str = "token2", session: str = "s1", ttl: int = TTL) -> Transition:
    """A worker takes a queued run that it has peeked or reserved."""
    return _take(GUARD_QUEUED, head, seq, token, session, ttl)


def wake(head: RunHead, seq: int, *, token: str = "token2", session: str = "s1", ttl: int = TTL) -> Transition:
    """A worker takes a suspended run whose wait is due."""
    change = _take(GUARD_SUSPENDED, head, seq, token, session, ttl)
    change.clear_waits = True
    return change


def _take(guard: str, head: RunHead, seq: int, token: str, session: str, ttl: int) -> Transition:
    change = Transition(head.run_id, guard, head.execution_seq)
    change.facts, change.reservation = head.facts, head.reservation
    change.state, change.new_execution_seq, change.new_token_hash = RUNNING, head.execution_seq + 1, token
    change.lease = LeaseRow(head.run_id, head.execution_seq + 1, token, session, 0, ttl)
    change.events = [Event(seq, j.RUN_STARTED)]
    return change


def timer(run_id: str, due_at: int, *, step_id: str = "0:t1", status: str = "sleeping") -> WaitRow:
    """A wait for a time."""
    return WaitRow(run_id, step_id, TIMER, status, due_at)


def recovered(locked: Locked) -> Transition | None:
    """What the scanner decides about a lost lease, in short."""
    if locked.lease is None:
        return None
    row = locked.row
    change = Transition(row.run_id, "locked", row.execution_seq)
    change.state, change.new_execution_seq = PENDING, row.execution_seq + 1
    change.release = True
    change.events = [Event(0, j.RUN_RECOVERED)]
    change.enqueue = QueueRow(row.run_id, row.route, row.priority, 0, locked.now, row.execution_seq + 1)
    change.changes = {"lease_recoveries": row.lease_recoveries + 1}
    return change


def changed(**columns: Any) -> Callable[[Locked], Transition]:
    """A decision that changes columns of the run row and nothing else."""

    def decide(locked: Locked) -> Transition:
        change = Transition(locked.row.run_id, "locked", locked.row.execution_seq)
        change.changes = {name: value(locked) if callable(value) else value for name, value in columns.items()}
        return change

    return decide


def due_at_once(locked: Locked) -> Transition:
    """A decision: whatever a run waits for was due in the year 1970."""
    change = Transition(locked.row.run_id, "locked", locked.row.execution_seq)
    change.clear_waits, change.waits = True, [replace(wait, due_at=1) for wait in locked.waits]
    return change


async def ended(store: Store, run_id: str, at: int, *, state: str = "completed", **row: Any) -> None:
    """A run that was created at 1 s past 1970 (unless `created_at` says when) and ended at this time, ms."""
    assert await answer(store, start(run_id, **row)) == APPLIED
    assert await answer(store, leave(run_id, 4, state)) == APPLIED
    await store.decide([run_id], changed(ended_at=at))


def session(store: Store, session_id: str = "s1", *, ttl: int = TTL, **values: Any) -> SessionRow:
    """A worker's session that began now."""
    now = store.now()
    fixed = {
        "worker_id": "w1", "host": "h1", "boot_id": "b1", "pid": 1, "process_id": "p1",
        "routes": "order", "slots": 8, "credits": 8, "started_at": now, "heartbeat_at": now,
        "expires_at": now + ttl,
    }  # fmt: skip
    return SessionRow(session_id, **{**fixed, **values})


async def peek_one(store: Store, route: str = "order") -> RunHead:
    """The next segment of a route; the test fails where there is none."""
    (head,) = await store.peek([route], 1)
    return head


async def plan_of(url: str, name: str, values: dict[str, Any]) -> str:
    """How a database would answer a named statement: with an index wherever one can serve."""
    if url.startswith("sqlite"):
        named = {key: json.dumps(value) if isinstance(value, list) else value for key, value in values.items()}
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as lite:
            found = lite.execute(f"explain query plan {load('sqlite', *SHARED)[name].text}", named)
            return "\n".join(row[3] for row in found)
    statement = load("postgres", *SHARED)[name]
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.fetch(load("postgres", "columns", "postgres_loops")["straight"].text)
            rows = await connection.fetch(f"explain {statement.text}", *statement.arguments(values))
    finally:
        await connection.close()
    return "\n".join(row[0] for row in rows)
