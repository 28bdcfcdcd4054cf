"""What a person may do to a run: cancel, pause, resume, reopen. Each is a change of ownership, decided on the lock.

What takes a run away from its worker (cancel, pause, release) raises `execution_seq`: whoever executes the run is
fenced off at its next write, and need not be asked first. What hands a run back to the queue (resume, reopen) leaves
the number to the next dispatch, which raises it in any case. Refusals raise and change nothing.
"""

from __future__ import annotations

import json

from ironflow.errors import InvalidTransition
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import wait as waits
from ironflow.model.capacity import QueueRow
from ironflow.model.journal import Event
from ironflow.model.transition import GUARD_LOCKED, Audit, Locked, Transition
from ironflow.model.wait import WaitRow


def _taken(locked: Locked, action: str, actor: str, **fields: object) -> Transition:
    """What every taking away has in common: fence, lease and place in the queue, and the entry in the audit log."""
    row = locked.row
    transition = Transition(row.run_id, GUARD_LOCKED, row.execution_seq)
    transition.new_execution_seq = row.execution_seq + 1
    transition.release = locked.lease is not None
    transition.dequeue = locked.queue is not None
    transition.audit = [Audit.of(row, action, actor, fields)]
    return transition


def cancel(locked: Locked, actor: str, *, force: bool = False) -> Transition | None:
    """End a live run. With compensations registered it goes through `cancelling`, unless `force` skips them.

    Cancelling a cancelled run changes nothing; a run that ended otherwise cannot be cancelled any more.

    Raises:
        InvalidTransition: the run ended as completed, warning or failed.
    """
    row = locked.row
    if row.state == runs.CANCELLED or (row.state == runs.CANCELLING and not force):
        return None
    if row.ended:
        told = f"run {row.run_id} has ended as {row.state}; there is nothing left to cancel"
        raise InvalidTransition(told, run_id=row.run_id)
    compensate = row.compensations > 0 and not force
    transition = _taken(locked, "run.cancel", actor, force=force, state=row.state)
    transition.clear_waits = True
    request = {"by": actor, "compensate": compensate, "force": force}
    transition.events = [Event(0, j.CANCEL_REQUESTED, None, json.dumps(request))]
    if compensate:
        transition.state = runs.CANCELLING
        transition.changes = {"compensating_for": runs.CANCELLED, "resume_state": None, "reason": None}
        transition.enqueue = QueueRow.of(row, locked.now, row.execution_seq + 1)
    else:
        transition.state = runs.CANCELLED
        transition.ended = True
        transition.changes = {"resume_state": None, "reason": None}
        transition.events.append(Event(0, j.RUN_CANCELLED, None, json.dumps({"by": actor})))
    return transition


def pause(locked: Locked, actor: str) -> Transition | None:
    """Hold a live run where it is. Pausing a paused run changes nothing.

    What is not due yet in the queue (an attempt after its back-off, a run that starts later) leaves its due time behind
    as a wait, or the way through a pause would be a short cut.

    Raises:
        InvalidTransition: the run has ended, is ending, or is a child (only whole trees are paused, by their root).
    """
    row = locked.row
    if row.state == runs.PAUSED:
        return None
    if row.parent_run_id is not None:
        raise InvalidTransition(f"run {row.run_id} is a child; pause its root {row.root_run_id}", run_id=row.run_id)
    runs.check(row.run_id, row.state, runs.PAUSED)
    transition = _taken(locked, "run.pause", actor, state=row.state)
    resume_state = runs.PENDING if row.state == runs.RUNNING else row.state
    transition.state = runs.PAUSED
    transition.changes = {"resume_state": resume_state, "reason": "PAUSED_BY_OPERATOR"}
    if locked.queue is not None and locked.queue.eligible_at > locked.now:
        place = WaitRow(row.run_id, waits.PLACE, waits.TIMER, waits.SLEEPING, locked.queue.eligible_at)
        transition.waits = [place]
    transition.events = [Event(0, j.RUN_PAUSED, None, json.dumps({"reason": "PAUSED_BY_OPERATOR", "by": actor}))]
    return transition


def resume(locked: Locked, actor: str) -> Transition:
    """Put a paused run back where it was; one that executed comes back as `pending` and replays.

    What was not due yet when it was paused waits in the queue for the rest of its time.

    Raises:
        InvalidTransition: the run is not paused, or is a child.
    """
    row = locked.row
    if row.state != runs.PAUSED:
        raise InvalidTransition(f"run {row.run_id} is {row.state}; only a paused run can be resumed", run_id=row.run_id)
    if row.parent_run_id is not None:
        raise InvalidTransition(f"run {row.run_id} is a child; resume its root {row.root_run_id}", run_id=row.run_id)
    target = runs.resumed_state(row.resume_state)
    if target in runs.SUSPENDED and not locked.waits:
        target = runs.PENDING
    runs.check(row.run_id, row.state, target)
    transition = Transition(row.run_id, GUARD_LOCKED, row.execution_seq)
    transition.state = target
    transition.changes = {"resume_state": None, "reason": None}
    transition.events = [Event(0, j.RUN_UNPAUSED, None, json.dumps({"by": actor, "state": target}))]
    transition.audit = [Audit.of(row, "run.resume", actor, {"state": target})]
    if target in runs.QUEUED:
        transition.clear_waits = True
        due = max((wait.due_at or 0 for wait in locked.waits if wait.step_id == waits.PLACE), default=0)
        transition.enqueue = QueueRow.of(row, max(locked.now, due), row.execution_seq)
    return transition


def reopen(locked: Locked, actor: str, failed_steps: list[str], *, restart: bool = False) -> Transition:
    """Retry a failed or cancelled run by hand: the next epoch.

    Finished steps are kept and the failed ones execute again; with `restart` all of them do. A run whose compensations
    have run can only be restarted: what its finished steps did is undone, so going on behind them would ship what was
    refunded.

    Raises:
        InvalidTransition: the run is live, ended well, or has undone its work and is not to be restarted.
    """
    row = locked.row
    if not row.ended:
        told = f"run {row.run_id} is {row.state}; only a failed or cancelled run can be retried"
        raise InvalidTransition(told, run_id=row.run_id)
    runs.check(row.run_id, row.state, runs.PENDING)
    if row.compensating_for is not None and not restart:
        raise InvalidTransition(
            f"run {row.run_id} has undone what its finished steps did, so it cannot go on behind them",
            hint=f"`ironflow runs retry --restart {row.run_id}` executes every step again; or start a new run",
        )
    transition = _taken(locked, "run.reopen", actor, state=row.state, restart=restart)
    transition.state = runs.PENDING
    transition.changes = {
        "epoch": row.epoch + 1,
        "attempt": row.attempt + 1,
        "retry_count": 0,
        "ended_at": None,
        "reason": None,
        "consecutive_recoveries": 0,
        "charged_recoveries": 0,
        "compensating_for": None,
        # As much time again as it had: the old deadline would end it before it began.
        "deadline_at": None if row.deadline_at is None else locked.now + row.deadline_at - row.created_at,
    }
    payload: dict[str, object] = {"by": actor, "mode": "restart" if restart else "resume"}
    if restart:
        transition.changes |= {"warnings": 0, "compensations": 0}
    else:
        payload["failed_steps"] = failed_steps
    transition.events = [Event(0, j.RUN_REOPENED, None, json.dumps(payload))]
    # As old as its new epoch: it stands behind those that came before somebody asked for it again.
    transition.enqueue = QueueRow(row.run_id, row.route, row.priority, locked.now, locked.now, row.execution_seq + 1)
    return transition


def release(locked: Locked, session: str, held: tuple[int, str] | None) -> Transition | None:
    """A worker gives a run back by itself (drain): queued at once, no recovery counted, the fence raised.

    Args:
        locked: the run.
        session: of the worker.
        held: the `execution_seq` and the hash of the token under which the worker had the run.

    Returns:
        None where there is nothing to give back: somebody has taken the run since, perhaps this very worker; or its
        lease ran out, and whether that is a loss the scanner decides.
    """
    row, lease = locked.row, locked.lease
    if (row.execution_seq, row.lease_token_hash) != held or (lease is not None and lease.expires_at <= locked.now):
        return None
    return give_back(locked, session)


def give_back(locked: Locked, session: str) -> Transition | None:
    """The same for what a process left behind that has ended in order, by its parent, who knows no token of it.

    That it has ended is seen and not concluded from a clock, so a lease that ran out meanwhile is no loss either.

    Args:
        locked: the run.
        session: of the process; what another one holds is left alone.
    """
    row, lease = locked.row, locked.lease
    if lease is None or lease.session_id != session or row.state not in runs.OWNED:
        return None
    transition = Transition(row.run_id, GUARD_LOCKED, row.execution_seq)
    transition.new_execution_seq = row.execution_seq + 1
    transition.release = True
    if row.state != runs.CANCELLING:
        transition.state = runs.PENDING
    transition.events = [Event(0, j.RUN_RELEASED, None, json.dumps({"session": session}))]
    transition.enqueue = QueueRow.of(row, locked.now, row.execution_seq + 1)
    return transition
