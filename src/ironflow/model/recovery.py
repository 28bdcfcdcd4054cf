"""Recovery, decided purely: what becomes of a run whose owner is gone.

Recovery never executes. It fences the old owner off by raising `execution_seq`, closes the lease, and puts the run
back into the queue; all execution enters by the one door there. A run that loses its owners again and again without
finishing a step in between is ended, because the likeliest reason is the run itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ironflow.errors import ExecutionRecoveryExhausted, IronflowError, LeaseExpired, RunTimeout
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.capacity import RESERVED, QueueRow
from ironflow.model.claim import hand_off
from ironflow.model.journal import Event
from ironflow.model.transition import GUARD_LOCKED, Audit, Locked, Transition

# ---- evidence: why an owner counts as lost. It is journaled, because what may still happen outside depends on it:
# after a proven death nothing of the interrupted step is under way any more; after an expired lease, or where a worker
# was cut off and did not come back, it may be.
GONE = "the process is gone"
EXPIRED = "lease expired"
SUSPICION = "cut off for too long"
GONE_OPENING = "the process died while it opened the run"

#: A time (from, to; ms) in which nothing lies.
NEVER = (0, 0)

#: Two charged losses in a row make a run a suspect: it is dispatched alone, to a process of its own.
SUSPECT_AFTER = 2

#: What the audit log calls the two halves of a recovery (`transition.ACTIONS`). Without a lease there is no first one.
LEASE_ENDED, REQUEUED = "capacity.lease.expired", "capacity.segment.recovered"


@dataclass(slots=True, frozen=True)
class RecoveryPolicy:
    """How recovery treats a lost run.

    Args:
        ceiling: consecutive charged losses that are allowed; the next one fails the run.
        grace_ms: how long a requeued segment waits before it may be handed out.
    """

    ceiling: int = 10
    grace_ms: int = 0


def expired_lease(
    locked: Locked,
    policy: RecoveryPolicy,
    reason: str = EXPIRED,
    session: str | None = None,
    blind: tuple[int, int] = NEVER,
) -> Transition | None:
    """An expired lease: free the slot, raise the fence, queue the segment again; or end a run that was lost too often.

    The expiry is checked again here, on the locked row: a renewal that came first wins. A loss is charged where a body
    or the workflow's own code executed at the worker's last heartbeat; where that is unknown (it died before the first
    one) it is charged, too, or a run that kills its worker at once would never be found out.

    What ran out while nobody could renew says nothing about the run, and is not charged: a long step that lived through
    two outages of the database would be a suspect, and through eleven a failure. A run that kills its worker just then
    is excused once, and found out the next time; proof and suspicion of a death are charged at any time.

    Args:
        locked: the run.
        policy: ceiling and grace.
        reason: the evidence, for the journal.
        session: only a lease of this session; None takes any.
        blind: from when to when (ms) whoever decides could not see the database, and renewals had not come in again.
    """
    lease, row = locked.lease, locked.row
    if lease is None or lease.expires_at > locked.now or session not in (None, lease.session_id):
        return None
    if row.state not in runs.OWNED:
        # The run was paused or ended with its lease left behind: only the slot is to be freed.
        transition = Transition(row.run_id, GUARD_LOCKED, row.execution_seq)
        transition.release = True
        return transition
    excused = reason == EXPIRED and blind[0] < lease.expires_at <= blind[1]
    charged = not excused and (lease.executing is None or lease.executing > 0)
    transition = requeue(locked, policy, charged=charged, reason=reason, session=lease.session_id)
    transition.release = True
    lost = {"execution_seq": row.execution_seq, "session": lease.session_id, "reason": reason}
    transition.audit = [Audit.of(row, LEASE_ENDED, "scanner", lost), *transition.audit]
    return transition


def died_opening(locked: Locked, policy: RecoveryPolicy, session: str, execution_seq: int) -> Transition | None:
    """A process died while it replayed a run that it had not activated yet: no lease was lost, but the run is charged.

    Without this a workflow whose own code kills the interpreter would take one worker after the other with it, and no
    ceiling would ever count it, because it never gets as far as a lease.

    Args:
        locked: the run.
        policy: ceiling and grace.
        session: who died.
        execution_seq: the fence as that session saw it; a run that has moved since is left alone.
    """
    row, queue = locked.row, locked.queue
    if locked.lease is not None or row.execution_seq != execution_seq:
        return None
    if row.state not in (runs.SUSPENDED if queue is None else runs.QUEUED):
        return None
    # A reservation does not matter here: it may be the parent's of a child process, and whoever else has one finds the
    # raised fence when it activates, and looks again.
    transition = requeue(locked, policy, charged=True, reason=GONE_OPENING, session=session)
    transition.dequeue = queue is not None
    transition.clear_waits = queue is None
    return transition


def requeue(
    locked: Locked, policy: RecoveryPolicy, *, charged: bool, reason: str, session: str | None = None
) -> Transition:
    """Put a run back into the queue under the next fence. `charged` counts the loss against the run's ceiling.

    What the run still holds (a lease, a place in the queue, waits) is for the caller to take away.
    """
    row = locked.row
    consecutive = row.consecutive_recoveries + (1 if charged else 0)
    total = row.lease_recoveries + 1
    transition = Transition(row.run_id, GUARD_LOCKED, row.execution_seq)
    transition.new_execution_seq = row.execution_seq + 1
    changes = {
        "lease_recoveries": total,
        "consecutive_recoveries": consecutive,
        "charged_recoveries": row.charged_recoveries + (1 if charged else 0),
    }
    transition.changes = changes
    payload = {"reason": reason, "charged": charged, "session": session}
    transition.events = [Event(0, j.RUN_RECOVERED, None, json.dumps(payload))]
    transition.audit = [Audit.of(row, REQUEUED, "scanner", {"execution_seq": row.execution_seq + 1})]
    failure = _exhausted(row, consecutive, total, policy)
    if failure is not None:
        return _fail(transition, *failure)
    if row.state != runs.CANCELLING:
        transition.state = runs.PENDING
    transition.enqueue = QueueRow.of(row, locked.now + policy.grace_ms, row.execution_seq + 1)
    return transition


def _exhausted(
    row: runs.RunRow, consecutive: int, total: int, policy: RecoveryPolicy
) -> tuple[type[IronflowError], str] | None:
    """The error, and its message, with which a run ends that was lost too often; None while it may go on."""
    if row.max_recoveries is not None and total > row.max_recoveries:
        return LeaseExpired, LeaseExpired.summary
    if consecutive > policy.ceiling:
        return ExecutionRecoveryExhausted, f"{consecutive} owners were lost in a row without a new finished step"
    return None


def _fail(transition: Transition, error: type[IronflowError], message: str) -> Transition:
    """End the run with this error: it is written as the codec would, which no module of the model may call."""
    stored = {
        "type": f"{error.__module__}.{error.__qualname__}",
        "message": message,
        "code": error.code,
        "args": [message],
        # What the instance holds, in the form in which errors are stored: without it no reader could make it again.
        "state": [["message", message], ["hint", None], ["details", {}]],
    }
    transition.state = runs.FAILED
    transition.ended = True
    transition.changes = {**(transition.changes or {}), "reason": error.code}
    transition.events.append(Event(0, j.RUN_FAILED, None, json.dumps({"error": stored})))
    return transition


def expired_reservation(locked: Locked, session: str | None = None) -> Transition | None:
    """A reservation whose worker never started: the slot is free, the segment queued again, no attempt used.

    `session` given: only what was promised to that one.
    """
    queue, row = locked.queue, locked.row
    if queue is None or queue.status != RESERVED or (queue.reserved_until or 0) > locked.now:
        return None
    if session not in (None, queue.reserved_by):
        return None
    transition = Transition(row.run_id, GUARD_LOCKED, row.execution_seq)
    transition.dequeue = True
    transition.enqueue = QueueRow(
        row.run_id, queue.route, queue.priority, queue.enqueued_at, queue.eligible_at, queue.execution_seq
    )
    return transition


def unowned(locked: Locked, policy: RecoveryPolicy, older_than: int) -> Transition | None:
    """A run that says it is owned or queued and has neither lease nor queue row: an invariant was broken somewhere.

    It is put back like a lost one, uncharged, and the breach leaves an audit row.
    """
    row = locked.row
    if locked.lease is not None or locked.queue is not None or (row.started_at or row.created_at) > older_than:
        return None
    if row.state not in runs.OWNED | runs.QUEUED:
        return None
    transition = requeue(locked, policy, charged=False, reason="neither lease nor queue row")
    transition.audit = [
        *transition.audit,
        Audit.of(row, "invariant.unowned_run", "scanner", {"state": row.state}),
    ]
    return transition


def overdue(locked: Locked, older_than: int) -> Transition | None:
    """A run whose deadline passed while nobody owned it: no worker has its code, or its workflow is paused.

    The owner of a run ends it at its deadline by itself, and a suspended one is woken for that. This is the backstop
    for what no worker reaches. A run with compensations is not ended here, because only its code can undo what it did:
    it waits for a worker (and is put into the queue if it slept). A paused run waits for its person.

    Args:
        locked: the run.
        older_than: deadlines up to this time (ms) have been given enough time to end in the ordinary way.
    """
    row = locked.row
    if row.deadline_at is None or row.deadline_at > older_than or locked.lease is not None:
        return None
    if row.state not in runs.QUEUED | runs.SUSPENDED:
        return None
    if row.compensations:
        return hand_off(locked)
    transition = Transition(row.run_id, GUARD_LOCKED, row.execution_seq)
    transition.new_execution_seq = row.execution_seq + 1
    transition.dequeue = locked.queue is not None
    transition.clear_waits = True
    transition.audit = [Audit.of(row, "run.deadline", "scanner", {"state": row.state})]
    return _fail(transition, RunTimeout, f"run {row.run_id} did not end within its time")
