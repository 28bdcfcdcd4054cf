"""Recovery, decided purely: what becomes of a run whose owner is gone.

Recovery never executes. It fences the old owner off by raising `execution_seq`, closes the lease, and puts the run
back into the queue; all execution enters by the one door there. A run that loses its owners again and again without
finishing a step in between is ended, because the likeliest reason is the run itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.capacity import RESERVED, QueueRow
from ironflow.model.journal import Event
from ironflow.model.transition import LOCKED, Audit, Locked, Transition

EXHAUSTED = "EXECUTION_RECOVERY_EXHAUSTED"
LEASE_LOST = "WORKER_LEASE_EXPIRED"
#: Two charged losses in a row make a run a suspect: it is dispatched alone, to a process of its own.
SUSPECT_AFTER = 2


@dataclass(slots=True, frozen=True)
class RecoveryPolicy:
    """How recovery treats a lost run.

    Args:
        ceiling: consecutive charged losses that are allowed; the next one fails the run.
        grace_ms: how long a requeued segment waits before it may be handed out.
    """

    ceiling: int = 10
    grace_ms: int = 0


def expired_lease(locked: Locked, policy: RecoveryPolicy) -> Transition | None:
    """An expired lease: free the slot, raise the fence, queue the segment again; or end a run that was lost too often.

    The expiry is checked again here, on the locked row: a renewal that came first wins.
    """
    lease, row = locked.lease, locked.row
    if lease is None or lease.expires_at > locked.now:
        return None
    if row.state not in runs.OWNED:
        # The run was paused or ended with its lease left behind: only the slot is to be freed.
        transition = Transition(row.run_id, LOCKED, row.execution_seq)
        transition.release = True
        return transition
    charged = lease.executing is None or lease.executing > 0
    return requeue(locked, policy, charged=charged, reason="lease expired", session=lease.session_id)


def requeue(
    locked: Locked, policy: RecoveryPolicy, *, charged: bool, reason: str, session: str | None = None
) -> Transition:
    """Take a run away from its owner. `charged` counts the loss against the run's ceiling."""
    row = locked.row
    consecutive = row.consecutive_recoveries + (1 if charged else 0)
    total = row.lease_recoveries + 1
    transition = Transition(row.run_id, LOCKED, row.execution_seq)
    transition.new_execution_seq = row.execution_seq + 1
    transition.release = True
    changes = {
        "lease_recoveries": total,
        "consecutive_recoveries": consecutive,
        "charged_recoveries": row.charged_recoveries + (1 if charged else 0),
    }
    transition.changes = changes
    payload = {"reason": reason, "charged": charged, "session": session}
    transition.events = [Event(0, j.RUN_RECOVERED, None, json.dumps(payload))]
    expired = {"execution_seq": row.execution_seq, "session": session, "reason": reason}
    transition.audit = [
        Audit("capacity.lease.expired", "scanner", row.run_id, expired),
        Audit("capacity.segment.recovered", "scanner", row.run_id, {"execution_seq": row.execution_seq + 1}),
    ]
    failure = _exhausted(row, consecutive, total, policy)
    if failure is not None:
        return _fail(transition, failure)
    if row.state != runs.CANCELLING:
        transition.state = runs.PENDING
    transition.enqueue = QueueRow(
        row.run_id,
        row.route,
        row.priority,
        row.created_at,
        locked.now + policy.grace_ms,
        row.execution_seq + 1,
    )
    return transition


def _exhausted(
    row: runs.RunRow, consecutive: int, total: int, policy: RecoveryPolicy
) -> dict[str, str] | None:
    if row.max_recoveries is not None and total > row.max_recoveries:
        return {"code": LEASE_LOST, "message": "worker lease expired"}
    if consecutive > policy.ceiling:
        return {
            "code": EXHAUSTED,
            "message": f"{consecutive} owners were lost in a row without a new finished step",
        }
    return None


def _fail(transition: Transition, failure: dict[str, str]) -> Transition:
    error = {
        "type": "ironflow.errors." + _CLASS[failure["code"]],
        "message": failure["message"],
        "code": failure["code"],
        "args": [failure["message"]],
    }
    transition.state = runs.FAILED
    transition.ended = True
    transition.changes = {**(transition.changes or {}), "reason": failure["code"]}
    transition.events.append(Event(0, j.RUN_FAILED, None, json.dumps({"error": error})))
    return transition


_CLASS = {EXHAUSTED: "ExecutionRecoveryExhausted", LEASE_LOST: "LeaseExpired"}


def expired_reservation(locked: Locked) -> Transition | None:
    """A reservation whose worker never started: the slot is free, the segment queued again, no attempt used."""
    queue, row = locked.queue, locked.row
    if queue is None or queue.status != RESERVED or (queue.reserved_until or 0) > locked.now:
        return None
    transition = Transition(row.run_id, LOCKED, row.execution_seq)
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
    if (
        locked.lease is not None
        or locked.queue is not None
        or (row.started_at or row.created_at) > older_than
    ):
        return None
    if row.state not in runs.OWNED | runs.QUEUED:
        return None
    transition = requeue(locked, policy, charged=False, reason="neither lease nor queue row")
    transition.audit = [
        *transition.audit,
        Audit("invariant.unowned_run", "scanner", row.run_id, {"state": row.state}),
    ]
    return transition
