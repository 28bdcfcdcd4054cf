"""A transition: one change of one run, decided purely, applied by a store in one transaction.

It is a value: a guard (what must still be true), the journal events, and the rows that change with them. A store
checks the guard on the locked run row and writes everything or nothing. What it answers is one of the words below; a
refused transition has written nothing and harmed no neighbour in its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ironflow.model.capacity import LeaseRow, QueueRow
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.wait import WaitRow

# ---- guards
#: The writer holds the lease: execution_seq, token and an owned state; `facts` too where the segment leaves.
GUARD_OWNER = "owner"
#: The queue row is there as it was peeked, and the workflow is not paused.
GUARD_QUEUED = "queued"
#: The run is suspended as it was peeked: a waker beside a free slot resolves the wait and activates at once.
GUARD_SUSPENDED = "suspended"
#: The run does not exist yet.
GUARD_FRESH = "fresh"
#: Decided on the locked row: nothing is left to check.
GUARD_LOCKED = "locked"

# ---- answers
APPLIED = "applied"
#: Another owner, or none: the writer must drop the run and write nothing more.
STALE = "stale"
#: A fact arrived from outside since the segment last looked: read it and go on instead of leaving.
NEWS = "news"
#: The guard no longer holds: somebody else took the run, or it is held. Drop the instance.
LOST = "lost"
#: The run id, the idempotency key or the concurrency key is taken.
EXISTS = "exists"
#: The transaction of a transactional step broke at its commit, and nothing of it was written. Whose the run is has not
#: changed by it; but what its code was told since is not so.
UNDONE = "undone"


class Transition:
    """One change of one run. Mutable while it is built, never after it was submitted."""

    __slots__ = (
        "audit",
        "changes",
        "clear_waits",
        "dequeue",
        "enqueue",
        "ended",
        "events",
        "execution_seq",
        "facts",
        "guard",
        "lanes",
        "lease",
        "new_execution_seq",
        "new_token_hash",
        "progress",
        "release",
        "reservation",
        "row",
        "run_id",
        "state",
        "token_hash",
        "waits",
    )

    def __init__(self, run_id: str, guard: str, execution_seq: int = 0, token_hash: str | None = None) -> None:
        self.run_id = run_id
        self.guard = guard
        #: the fence as the writer knows it
        self.execution_seq = execution_seq
        self.token_hash = token_hash
        self.facts: int | None = None
        self.reservation: str | None = None
        #: journal
        self.events: list[Event] = []
        #: the new row (guard GUARD_FRESH only)
        self.row: RunRow | None = None
        #: the run row: state is None where it stays
        self.state: str | None = None
        self.new_execution_seq: int | None = None
        self.new_token_hash: str | None = None
        self.ended = False
        #: a new step completed after a recovery: the count of consecutive ones starts again
        self.progress = False
        #: rarely changed columns, by name
        self.changes: dict[str, Any] | None = None
        #: queue, lease, waits, lanes
        self.enqueue: QueueRow | None = None
        self.dequeue = False
        self.lease: LeaseRow | None = None
        self.release = False
        self.waits: Sequence[WaitRow] = ()
        self.clear_waits = False
        self.lanes: Sequence[tuple[str, int]] = ()
        self.audit: Sequence[Audit] = ()

    @property
    def is_plain_append(self) -> bool:
        """Whether its owner adds to the journal and nothing else moves: neither the run's row nor any other table.

        It is most of all writes, and each store has a way of its own that is fast because it writes only events. So the
        question has one answer, here beside the fields: what a new one brings must not be lost on that way.
        """
        return (
            self.guard == GUARD_OWNER
            and self.state is None
            and self.facts is None
            and self.new_execution_seq is None
            and self.new_token_hash is None
            and self.reservation is None
            and self.row is None
            and self.enqueue is None
            and self.lease is None
            and not (self.release or self.ended or self.progress or self.dequeue or self.clear_waits)
            and not (self.changes or self.waits or self.lanes or self.audit)
        )

    def __repr__(self) -> str:
        kinds = ", ".join(event.kind for event in self.events)
        return f"Transition({self.run_id}, {self.guard}, seq={self.execution_seq}, state={self.state}, [{kinds}])"


#: Everything that the audit log tells, by what each entry calls it: the thing and what was done to it, as the command
#: line calls them. Stable: alerts compare them.
ACTIONS: dict[str, str] = {
    "run.cancel": "somebody asked for the end of a run",
    "run.pause": "a run was held",
    "run.resume": "a held run was let go on",
    "run.reopen": "a failed or cancelled run was opened again",
    "run.delete": "an ended run was deleted with its journal",
    "run.expire": "ended runs were deleted because of their age, as `run_retention` says",
    "run.deadline": "a run that nobody executed was failed at its deadline",
    "capacity.lease.expired": "a worker was lost: its right to execute a run ended",
    "capacity.segment.recovered": "the run that a lost worker had was taken from it",
    "invariant.unowned_run": "a run had no place anywhere and was put back into the queue: a defect",
    "workflow.pause": "a workflow was held",
    "workflow.resume": "a held workflow was let go on",
    "key.create": "a key was made",
    "key.revoke": "a key was taken back",
}


@dataclass(slots=True)
class Audit:
    """One row of the audit log, written in the transaction of what it tells. `action` is one of `ACTIONS`."""

    action: str
    actor: str
    run_id: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    #: who may read it: the scope of the run, or of what else it tells about
    scope: Scope = DEFAULT

    @classmethod
    def of(cls, row: RunRow, action: str, actor: str, fields: dict[str, Any]) -> Audit:
        """An entry about a run."""
        return cls(action, actor, row.run_id, fields, row.scope)


@dataclass(slots=True)
class Locked:
    """A run as a decision sees it: every row locked, time read after the locks."""

    row: RunRow
    last_seq: int
    queue: QueueRow | None
    lease: LeaseRow | None
    waits: list[WaitRow]
    now: int


#: A pure function: the locked run in, its change (or None: leave it alone) out. It may raise a refusal.
Decide = Callable[[Locked], Transition | None]
#: What became of each run that was decided: the change that was applied, None where nothing was, or the refusal.
Decisions = dict[str, Transition | Exception | None]
