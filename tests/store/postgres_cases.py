"""What the tests of the PostgreSQL store share: small transitions, and what a journal must look like."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ironflow.model.capacity import LeaseRow, QueueRow, SessionRow
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.transition import GUARD_FRESH, GUARD_LOCKED, GUARD_OWNER, GUARD_QUEUED, Locked, Transition

ROUTE = "wf"
TTL_MS = 20_000
_numbers = itertools.count(1)


def new_id(prefix: str = "run") -> str:
    """A run id that no other test of this process uses; later ones sort later."""
    return f"{prefix}-{next(_numbers):06d}"


def started(run_id: str, token: str = "t1", session: str = "s1", workflow: str = "wf", **columns: Any) -> Transition:
    """A run that starts in its caller's own slot, with a lease and three events."""
    change = Transition(run_id, GUARD_FRESH)
    change.row = RunRow(
        run_id, workflow, "1", "running", ROUTE, run_id, 0, execution_seq=1, lease_token_hash=token, **columns
    )
    change.new_execution_seq, change.new_token_hash = 1, token
    change.lease = LeaseRow(run_id, 1, token, session, 0, TTL_MS)
    change.events = [
        Event(1, "run_created", None, '{"input":1}'),
        Event(2, "run_started"),
        Event(3, "step_started", "s3"),
    ]
    return change


def queued(run_id: str, priority: int = 0, **columns: Any) -> Transition:
    """A run that waits for a worker."""
    change = Transition(run_id, GUARD_FRESH)
    change.row = RunRow(run_id, "wf", "1", "pending", ROUTE, run_id, 0, priority=priority, **columns)
    change.events = [Event(1, "run_created", None, '{"input":1}')]
    change.enqueue = QueueRow(run_id, ROUTE, priority, 0, 0, 0)
    return change


def taken(run_id: str, seq: int, event_seq: int, token: str, session: str = "s1") -> Transition:
    """A worker takes a run out of the queue: execution_seq `seq` becomes `seq + 1`."""
    change = Transition(run_id, GUARD_QUEUED, seq)
    change.facts = 0
    change.state = "running"
    change.new_execution_seq, change.new_token_hash = seq + 1, token
    change.dequeue = True
    change.lease = LeaseRow(run_id, seq + 1, token, session, 0, TTL_MS)
    change.events = [Event(event_seq, "run_started" if seq == 0 else "run_resumed")]
    return change


def appended(run_id: str, event_seq: int, token: str = "t1", seq: int = 1, payload: str = '{"r":1}') -> Transition:
    """The owner's completion of one step and start of the next."""
    change = Transition(run_id, GUARD_OWNER, seq, token)
    change.events = [
        Event(event_seq, "step_completed", f"s{event_seq - 1}", payload),
        Event(event_seq + 1, "step_started", f"s{event_seq + 1}"),
    ]
    return change


def ended(run_id: str, event_seq: int, token: str = "t1", seq: int = 1) -> Transition:
    """The owner's last word."""
    change = Transition(run_id, GUARD_OWNER, seq, token)
    change.facts, change.state, change.ended, change.release = 0, "completed", True, True
    change.events = [
        Event(event_seq, "step_completed", f"s{event_seq - 1}"),
        Event(event_seq + 1, "run_succeeded"),
    ]
    return change


def recovered(locked: Locked) -> Transition:
    """The scanner's decision on a run whose owner is gone."""
    row = locked.row
    change = Transition(row.run_id, GUARD_LOCKED, row.execution_seq)
    change.state = "pending"
    change.new_execution_seq = row.execution_seq + 1
    change.release = True
    change.events = [Event(0, "run_recovered")]
    change.enqueue = QueueRow(row.run_id, row.route, row.priority, 0, 0, row.execution_seq + 1)
    return change


def session_row(session_id: str, now: int, ttl_ms: int = TTL_MS) -> SessionRow:
    """A live worker."""
    return SessionRow(session_id, "w", "host", "boot", 1, "p", ROUTE, 10, 10, now, now, now + ttl_ms)


def assert_dense(journal: Sequence[Event]) -> None:
    """Numbered from 1 without a gap, written by owners in their order, at times that never run backwards."""
    assert [event.seq for event in journal] == list(range(1, len(journal) + 1))
    assert [event.execution_seq for event in journal] == sorted(event.execution_seq for event in journal)
    assert [event.at for event in journal] == sorted(event.at for event in journal)
