"""Waits: what a suspended run waits for, one row each, and the states a row goes through.

A waiting row is claimed (`waking`) by one engine node, which keeps the status it had (`pre_claim_status`), and is then
handed to the queue in the same transaction that deletes or resolves it. A node that dies in between leaves a `waking`
row that holds neither lease nor queue row: only the stale-claim sweep touches such a row, and puts it back.
"""

from __future__ import annotations

from dataclasses import dataclass

SLEEPING = "sleeping"
WAITING = "waiting"
AWAITING_APPROVAL = "awaiting_approval"
RETRY_BACKOFF = "retry_backoff"
WAKING = "waking"
RESOLVED = "resolved"

TRANSITIONS: dict[str, frozenset[str]] = {
    SLEEPING: frozenset({WAKING, RESOLVED}),
    WAITING: frozenset({WAKING, RESOLVED}),
    AWAITING_APPROVAL: frozenset({WAKING, RESOLVED}),
    RETRY_BACKOFF: frozenset({WAKING, RESOLVED}),
    # Back to the status it was claimed from; to which one, `pre_claim_status` says.
    WAKING: frozenset({SLEEPING, WAITING, AWAITING_APPROVAL, RETRY_BACKOFF, RESOLVED}),
    RESOLVED: frozenset(),
}
STATES = frozenset(TRANSITIONS)
#: What the waker claims once `due_at` has passed.
CLAIMABLE = (SLEEPING, WAITING, RETRY_BACKOFF)

TIMER = "timer"
BACKOFF = "retry_backoff"

#: The wait row of a run that was paused before its place in the queue was due: when that is. No step id has this form,
#: and no waker claims a wait of a paused run.
PLACE = "@place"


@dataclass(slots=True)
class WaitRow:
    """One open wait of a suspended run. `due_at` None waits for something that is not time."""

    run_id: str
    step_id: str
    kind: str
    status: str
    due_at: int | None = None
    pre_claim_status: str | None = None
    claimed_by: str | None = None
    claimed_at: int | None = None
