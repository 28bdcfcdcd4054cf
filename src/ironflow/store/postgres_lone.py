"""One transition on PostgreSQL: the statement that writes it in one round trip, and its arguments.

What lone callers most often wait for (an owner that adds one or two events, a start that goes into the queue) is
spelled out in `sql/postgres_lone.sql`; the rest of each kind goes through its function, which takes whatever fits the
kind. All of this is hot: plain tuples in the order of the parameters, no objects made per event.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from ironflow.model.capacity import QueueRow
from ironflow.model.transition import GUARD_QUEUED, Transition
from ironflow.store.dialect import Statement
from ironflow.store.postgres_open import call
from ironflow.store.postgres_shapes import flags, fresh, lease_of, segment_seq

#: A statement's text, and what it is given.
Call = tuple[str, tuple[Any, ...]]

#: The parameters of the statements, in the order in which the methods below give them (a test holds it).
_OWNER = ("run", "execution_seq", "token", "floor", "seq")
_FIRST, _SECOND = ("kind_1", "step_1", "payload_1"), ("kind_2", "step_2", "payload_2")
SPELLED = {
    "append_1": _OWNER + _FIRST,
    "append_2": _OWNER + _FIRST + _SECOND,
    "create_queued": (
        "floor", "run", "org", "environment", "workflow", "version", "state", "execution_seq", "token", "run_priority",
        "run_route", "root", "parent", "created", "started", "deadline", "scheduled", "max_recoveries", "input_hash",
        "idempotency_key", "concurrency_key", "labels", "limits", "python", "seq", "kind", "step", "payload", "fence",
        "route", "status", "eligible", "priority", "enqueued", "queue_seq",
    ),
}  # fmt: skip

_QUEUE = attrgetter("route", "priority", "enqueued_at", "eligible_at", "execution_seq", "status")
_PLACE = attrgetter("route", "status", "eligible_at", "priority", "enqueued_at", "execution_seq")
_NO_QUEUE = (None, 0, 0, 0, 0, None)


class Lone:
    """The ways of one transition of each kind. Every method takes the clock's floor and what is to be written.

    Args:
        statements: the named statements of PostgreSQL.
    """

    __slots__ = ("_activate", "_append", "_append_1", "_append_2", "_create", "_create_queued", "_leave")

    def __init__(self, statements: Mapping[str, Statement]) -> None:
        self._append = call("append")
        self._leave = call("leave")
        self._create = call("create")
        self._activate = call("activate")
        self._append_1 = statements["append_1"].text
        self._append_2 = statements["append_2"].text
        self._create_queued = statements["create_queued"].text

    def append(self, floor: int, change: Transition) -> Call:
        """The owner adds to its journal and stays."""
        events = change.events
        if len(events) == 2:
            first, second = events
            return self._append_2, (
                change.run_id, change.execution_seq, change.token_hash, floor, first.seq,
                first.kind, first.step_id, first.payload, second.kind, second.step_id, second.payload,
            )  # fmt: skip
        if len(events) == 1:
            [first] = events
            return self._append_1, (
                change.run_id, change.execution_seq, change.token_hash, floor, first.seq,
                first.kind, first.step_id, first.payload,
            )  # fmt: skip
        return self._append, _appended(floor, change)

    def leave(self, floor: int, change: Transition) -> Call:
        """The owner leaves, or changes its run while it stays."""
        waits = change.waits
        return self._leave, (
            *_appended(floor, change),
            change.facts,
            change.state,
            change.new_execution_seq,
            flags(change),
            [wait.step_id for wait in waits],
            [wait.kind for wait in waits],
            [wait.status for wait in waits],
            [wait.due_at for wait in waits],
            *_queue(change.enqueue),
        )

    def create(self, floor: int, change: Transition) -> Call:
        """A new run, in the queue or in a slot of the caller's own. One that is there may be an error of this."""
        place = change.enqueue
        if place is not None and len(change.events) == 1 and _looks_new(change):
            [first] = change.events
            return self._create_queued, (
                floor, *fresh(change), first.seq, first.kind, first.step_id, first.payload, segment_seq(change),
                *_PLACE(place),
            )  # fmt: skip
        return self.create_unless_there(floor, change)

    def create_unless_there(self, floor: int, change: Transition) -> Call:
        """The same; one that is there is an answer of this."""
        return self._create, (
            floor, *fresh(change), segment_seq(change), *_events(change), *lease_of(change), *_queue(change.enqueue),
        )  # fmt: skip

    def activate(self, floor: int, change: Transition) -> Call:
        """A worker takes a run on."""
        return self._activate, (
            floor,
            change.run_id,
            change.execution_seq,
            change.facts,
            change.guard == GUARD_QUEUED,
            change.reservation,
            *_events(change),
            change.state,
            change.new_execution_seq,
            change.new_token_hash,
            flags(change),
            *lease_of(change),
        )


def _looks_new(change: Transition) -> bool:
    """Whether a start waits in the queue and is unlikely to meet another run: it brings no key, and no hash of its
    input, which is kept for what may be started twice. (An error is a line in the log of the server: not for what is
    expected.)
    """
    row = change.row
    return (
        row is not None and row.input_hash is None and row.idempotency_key is None and row.concurrency_key is None
        and change.lease is None and not segment_seq(change)
    )  # fmt: skip


def _appended(floor: int, change: Transition) -> tuple[Any, ...]:
    return (floor, change.run_id, change.execution_seq, change.token_hash, *_events(change))


def _events(change: Transition) -> tuple[int, list[str], list[str | None], list[str | None]]:
    events = change.events
    if not events:
        return 0, [], [], []
    return (
        events[0].seq,
        [event.kind for event in events],
        [event.step_id for event in events],
        [event.payload for event in events],
    )


def _queue(row: QueueRow | None) -> tuple[Any, ...]:
    return _NO_QUEUE if row is None else _QUEUE(row)
