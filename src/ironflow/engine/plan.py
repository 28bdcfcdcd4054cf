"""What is to be done next for a run: the value that an `Execution` gives and a segment carries out.

A plan is committed before anything of it happens: its events and row changes are one transition, and only
after that was answered `applied` do bodies start, bodies stop, and results leave the instance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from ironflow.engine.requests import StepCall
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.capacity import LeaseRow, QueueRow, RunHead
from ironflow.model.journal import Event
from ironflow.model.transition import GUARD_OWNER, GUARD_QUEUED, GUARD_SUSPENDED, Transition
from ironflow.model.wait import WaitRow

# ---- how a segment ends
ENDED = "ended"
SUSPENSION = "suspended"
RETRY = "retrying"
PAUSE = "paused"
RELEASE = "released"

# ---- what a step of this segment is doing
#: Asked for; its try begins when the plan is settled.
WANTED = "wanted"
#: Asked for with arguments that cannot be stored, or cut off for good: it fails without a body.
REFUSED = "refused"
EXECUTING = "executing"
BACKOFF = "backoff"
STOPPING = "stopping"
CLOSED = "closed"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class StepRun:
    """One step of a run, from its request to its end, as the segment sees it."""

    __slots__ = (
        "args_text",
        "body",
        "call",
        "copies",
        "cut",
        "due",
        "id",
        "input_hash",
        "reconciling",
        "spec",
        "state",
        "tries",
        "try_no",
    )

    def __init__(self, call: StepCall) -> None:
        self.call = call
        self.id = call.id
        self.spec = call.step
        self.args_text: str | None = None
        self.input_hash: str | None = None
        self.copies: Arguments | None = None
        self.state = WANTED
        #: 1 + the tries that ended over the run's life; in the idempotency key
        self.try_no = 1
        #: tries that ended in this attempt; what the retry policy counts
        self.tries = 0
        self.due = 0
        #: an earlier owner started it and was lost; nothing was started since
        self.cut = False
        #: the body asks the author's `reconcile` what became of an interrupted try
        self.reconciling = False
        #: the executor's own handle on the running body
        self.body: Any = None

    def keep_arguments(self, limit: int) -> None:
        """Take the arguments in as the body will get them, before the workflow can change its own.

        Raises:
            IronflowError: they do not fit the signature, or cannot be stored.
        """
        call = self.call
        text, args, kwargs = self.spec.arguments.snapshot(call.args, call.kwargs, path=f"{call.id} args", limit=limit)
        self.args_text, self.copies = text, (args, kwargs)
        # BLAKE2 takes a third of the time of SHA-256 on texts of this size; 64 bits tell inputs of one run apart.
        self.input_hash = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def close(self) -> None:
        """Nothing more is done for it here. Its body points back at it, and through its owner at the whole run: a pair
        that stayed together would leave every finished run to the garbage collector.
        """
        self.state = CLOSED
        self.body = None

    def arguments(self) -> Arguments:
        """The arguments for one body. Each call gives copies of their own: a second try must not see what
        the first one did to them.
        """
        copies, self.copies = self.copies, None
        return copies if copies is not None else self.spec.arguments.decode(self.args_text or "[]")


class Leave:
    """How the segment gives its slot back."""

    __slots__ = ("changes", "due", "kind", "result", "state", "unreported", "waits")

    def __init__(self, kind: str, state: str) -> None:
        self.kind = kind
        self.state = state
        #: an ended run's outcome, as the waiting caller gets it: the payload of its terminal event
        self.result: str | None = None
        #: failures in an ended run that its code looked at nowhere, as sentences; they stand in `result`, too
        self.unreported: Sequence[str] = ()
        self.waits: Sequence[WaitRow] = ()
        self.due: int | None = None
        self.changes: dict[str, Any] | None = None


class Plan:
    """Events to commit, bodies to start and to stop afterwards, and the way out if the segment ends."""

    __slots__ = ("changes", "events", "leave", "progress", "start", "state", "stop", "wake_at")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.start: list[StepRun] = []
        self.stop: list[StepRun] = []
        self.leave: Leave | None = None
        #: a new state while the segment goes on (`cancelling`)
        self.state: str | None = None
        self.changes: dict[str, Any] | None = None
        #: a step completed in a run that was recovered since its last one: the counts start again
        self.progress = False
        #: when a timer or a back-off of this segment wants attention, ms
        self.wake_at: int | None = None

    def give_back(self) -> None:
        """Release the run instead of suspending it: all else of the plan stands, and the run is queued at once."""
        suspended = self.events[-1]
        self.events[-1] = Event(suspended.seq, j.RUN_RELEASED, None, '{"reason":"news"}', suspended.execution_seq)
        self.leave = Leave(RELEASE, runs.PENDING)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.events and self.leave is None

    def change(self, columns: dict[str, Any]) -> None:
        """Change columns of the run's row with this commit."""
        self.changes = {**self.changes, **columns} if self.changes else columns


def owner_transition(plan: Plan, head: RunHead, token_hash: str) -> Transition:
    """The owner's write: what the plan journals, and the row changes if the segment leaves."""
    transition = Transition(head.run_id, GUARD_OWNER, head.execution_seq, token_hash)
    transition.events = plan.events
    transition.progress = plan.progress
    transition.changes = plan.changes
    transition.state = plan.state
    if plan.leave is not None:
        _leave(transition, plan.leave, head)
        transition.release = True
    return transition


def activation(plan: Plan, head: RunHead, new_seq: int, lease: LeaseRow) -> Transition:
    """The one door into execution: take a queued or a due run, with the first commit of its segment.

    A segment that already knows its way out (its first act is a sleep, or nothing was left to do) never
    holds a lease.
    """
    suspended = head.state in runs.SUSPENDED
    transition = Transition(head.run_id, GUARD_SUSPENDED if suspended else GUARD_QUEUED, head.execution_seq)
    transition.facts = head.facts
    transition.reservation = head.reservation
    transition.events = plan.events
    transition.progress = plan.progress
    transition.changes = plan.changes
    transition.new_execution_seq = new_seq
    transition.dequeue = not suspended
    transition.clear_waits = suspended
    if plan.leave is not None:
        _leave(transition, plan.leave, head)
    else:
        transition.state = plan.state or (runs.CANCELLING if head.state == runs.CANCELLING else runs.RUNNING)
        transition.new_token_hash = lease.token_hash
        transition.lease = lease
    return transition


def _leave(transition: Transition, leave: Leave, head: RunHead) -> None:
    transition.state = leave.state
    transition.ended = leave.kind == ENDED
    if leave.changes:
        transition.changes = {**(transition.changes or {}), **leave.changes}
    if leave.kind == SUSPENSION:
        transition.facts = head.facts
        transition.waits = leave.waits
    elif leave.kind in (RETRY, RELEASE):
        transition.dequeue = False
        transition.enqueue = QueueRow(
            head.run_id,
            head.route,
            head.priority,
            0,
            leave.due or 0,
            transition.new_execution_seq or head.execution_seq,
        )
