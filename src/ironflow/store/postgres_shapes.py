"""Transitions as the arguments of PostgreSQL statements: which ones fit the fast statements, and how they
are packed.

There are three kinds of fast write (an owner's, a start, an activation), each for one run (`postgres_lone`) and as
one statement for many. A transition that wants more than its kind offers (a large payload, columns by
name, lanes, audit, a journal number that must be looked up) does not fit and goes through a transaction.
All of this is hot: plain loops, no objects made per event.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from ironflow.model.run import RunRow
from ironflow.model.transition import (
    APPLIED,
    EXISTS,
    GUARD_FRESH,
    GUARD_OWNER,
    GUARD_QUEUED,
    GUARD_SUSPENDED,
    LOST,
    NEWS,
    STALE,
    Transition,
)
from ironflow.store.base import INLINE_PAYLOAD

#: What the statements answer, by number (`sql/postgres_functions.sql`); 7 sends an item to the general path.
ANSWERS = {0: APPLIED, 1: STALE, 2: NEWS, 3: LOST, 4: EXISTS}
ELSEWHERE = 7

ENDED, RELEASE, DEQUEUE, CLEAR_WAITS, PROGRESS = 1, 2, 4, 8, 16

#: The columns a start may fill; a row that differs from a new one in any other goes through the general path.
_FRESH = attrgetter(
    "run_id", "org", "environment", "workflow", "version", "state", "execution_seq", "lease_token_hash",
    "priority", "route", "root_run_id", "parent_run_id", "created_at", "started_at", "deadline_at",
    "scheduled_at", "max_recoveries", "input_hash", "idempotency_key", "concurrency_key", "labels", "limits",
    "python",
)  # fmt: skip
_REST = attrgetter(
    "facts", "epoch", "attempt", "retry_count", "lease_recoveries", "consecutive_recoveries",
    "charged_recoveries", "ended_at", "compensations", "compensating_for", "resume_state", "reason",
    "status_text", "warnings",
)  # fmt: skip
_REST_OF_NEW = _REST(RunRow("", "", "", "", "", "", 0))

_NO_LEASE = (None, 0, None)


def flags(transition: Transition) -> int:
    """The switches of a transition as one number."""
    return (
        (ENDED if transition.ended else 0)
        | (RELEASE if transition.release else 0)
        | (DEQUEUE if transition.dequeue else 0)
        | (CLEAR_WAITS if transition.clear_waits else 0)
        | (PROGRESS if transition.progress else 0)
    )


def segment_seq(transition: Transition) -> int:
    """The execution_seq that the transition's events carry: the new one where it brings one."""
    new = transition.new_execution_seq
    return transition.execution_seq if new is None else new


def fits(transition: Transition) -> bool:
    """Whether a fast statement of the transition's kind can carry it."""
    if transition.changes or transition.audit or transition.lanes:
        return False
    guard = transition.guard
    if guard == GUARD_OWNER:
        kind_fits = transition.lease is None and transition.new_token_hash is None
    elif guard == GUARD_FRESH:
        kind_fits = _start_fits(transition)
    else:
        kind_fits = guard in (GUARD_QUEUED, GUARD_SUSPENDED) and _activation_fits(transition)
    if not kind_fits:
        return False
    queue = transition.enqueue
    if queue is not None and (queue.blocked_lane or queue.reservation_token or queue.reserved_by):
        return False
    for wait in transition.waits:
        if wait.claimed_by or wait.pre_claim_status:
            return False
    return _events_fit(transition, segment_seq(transition))


def _start_fits(transition: Transition) -> bool:
    row = transition.row
    if row is None or transition.waits or transition.ended or transition.progress:
        return False
    if row.limits is not None or _REST(row) != _REST_OF_NEW:
        return False
    lease = transition.lease
    if lease is None:
        return True
    values = fresh(transition)
    return (lease.execution_seq, lease.token_hash) == values[6:8]


def _activation_fits(transition: Transition) -> bool:
    lease = transition.lease
    if lease is None or transition.enqueue is not None or transition.waits:
        return False
    if transition.ended or transition.release or transition.new_execution_seq is None:
        return False
    return (lease.execution_seq, lease.token_hash) == (
        transition.new_execution_seq,
        transition.new_token_hash,
    )


def _events_fit(transition: Transition, execution_seq: int) -> bool:
    """Numbered without a gap from a number that is known, of one execution_seq, every payload small."""
    expected = 0
    for event in transition.events:
        seq = event.seq
        if expected and seq != expected:
            return False
        if not seq:
            return False
        expected = seq + 1
        payload = event.payload
        if payload is not None and len(payload) > INLINE_PAYLOAD:
            return False
        if event.execution_seq and event.execution_seq != execution_seq:
            return False
    return True


# ---- what both the statements for one run and those for many take


def fresh(transition: Transition) -> tuple[Any, ...]:
    """The columns of a new run, with what the transition itself says laid over its row."""
    values: tuple[Any, ...] = _FRESH(transition.row)
    state, seq = transition.state, transition.new_execution_seq
    if state is None and seq is None:
        return values
    fence = values[6:8] if seq is None else (seq, transition.new_token_hash)
    return (*values[:5], values[5] if state is None else state, *fence, *values[8:])


def lease_of(transition: Transition) -> tuple[str | None, int, int | None]:
    """Session, time to live (a lease that is asked for holds it in place of its end), and what is
    executing.
    """
    lease = transition.lease
    return _NO_LEASE if lease is None else (lease.session_id, lease.expires_at, lease.executing)


# ---- many runs


def append_many(floor: int, transitions: list[Transition]) -> dict[str, Any]:
    """The parameters of `append_many`."""
    return {
        "floor": floor,
        "runs": [transition.run_id for transition in transitions],
        "seqs": [transition.execution_seq for transition in transitions],
        "tokens": [transition.token_hash for transition in transitions],
        **_many_events(transitions),
    }


def leave_many(floor: int, transitions: list[Transition]) -> dict[str, Any]:
    """The parameters of `leave_many`."""
    waits = [(n, wait) for n, transition in enumerate(transitions, 1) for wait in transition.waits]
    return {
        **append_many(floor, transitions),
        "facts": [transition.facts for transition in transitions],
        "states": [transition.state for transition in transitions],
        "next_seqs": [transition.new_execution_seq for transition in transitions],
        "flags": [flags(transition) for transition in transitions],
        "wait_items": [n for n, _ in waits],
        "wait_steps": [wait.step_id for _, wait in waits],
        "wait_kinds": [wait.kind for _, wait in waits],
        "wait_statuses": [wait.status for _, wait in waits],
        "wait_dues": [wait.due_at for _, wait in waits],
        **_many_queue(transitions),
    }


_CREATE_COLUMNS = (
    "runs", "orgs", "environments", "workflows", "versions", "states", "seqs", "tokens", "priorities",
    "routes", "roots", "parents", "created", "started", "deadlines", "scheduled", "max_recoveries",
    "input_hashes", "idempotency_keys", "concurrency_keys", "labels", "limits", "pythons",
)  # fmt: skip


def create_many(floor: int, transitions: list[Transition]) -> dict[str, Any]:
    """The parameters of `create_many`."""
    columns = zip(*[fresh(transition) for transition in transitions], strict=True)
    return {
        "floor": floor,
        **dict(zip(_CREATE_COLUMNS, map(list, columns), strict=True)),
        "fences": [segment_seq(transition) for transition in transitions],
        **_many_leases(transitions),
        **_many_events(transitions),
        **_many_queue(transitions),
    }


def activate_many(floor: int, transitions: list[Transition]) -> dict[str, Any]:
    """The parameters of `activate_many`."""
    return {
        "floor": floor,
        "runs": [transition.run_id for transition in transitions],
        "seqs": [transition.execution_seq for transition in transitions],
        "facts": [transition.facts for transition in transitions],
        "queued": [transition.guard == GUARD_QUEUED for transition in transitions],
        "reservations": [transition.reservation for transition in transitions],
        "states": [transition.state for transition in transitions],
        "next_seqs": [transition.new_execution_seq for transition in transitions],
        "tokens": [transition.new_token_hash for transition in transitions],
        "flags": [flags(transition) for transition in transitions],
        **_many_leases(transitions),
        **_many_events(transitions),
    }


def _many_events(transitions: list[Transition]) -> dict[str, list[Any]]:
    items: list[int] = []
    seqs: list[int] = []
    kinds: list[str] = []
    steps: list[str | None] = []
    payloads: list[str | None] = []
    for n, transition in enumerate(transitions, 1):
        for event in transition.events:
            items.append(n)
            seqs.append(event.seq)
            kinds.append(event.kind)
            steps.append(event.step_id)
            payloads.append(event.payload)
    return {
        "event_items": items,
        "event_seqs": seqs,
        "event_kinds": kinds,
        "event_steps": steps,
        "event_payloads": payloads,
    }


def _many_leases(transitions: list[Transition]) -> dict[str, list[Any]]:
    leases = [lease_of(transition) for transition in transitions]
    return {
        "sessions": [lease[0] for lease in leases],
        "ttls": [lease[1] for lease in leases],
        "executing": [lease[2] for lease in leases],
    }


def _many_queue(transitions: list[Transition]) -> dict[str, list[Any]]:
    rows = [(n, t.enqueue) for n, t in enumerate(transitions, 1) if t.enqueue is not None]
    return {
        "queue_items": [n for n, _ in rows],
        "queue_routes": [row.route for _, row in rows],
        "queue_priorities": [row.priority for _, row in rows],
        "queue_enqueued": [row.enqueued_at for _, row in rows],
        "queue_eligible": [row.eligible_at for _, row in rows],
        "queue_seqs": [row.execution_seq for _, row in rows],
        "queue_statuses": [row.status for _, row in rows],
    }
