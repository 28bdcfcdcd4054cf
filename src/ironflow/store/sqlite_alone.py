"""What a lone owner writes on SQLite: the guard is part of the write, so nothing is looked up first.

A batch reads the fences of its runs and compares them in Python, which is one statement for hundreds of runs. For one
run it is one too many. What is answered here is what `guards.judge` would: where the guard does not hold nothing
is written, and whoever needs the reason asks the general path.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from ironflow.model.run import COMPLETED, OWNED, STATES, UNDOING, WARNING
from ironflow.model.transition import APPLIED, GUARD_OWNER, STALE, Transition
from ironflow.store import rows
from ironflow.store.base import INLINE_PAYLOAD
from ironflow.store.plan import RowPlan, wants_last_seq
from ironflow.store.sqlite_batch import text_of, write

_OWNED = (
    "run_id = ? and execution_seq = ? and lease_token_hash = ? "
    f"and state in ({', '.join(repr(state) for state in sorted(OWNED))})"
)
_APPEND = (
    f"insert into journal_events ({', '.join(rows.EVENT_COLUMNS)}) select * from (values @) "
    f"where exists (select 1 from runs where {_OWNED})"
)
#: The most events of an append that goes this way.
_APPENDS = 4
#: `returning limits is not null` would be 1 for every row: SQLite 3.40 takes a column for not null there.
_IF = f"{_OWNED} and facts = coalesce(?, facts) returning limits"


def _legal(state: str) -> str:
    """What must stand in the row besides, so that `run.may_become` allows the state."""
    if state in (COMPLETED, WARNING):
        return f"state = 'running' and warnings {'>' if state == WARNING else '='} 0"
    return "true" if state in UNDOING else "state = 'running'"


_LEAVE = {
    state: f"update runs set state = ?, lease_token_hash = null where {_legal(state)} and {_IF}" for state in STATES
}
_END = {
    state: f"update runs set state = ?, lease_token_hash = null, ended_at = ? where {_legal(state)} and {_IF}"
    for state in STATES
}


def appends_alone(change: Transition) -> bool:
    """Whether one statement can write it: a plain append of a few events, payloads inline and numbers given."""
    events = change.events
    if not 0 < len(events) <= _APPENDS or not change.is_plain_append:
        return False
    for event in events:
        if not event.seq or (event.payload is not None and len(event.payload) > INLINE_PAYLOAD):
            return False
    return True


def append_alone(connection: sqlite3.Connection, change: Transition, now: int) -> str:
    """Write such a transition in one statement, which is one transaction.

    Raises:
        sqlite3.Error: nothing was written.
    """
    run_id, fence = change.run_id, change.execution_seq
    values: list[Any] = []
    for event in change.events:
        values += (run_id, event.seq, event.kind, event.step_id, event.payload, event.execution_seq or fence, now)
    values += (run_id, fence, change.token_hash)
    written = connection.execute(text_of(_APPEND, len(change.events), len(rows.EVENT_COLUMNS)), values).rowcount
    return APPLIED if written == len(change.events) else STALE


def leaves_alone(change: Transition) -> bool:
    """Whether an owner gives its run up and changes nothing else of it."""
    moves = change.guard == GUARD_OWNER and change.release and change.state is not None
    more = change.changes or change.progress or change.new_execution_seq is not None or wants_last_seq(change)
    return moves and not more


def leave_alone(connection: sqlite3.Connection, change: Transition, now: int) -> str | None:
    """Write such a transition inside a transaction. None: the guard does not hold, and nothing was written.

    Raises:
        sqlite3.Error: it must be rolled back.
    """
    guard = (change.run_id, change.execution_seq, change.token_hash, change.facts)
    state = change.state or ""
    if change.ended:
        found = connection.execute(_END[state], (state, now, *guard)).fetchall()
    else:
        found = connection.execute(_LEAVE[state], (state, *guard)).fetchall()
    if not found:
        return None
    plan = RowPlan(now)
    plan.add(change, limited=found[0][0] is not None)
    plan.leaves, plan.ends = [], []  # which is the row that was just written
    write(connection, plan)
    return APPLIED
