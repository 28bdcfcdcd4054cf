"""What a batch of transitions means in rows: pure, so that both databases write the same.

A plan collects the rows of one transaction by table and by shape. Values that many rows share a statement
for are kept flat (one list of parameters per table), because that is what a multi-row statement takes and
because a tuple per row is what would cost most here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ironflow.model import capacity, transition
from ironflow.model.capacity import QueueRow
from ironflow.model.run import TERMINAL
from ironflow.model.transition import Audit, Transition
from ironflow.store.base import INLINE_PAYLOAD
from ironflow.store.rows import CHANGEABLE, RUN_COLUMNS

_STATE = RUN_COLUMNS.index("state")
_CREATED = RUN_COLUMNS.index("created_at")
_SEQ = RUN_COLUMNS.index("execution_seq")
_TOKEN = RUN_COLUMNS.index("lease_token_hash")
_STARTED = RUN_COLUMNS.index("started_at")
_ENDED = RUN_COLUMNS.index("ended_at")


class RowPlan:
    """The rows of one transaction. Lists are flat: the columns of a row stand beside each."""

    __slots__ = (
        "activations",
        "audits",
        "clear_waits",
        "dequeues",
        "ends",
        "enqueues",
        "events",
        "freed",
        "lanes",
        "leases",
        "leaves",
        "now",
        "payloads",
        "rare",
        "releases",
        "waits",
    )

    def __init__(self, now: int) -> None:
        self.now = now
        #: run_id, seq, kind, step_id, payload, execution_seq, at
        self.events: list[Any] = []
        #: run_id, seq, payload
        self.payloads: list[Any] = []
        #: run_id, state, execution_seq, lease_token_hash
        self.activations: list[Any] = []
        #: run_id, state: the segment ends and the run goes on (ended_at is indexed: it is not touched here)
        self.leaves: list[Any] = []
        #: run_id, state: the run ends
        self.ends: list[Any] = []
        #: (run_id, columns) for every change without a shape of its own
        self.rare: list[tuple[str, dict[str, Any]]] = []
        #: run_id, execution_seq, token_hash, session_id, acquired_at, expires_at, executing
        self.leases: list[Any] = []
        #: QUEUE_COLUMNS
        self.enqueues: list[Any] = []
        #: WAIT_COLUMNS
        self.waits: list[Any] = []
        #: run_id, lane, lane_limit
        self.lanes: list[Any] = []
        self.releases: list[str] = []
        self.dequeues: list[str] = []
        self.clear_waits: list[str] = []
        self.audits: list[Audit] = []
        #: runs with lanes that gave up a place in them
        self.freed: list[str] = []

    def add(self, change: Transition, last_seq: int | None = None, *, limited: bool = False, was: str = "") -> None:
        """Take in one transition whose guard held.

        Args:
            change: the transition.
            last_seq: the last number in its journal; needed where it asks for the next one (`seq` 0).
            limited: whether its run has lanes.
            was: the state before, where it is known and may be terminal (a reopened run has not ended).

        Raises:
            ValueError: the transition changes what none may; the plan is as it was.
        """
        # First what may be refused, so that a refused transition has left nothing in the plan.
        if change.guard != transition.GUARD_FRESH:
            self._add_run(change, was)
        self._add_events(change, last_seq)
        if change.release:
            self.releases.append(change.run_id)
        if change.dequeue or change.guard == transition.GUARD_QUEUED:
            self.dequeues.append(change.run_id)
        if limited and (change.release or (change.dequeue and change.lease is None)):
            self.freed.append(change.run_id)
        lease = change.lease
        if lease is not None:
            self.leases += (
                lease.run_id, lease.execution_seq, lease.token_hash, lease.session_id,
                self.now, self.now + lease.expires_at, lease.executing,
            )  # fmt: skip
        if change.enqueue is not None:
            self._add_queue(change.enqueue)
        if change.clear_waits:
            self.clear_waits.append(change.run_id)
        for row in change.waits:
            self.waits += (
                row.run_id, row.step_id, row.kind, row.status, row.due_at,
                row.pre_claim_status, row.claimed_by, row.claimed_at,
            )  # fmt: skip
        for lane, limit in change.lanes:
            self.lanes += (change.run_id, lane, limit)
        if change.audit:
            self.audits.extend(change.audit)

    def _add_events(self, change: Transition, last_seq: int | None) -> None:
        now, events, run_id = self.now, self.events, change.run_id
        fence = change.execution_seq if change.new_execution_seq is None else change.new_execution_seq
        following = last_seq
        for event in change.events:
            seq, payload = event.seq, event.payload
            if not seq:
                if following is None:
                    raise ValueError(f"{change!r} asks for the next seq, and nobody looked it up")
                seq = following + 1
            following = seq
            if payload is not None and len(payload) > INLINE_PAYLOAD:
                self.payloads += (run_id, seq, payload)
                payload = None
            events += (run_id, seq, event.kind, event.step_id, payload, event.execution_seq or fence, now)

    def _add_run(self, change: Transition, was: str) -> None:
        seq = change.new_execution_seq
        if not change.changes and not change.progress and was not in TERMINAL:
            if seq is None:
                if change.state is None and not change.release:
                    return  # an append: the run row stays as it is
                if change.state is not None and change.release:
                    shape = self.ends if change.ended else self.leaves
                    shape += (change.run_id, change.state)
                    return
            elif change.state is not None and change.lease is not None and not change.ended:
                self.activations += (change.run_id, change.state, seq, change.new_token_hash)
                return
        columns = self._columns(change, was)
        if columns:
            self.rare.append((change.run_id, columns))

    def _columns(self, change: Transition, was: str) -> dict[str, Any]:
        """Every column a transition moves, for the shape that has no statement of its own."""
        columns: dict[str, Any] = {}
        if change.state is not None:
            columns["state"] = change.state
            if was in TERMINAL and change.state not in TERMINAL:
                columns["ended_at"] = None
        if change.new_execution_seq is not None:
            columns["execution_seq"] = change.new_execution_seq
            # A new fence without a token means that nobody holds it yet; the old token must not fit it
            # either.
            columns["lease_token_hash"] = change.new_token_hash
        elif change.release:
            columns["lease_token_hash"] = None
        if change.lease is not None or change.guard in (transition.GUARD_QUEUED, transition.GUARD_SUSPENDED):
            columns["started_at"] = self.now  # stores keep the first one; its first act may have been to leave
        if change.ended:
            columns["ended_at"] = self.now
        if change.progress:
            columns["consecutive_recoveries"] = columns["charged_recoveries"] = 0
        if change.changes:
            _check_changes(change)
            columns.update(change.changes)
        return columns

    def _add_queue(self, row: QueueRow) -> None:
        status = row.status
        if status in (capacity.READY, capacity.DELAYED):
            status = capacity.READY if row.eligible_at <= self.now else capacity.DELAYED
        self.enqueues += (
            row.run_id, row.route, row.priority, row.enqueued_at or self.now, row.eligible_at or self.now,
            row.execution_seq, status, row.blocked_lane, row.reserved_by, row.reservation_token,
            row.reserved_until,
        )  # fmt: skip


def _check_changes(change: Transition) -> None:
    if change.changes and not change.changes.keys() <= CHANGEABLE:
        unknown = ", ".join(sorted(change.changes.keys() - CHANGEABLE))
        raise ValueError(f"{change!r} changes {unknown}, which no transition may")


def fresh_row(change: Transition, now: int) -> list[Any]:
    """The row of a new run, in the order of `RUN_COLUMNS`, with what the transition itself says laid over it.

    Raises:
        ValueError: the transition has no row, or changes what none may.
    """
    _check_changes(change)
    row = change.row
    if row is None:
        raise ValueError(f"{change!r} creates a run and carries no row")
    values = [getattr(row, name) for name in RUN_COLUMNS]
    if change.state is not None:
        values[_STATE] = change.state
    if not values[_CREATED]:
        values[_CREATED] = now
    if change.new_execution_seq is not None:
        values[_SEQ], values[_TOKEN] = change.new_execution_seq, change.new_token_hash
    if change.lease is not None:
        values[_STARTED] = now
    if change.ended:
        values[_ENDED] = now
    for name, value in (change.changes or {}).items():
        values[RUN_COLUMNS.index(name)] = value
    return values


def assignments(columns: Mapping[str, Any]) -> list[str]:
    """The names of columns as a `set` list; `started_at` keeps the first time it was given."""
    return [f"{name} = {'coalesce(started_at, ?)' if name == 'started_at' else '?'}" for name in columns]


def payload_size(change: Transition) -> int:
    """About how many bytes a transition brings, for the bound of a batch."""
    size = 0
    for event in change.events:
        if event.payload is not None:
            size += len(event.payload)
    return size


def wants_last_seq(change: Transition) -> bool:
    """Whether a transition leaves the number of its first event to the store; the others follow from it."""
    return bool(change.events) and not change.events[0].seq
