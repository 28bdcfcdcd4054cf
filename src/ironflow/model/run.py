"""Run states and the moves between them.

The table below is the whole state machine. A move that is not in it raises `InvalidTransition` and changes nothing; a
store never invents one. `paused` remembers where it came from (`resume_state`), so the way back is decided by
`resumed_state` and not by the table alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from ironflow.errors import InvalidTransition
from ironflow.model.scope import Scope

PENDING = "pending"
RUNNING = "running"
RETRYING = "retrying"
SLEEPING = "sleeping"
WAITING = "waiting"
AWAITING_APPROVAL = "awaiting_approval"
PAUSED = "paused"
CANCELLING = "cancelling"
COMPLETED = "completed"
WARNING = "warning"
FAILED = "failed"
CANCELLED = "cancelled"

#: Why a run is paused that came to a transactional step in a worker without the database.
NEEDS_DATABASE = "NEEDS_DATABASE"

TERMINAL = frozenset({COMPLETED, WARNING, FAILED, CANCELLED})
#: A run in one of these holds neither lease nor slot; a wait row says what wakes it.
SUSPENDED = frozenset({SLEEPING, WAITING, AWAITING_APPROVAL})
#: A run in one of these has a row in the dispatch queue.
QUEUED = frozenset({PENDING, RETRYING})
#: The states in which the holder of the lease may append to the journal.
OWNED = frozenset({RUNNING, CANCELLING})
#: What a run may be undone for: the state it ends in then.
COMPENSATED = (FAILED, CANCELLED)

TRANSITIONS: dict[str, frozenset[str]] = {
    PENDING: frozenset({RUNNING, PAUSED, CANCELLING, CANCELLED, FAILED}),
    RUNNING: frozenset(
        {
            PENDING,
            RETRYING,
            SLEEPING,
            WAITING,
            AWAITING_APPROVAL,
            PAUSED,
            CANCELLING,
            COMPLETED,
            WARNING,
            FAILED,
            CANCELLED,
        }
    ),
    RETRYING: frozenset({PENDING, RUNNING, PAUSED, CANCELLING, FAILED, CANCELLED}),
    SLEEPING: frozenset({PENDING, PAUSED, CANCELLING, FAILED, CANCELLED}),
    WAITING: frozenset({PENDING, PAUSED, CANCELLING, FAILED, CANCELLED}),
    AWAITING_APPROVAL: frozenset({PENDING, PAUSED, CANCELLING, FAILED, CANCELLED}),
    PAUSED: frozenset({PENDING, RETRYING, SLEEPING, WAITING, AWAITING_APPROVAL, CANCELLING, FAILED, CANCELLED}),
    CANCELLING: frozenset({CANCELLED, FAILED}),
    FAILED: frozenset({PENDING}),
    CANCELLED: frozenset({PENDING}),
    COMPLETED: frozenset(),
    WARNING: frozenset(),
}
STATES = frozenset(TRANSITIONS)
#: What its worker may make of a run that is being undone: it goes on with that, or the run ends as was asked.
UNDOING = TRANSITIONS[CANCELLING] | {CANCELLING}


def may_become(current: str, target: str | None, warnings: int) -> bool:
    """Whether a worker may bring a run to a state, as its owner or by taking it.

    Whoever takes a run makes it `running` first, whatever the same commit does next, and the table leads from there to
    every other state. So of the states in which there is something to take or to own, one alone must be looked at:
    a cancel that was accepted cannot be taken back. And how a run ended well says whether it was warned of.

    Args:
        current: the state in the locked row.
        target: the state that is asked for; None: the run keeps its own.
        warnings: how many the run has, those of the change itself among them.
    """
    if target is None or target in UNDOING:
        return True
    if current == CANCELLING:
        return False
    return (warnings > 0) == (target == WARNING) if target in (COMPLETED, WARNING) else True


def check(run_id: str, current: str, target: str) -> None:
    """Refuse a move that the table does not hold.

    Raises:
        InvalidTransition: `current` → `target` is not a move of the state machine.
    """
    if target not in TRANSITIONS[current]:
        raise InvalidTransition(f"run {run_id} is {current} and cannot become {target}", run_id=run_id)


def resumed_state(resume_state: str | None) -> str:
    """Where a paused run goes back to: what executed comes back as `pending` and replays."""
    if resume_state in (RETRYING, SLEEPING, WAITING, AWAITING_APPROVAL):
        return resume_state
    return PENDING


@dataclass(slots=True)
class RunRow:
    """The row of a run: what sweeps, lists and fences need. The journal holds everything else."""

    run_id: str
    workflow: str
    version: str
    state: str
    route: str
    root_run_id: str
    created_at: int
    org: str = "default"
    environment: str = "default"
    execution_seq: int = 0
    lease_token_hash: str | None = None
    facts: int = 0
    epoch: int = 1
    attempt: int = 1
    retry_count: int = 0
    lease_recoveries: int = 0
    consecutive_recoveries: int = 0
    charged_recoveries: int = 0
    priority: int = 0
    parent_run_id: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    deadline_at: int | None = None
    scheduled_at: int | None = None
    max_recoveries: int | None = None
    compensations: int = 0
    compensating_for: str | None = None
    resume_state: str | None = None
    reason: str | None = None
    status_text: str | None = None
    warnings: int = 0
    input_hash: str | None = None
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    labels: str | None = None
    limits: str | None = None
    python: str | None = None

    @property
    def scope(self) -> Scope:
        """Whose it is."""
        return Scope(self.org, self.environment)

    @property
    def ended(self) -> bool:
        """Whether the run reached a terminal state."""
        return self.state in TERMINAL
