"""Waking a suspended run: claim, hand-off, and the way back for a claim whose node died.

The hand-off deletes the run's wait rows in the transaction that inserts the queue row, under the run's lock: two
wake-ups of one run make one segment, and the stale-claim sweep can never find a claim whose run is already queued.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from ironflow.model import run as runs
from ironflow.model import wait as waits
from ironflow.model.capacity import RESERVED, QueueRow
from ironflow.model.transition import GUARD_LOCKED, Locked, Transition
from ironflow.model.wait import WaitRow


def hand_off(locked: Locked, node: str | None = None) -> Transition | None:
    """Put a suspended run into the queue. `node` given: only if it still holds the claim of one of its waits."""
    row = locked.row
    if row.state == runs.PAUSED:
        # Paused between claim and hand-off: the wait goes back at once, or a resumed run would sleep on until the
        # sweep finds the claim.
        return _unclaimed(locked, lambda wait: wait.claimed_by == node)
    if row.state not in runs.SUSPENDED or locked.lease is not None or locked.queue is not None:
        return None
    if node is not None and not any(w.status == waits.WAKING and w.claimed_by == node for w in locked.waits):
        return None
    transition = Transition(row.run_id, GUARD_LOCKED, row.execution_seq)
    transition.state = runs.PENDING
    transition.clear_waits = True
    transition.enqueue = QueueRow.of(row, locked.now, row.execution_seq)
    return transition


def stale(locked: Locked, older_than: int, gone: Container[str | None] = ()) -> Transition | None:
    """Put claims back whose node died between claim and hand-off: each to the status it was claimed from.

    A run with a lease or a queue row belongs to the capacity scanner and is left alone. Should the node be alive after
    all, its hand-off finds that the claim is not its own any more, and does nothing.

    Args:
        locked: the run.
        older_than: claims from before this time (ms) count as abandoned, whoever made them.
        gone: so do all claims of these nodes.
    """
    if locked.lease is not None or locked.queue is not None:
        return None
    return _unclaimed(locked, lambda wait: (wait.claimed_at or 0) <= older_than or wait.claimed_by in gone)


def _unclaimed(locked: Locked, which: Callable[[WaitRow], bool]) -> Transition | None:
    """Put these claims back, each to the status it was claimed from."""
    back: list[WaitRow] = []
    touched = False
    for wait in locked.waits:
        if wait.status == waits.WAKING and which(wait):
            touched = True
            back.append(
                WaitRow(wait.run_id, wait.step_id, wait.kind, wait.pre_claim_status or waits.WAITING, wait.due_at)
            )
        else:
            back.append(wait)
    if not touched:
        return None
    transition = Transition(locked.row.run_id, GUARD_LOCKED, locked.row.execution_seq)
    transition.clear_waits = True
    transition.waits = back
    return transition


def keep(locked: Locked, token: str, ttl_ms: int) -> Transition | None:
    """Prolong a reservation: its worker is alive and still on the way (a process of its own takes time to start).

    Args:
        locked: the run.
        token: of the reservation.
        ttl_ms: how long it lasts from now on.

    Returns:
        None where the reservation is not this one any more: it expired and was given to somebody else.
    """
    queue = locked.queue
    if queue is None or queue.status != RESERVED or queue.reservation_token != token:
        return None
    transition = Transition(locked.row.run_id, GUARD_LOCKED, locked.row.execution_seq)
    transition.dequeue = True
    transition.enqueue = replace(queue, reserved_until=locked.now + ttl_ms)
    return transition
