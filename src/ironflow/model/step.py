"""Step states and the moves between them, as they fold from the journal.

A step has no row of its own: its state is what its events say. This table holds what those events may do, so that a
journal which claims the impossible is refused by `fold` and found by `ironflow doctor`.
"""

from __future__ import annotations

SCHEDULED = "scheduled"
RUNNING = "running"
WAITING = "waiting"
COMPLETED = "completed"
FAILED = "failed"
RETRYING = "retrying"
INTERRUPTED = "interrupted"
CANCELLED = "cancelled"
SKIPPED = "skipped"
TIMED_OUT = "timed_out"

TRANSITIONS: dict[str, frozenset[str]] = {
    # Failed without a try: its arguments cannot be stored.
    SCHEDULED: frozenset({RUNNING, WAITING, SKIPPED, CANCELLED, FAILED}),
    RUNNING: frozenset({COMPLETED, FAILED, RETRYING, INTERRUPTED, CANCELLED, TIMED_OUT}),
    WAITING: frozenset({COMPLETED, FAILED, CANCELLED, TIMED_OUT}),
    RETRYING: frozenset({RUNNING, CANCELLED, FAILED}),
    # A body that outlived the loss of its run (a pause) may still end here, in any way, without a new start.
    INTERRUPTED: frozenset({RUNNING, COMPLETED, FAILED, RETRYING, CANCELLED, TIMED_OUT}),
    # An ended step runs again only in a later attempt or after the run was reopened.
    FAILED: frozenset({RUNNING}),
    TIMED_OUT: frozenset({RUNNING}),
    # What was told to end in its body has been cut off, and the next attempt says so.
    CANCELLED: frozenset({RUNNING, INTERRUPTED}),
    # A restart executes every step again; within one attempt a completed step never does.
    COMPLETED: frozenset({RUNNING}),
    SKIPPED: frozenset({RUNNING}),
}
STATES = frozenset(TRANSITIONS)

TOOL, LLM, CONNECTOR = "tool", "llm", "connector"
#: What an author may call a step; the engine treats them alike.
GIVEN_KINDS = (TOOL, LLM, CONNECTOR)
#: A step that writes to the engine's own database in the transaction that completes it.
TRANSACTION = "transaction"
KINDS = (*GIVEN_KINDS, TRANSACTION)
