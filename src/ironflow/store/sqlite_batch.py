"""A batch of transitions as SQLite statements, inside a transaction that somebody else began.

One statement per table writes the rows of the whole batch: hundreds of single executes beside a busy event
loop cost tens of milliseconds in hand-overs of the interpreter lock, one statement costs one. Chunks have
fixed sizes, so that their texts are few and stay in the connection's statement cache.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ironflow.errors import InvalidTransition, RunNotFound
from ironflow.model.capacity import LeaseRow, QueueRow
from ironflow.model.run import RunRow
from ironflow.model.transition import (
    APPLIED,
    EXISTS,
    GUARD_FRESH,
    GUARD_OWNER,
    GUARD_QUEUED,
    LOST,
    Audit,
    Decide,
    Decisions,
    Locked,
    Transition,
)
from ironflow.model.wait import WaitRow
from ironflow.store import rows, sqlite_lanes
from ironflow.store.guards import FENCE_COLUMNS, QUEUED_COLUMNS, Fence, Queued, judge, starts_held
from ironflow.store.plan import RowPlan, assignments, fresh_row, wants_last_seq

CHUNKS = (256, 64, 16, 4, 3, 2, 1)


def _insert(table: str, columns: Sequence[str], rest: str = "") -> str:
    return f"insert into {table} ({', '.join(columns)}) values @ {rest}".rstrip()


def _select(table: str, columns: Sequence[str]) -> str:
    return f"select {', '.join(columns)} from {table} where run_id in (@)"


_REPLACE_WAIT = ", ".join(f"{name} = excluded.{name}" for name in rows.WAIT_COLUMNS[2:])

_INSERT_RUNS = _insert("runs", rows.RUN_COLUMNS, "on conflict do nothing")
_INSERT_RUNS_NAMED = f"{_INSERT_RUNS} returning run_id"
#: By list of the plan: the template and the width of a row.
_INSERTS: dict[str, tuple[str, int]] = {
    "events": (_insert("journal_events", rows.EVENT_COLUMNS), len(rows.EVENT_COLUMNS)),
    "payloads": (_insert("journal_payloads", rows.PAYLOAD_COLUMNS), len(rows.PAYLOAD_COLUMNS)),
    "leases": (_insert("concurrency_leases", rows.LEASE_COLUMNS), len(rows.LEASE_COLUMNS)),
    # Two wake-ups make one segment: the second finds the row there.
    "enqueues": (
        _insert("dispatch_queue", rows.QUEUE_COLUMNS, "on conflict do nothing"),
        len(rows.QUEUE_COLUMNS),
    ),
    "waits": (
        _insert("waits", rows.WAIT_COLUMNS, f"on conflict (run_id, step_id) do update set {_REPLACE_WAIT}"),
        len(rows.WAIT_COLUMNS),
    ),
    "lanes": (
        _insert("run_lanes", rows.RUN_LANE_COLUMNS, "on conflict do update set lane_limit = excluded.lane_limit"),
        len(rows.RUN_LANE_COLUMNS),
    ),
}
_ACTIVATE = (
    "with v(run_id, state, seq, token) as (values @) update runs set state = v.state, execution_seq = v.seq, "
    "lease_token_hash = v.token, started_at = coalesce(started_at, ?) from v where runs.run_id = v.run_id"
)
_LEAVE = (
    "with v(run_id, state) as (values @) update runs set state = v.state, lease_token_hash = null "
    "from v where runs.run_id = v.run_id"
)
_END = (
    "with v(run_id, state) as (values @) update runs set state = v.state, lease_token_hash = null, "
    "ended_at = ? from v where runs.run_id = v.run_id"
)
_DELETES = {
    "releases": "delete from concurrency_leases where run_id in (@)",
    "dequeues": "delete from dispatch_queue where run_id in (@)",
    "clear_waits": "delete from waits where run_id in (@)",
}
_FENCES = f"select {FENCE_COLUMNS} from runs where run_id in (@)"
_QUEUED = f"select {QUEUED_COLUMNS} from dispatch_queue where run_id in (@)"
_PAUSED = "select org, environment, workflow from workflow_pauses"
_LAST_SEQ = "select max(seq) from journal_events where run_id = ?"
_AUDIT = _insert("audit_log", rows.AUDIT_COLUMNS).replace("@", f"({', '.join('?' * len(rows.AUDIT_COLUMNS))})")
# The scalar subquery finds max(seq) at the end of the run's part of the tree; grouping would read all of it.
_LOCK = (
    f"select {', '.join('r.' + name for name in rows.RUN_COLUMNS)}, "
    "(select max(e.seq) from journal_events e where e.run_id = r.run_id) from runs r where r.run_id in (@) "
    "order by r.run_id"
)
_QUEUE_OF = _select("dispatch_queue", rows.QUEUE_COLUMNS)
_LEASES_OF = _select("concurrency_leases", rows.LEASE_COLUMNS)
_WAITS_OF = _select("waits", rows.WAIT_COLUMNS)


@lru_cache(maxsize=512)
def text_of(template: str, count: int, width: int) -> str:
    """The template with `@` as `count` groups of `width` marks (width 0: plain marks, for `in (…)`)."""
    group = f"({', '.join('?' * width)})" if width else "?"
    return template.replace("@", ", ".join([group] * count))


def chunked(
    connection: sqlite3.Connection, template: str, values: Sequence[Any], width: int, tail: Sequence[Any] = ()
) -> list[Any]:
    """Execute a template over flat values in chunks of fixed sizes; returns whatever rows come back.

    Args:
        connection: inside a transaction.
        template: SQL with one `@` where the rows go.
        values: flat; `width` values make a row (0: each is one, inside `in (…)`).
        width: columns per row.
        tail: further parameters, after the rows.
    """
    step = width or 1
    left, at = len(values) // step, 0
    found: list[Any] = []
    for size in CHUNKS:
        while left >= size:
            part = values[at : at + size * step]
            cursor = connection.execute(text_of(template, size, width), [*part, *tail] if tail else part)
            if cursor.description is not None:
                found += cursor.fetchall()
            at += size * step
            left -= size
        if not left:
            break
    return found


def commit_batch(connection: sqlite3.Connection, batch: Sequence[Transition], now: int) -> list[str]:
    """Judge and write a batch of transitions of different runs; one answer each.

    Raises:
        sqlite3.Error: the whole batch must be rolled back.
    """
    plan = RowPlan(now)
    fresh = [change for change in batch if change.guard == GUARD_FRESH]
    answers: dict[str, str] = {}
    limited: set[str] = set()
    if len(fresh) < len(batch):
        others = [change for change in batch if change.guard != GUARD_FRESH] if fresh else batch
        _judge(connection, others, now, answers, limited)
    laned = [
        change
        for change in batch
        if change.lease is not None
        and (change.lanes if change.guard == GUARD_FRESH else change.run_id in limited)
        and answers.get(change.run_id, APPLIED) == APPLIED
    ]
    if laned:
        for run_id in sqlite_lanes.refuse(connection, laned, now):
            answers[run_id] = LOST
    if fresh:
        if any(change.row is not None and change.row.execution_seq > 0 for change in fresh):
            paused = set(connection.execute(_PAUSED).fetchall())
            answers.update({change.run_id: LOST for change in fresh if starts_held(change, paused)})
        _create(connection, fresh, now, answers)
    for change in batch:
        if answers[change.run_id] == APPLIED:
            last = _last_seq(connection, change) if wants_last_seq(change) else None
            plan.add(change, last, limited=change.run_id in limited)
    write(connection, plan)
    return [answers[change.run_id] for change in batch]


def _judge(
    connection: sqlite3.Connection,
    changes: Sequence[Transition],
    now: int,
    answers: dict[str, str],
    limited: set[str],
) -> None:
    """Compare the fences in Python: a refused transition is answered and harms no neighbour."""
    found = chunked(connection, _FENCES, [change.run_id for change in changes], 0)
    fences = {values[0]: Fence._make(values) for values in found}
    queued: dict[str, Queued] = {}
    paused: set[tuple[str, str, str]] = set()
    if any(change.guard != GUARD_OWNER for change in changes):
        claims = [change.run_id for change in changes if change.guard == GUARD_QUEUED]
        queued = {values[0]: Queued._make(values) for values in chunked(connection, _QUEUED, claims, 0)}
        paused = set(connection.execute(_PAUSED).fetchall())
    for change in changes:
        run_id = change.run_id
        fence = fences.get(run_id)
        answers[run_id] = judge(change, fence, queued.get(run_id), paused, now)
        if fence is not None and fence.limited:
            limited.add(run_id)


def _create(connection: sqlite3.Connection, fresh: Sequence[Transition], now: int, answers: dict[str, str]) -> None:
    """Insert new runs. What a unique key keeps out is not returned by the insert: it is answered `exists`."""
    going = [change for change in fresh if change.run_id not in answers]
    values: list[Any] = []
    for change in going:
        values += fresh_row(change, now)
    if len(going) == 1:
        written = connection.execute(text_of(_INSERT_RUNS, 1, len(rows.RUN_COLUMNS)), values).rowcount
        answers[going[0].run_id] = APPLIED if written else EXISTS
        return
    made = {row[0] for row in chunked(connection, _INSERT_RUNS_NAMED, values, len(rows.RUN_COLUMNS))}
    for change in going:
        answers[change.run_id] = APPLIED if change.run_id in made else EXISTS


def _last_seq(connection: sqlite3.Connection, change: Transition) -> int:
    return connection.execute(_LAST_SEQ, (change.run_id,)).fetchone()[0] or 0


def write(connection: sqlite3.Connection, plan: RowPlan) -> None:
    """Write the rows of a plan, one statement per table and shape."""
    if plan.activations:
        chunked(connection, _ACTIVATE, plan.activations, 4, (plan.now,))
    if plan.leaves:
        chunked(connection, _LEAVE, plan.leaves, 2)
    if plan.ends:
        chunked(connection, _END, plan.ends, 2, (plan.now,))
    for run_id, columns in plan.rare:
        text = f"update runs set {', '.join(assignments(columns))} where run_id = ?"
        connection.execute(text, [*columns.values(), run_id])
    for name, template in _DELETES.items():
        gone: list[str] = getattr(plan, name)
        if gone:
            chunked(connection, template, gone, 0)
    for name, (template, width) in _INSERTS.items():
        values: list[Any] = getattr(plan, name)
        if values:
            chunked(connection, template, values, width)
    if plan.audits:
        write_audits(connection, plan.audits, plan.now)
    if plan.freed:
        sqlite_lanes.let_through(connection, sqlite_lanes.lanes_of(connection, plan.freed), plan.now)


def write_audits(connection: sqlite3.Connection, audits: Iterable[Audit], now: int) -> None:
    """Write audit rows in the transaction of what they tell."""
    for entry in audits:
        connection.execute(_AUDIT, list(rows.audit_values(entry, now, secrets.randbits(74)).values()))


def decide_batch(
    connection: sqlite3.Connection, run_ids: Sequence[str], decide: Decide, audit: Sequence[Audit], now: int
) -> Decisions:
    """Decide every run on its locked rows, then write what was decided.

    All are decided before any is written, so a decision sees its own run as it was and no half of a
    neighbour's.

    Raises:
        sqlite3.Error: the whole must be rolled back.
    """
    results: Decisions = {}
    plan = RowPlan(now)
    for locked in _look(connection, sorted(set(run_ids)), now, results):
        run_id, row = locked.row.run_id, locked.row
        try:
            change = decide(locked)
        except Exception as refusal:
            results[run_id] = refusal
            continue
        results[run_id] = change
        if change is None:
            continue
        if change.lease is not None and row.limits is not None and sqlite_lanes.refuse(connection, [change], now):
            results[run_id] = InvalidTransition(f"a lane of run {run_id} is full", hint="Leave it in the queue.")
            continue
        # An error from here on is unexpected and ends the transaction: half a transition is never written.
        plan.add(change, locked.last_seq, limited=row.limits is not None, was=row.state)
    write(connection, plan)
    if audit:
        write_audits(connection, audit, now)
    return results


def _look(
    connection: sqlite3.Connection,
    run_ids: Sequence[str],
    now: int,
    results: Decisions,
) -> list[Locked]:
    """The runs with all their rows. The write transaction is the lock: nobody else writes while it lasts."""
    asked = [run_id for run_id in run_ids if not rows.unheard_of((run_id,))]
    found = chunked(connection, _LOCK, asked, 0)
    queue = {values[0]: QueueRow(*values) for values in chunked(connection, _QUEUE_OF, asked, 0)}
    leases = {values[0]: LeaseRow(*values) for values in chunked(connection, _LEASES_OF, asked, 0)}
    waits: dict[str, list[WaitRow]] = {}
    for values in chunked(connection, _WAITS_OF, asked, 0):
        waits.setdefault(values[0], []).append(WaitRow(*values))
    there = {values[0] for values in found}
    for run_id in run_ids:
        if run_id not in there:
            results[run_id] = RunNotFound(f"there is no run {run_id}")
    return [
        Locked(
            RunRow(*values[:-1]), values[-1] or 0, queue.get(values[0]), leases.get(values[0]),
            waits.get(values[0], []), now,
        )
        for values in found
    ]  # fmt: skip
