"""What a segment holds on its way through the system: a place in the queue, a reservation, a lease; and who works.

    admitted ─► dispatched ─► executing
    reservation  assigned      lease
    on the queue row           its own row

Use of a lane or of a worker is counted from these rows. There is no counter that could drift away from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ironflow.model.run import RunRow
from ironflow.model.scope import Scope
from ironflow.model.wait import WaitRow

#: How many runs a lane may let in at once, at most: both databases hold this number, and no cluster executes more.
LARGEST_LIMIT = 1_000_000

READY = "ready"
#: Not to be handed out before `eligible_at`.
DELAYED = "delayed"
#: A lane of the run is full.
BLOCKED = "blocked"
#: Promised to a session until `reserved_until`.
RESERVED = "reserved"
STATUSES = (READY, DELAYED, BLOCKED, RESERVED)

#: A worker on the database, and one that works through a node's HTTP interface.
EMBEDDED, HTTP = "embedded", "http"
KINDS = (EMBEDDED, HTTP)


@dataclass(slots=True)
class QueueRow:
    """A segment that may be handed out. One per run, so that two wake-ups make one segment."""

    run_id: str
    route: str
    priority: int
    enqueued_at: int
    eligible_at: int
    execution_seq: int
    status: str = READY
    blocked_lane: str | None = None
    reserved_by: str | None = None
    reservation_token: str | None = None
    reserved_until: int | None = None

    @classmethod
    def of(cls, row: RunRow, eligible_at: int, execution_seq: int) -> QueueRow:
        """The place of a run in the queue, as old as the run: one that comes back does not stand behind the new ones.

        Args:
            row: the run.
            eligible_at: not to be handed out before this time, ms.
            execution_seq: the fence under which the segment waits.
        """
        return cls(row.run_id, row.route, row.priority, row.created_at, eligible_at, execution_seq)


@dataclass(slots=True)
class LeaseRow:
    """The right to execute a segment. `execution_seq` and the token are what every write is checked against."""

    run_id: str
    execution_seq: int
    token_hash: str
    session_id: str
    acquired_at: int
    expires_at: int
    executing: int | None = None


@dataclass(slots=True)
class SessionRow:
    """A live worker process (one incarnation of it) and the evidence by which its death can be proven."""

    session_id: str
    worker_id: str
    host: str
    boot_id: str
    pid: int
    process_id: str
    routes: str
    slots: int
    credits: int
    started_at: int
    heartbeat_at: int
    expires_at: int
    lock_path: str | None = None
    lock_device: int | None = None
    lock_inode: int | None = None
    wake_address: str | None = None
    suspect_since: int | None = None
    #: set by others: it takes nothing new, finishes what it has, and leaves
    draining: int = 0
    org: str = "default"
    environment: str = "default"
    kind: str = EMBEDDED
    #: `routing.Serves` as JSON; None for a session that takes its runs by another way than by route
    serves: str | None = None
    #: the process that starts this one again when it dies, and may prove its death
    supervisor: str | None = None
    #: the key that registered it over HTTP, and that alone acts for it
    key_id: str | None = None

    @property
    def scope(self) -> Scope:
        """Whose runs it takes."""
        return Scope(self.org, self.environment)


@dataclass(slots=True)
class RunHead:
    """What a worker needs to take a run on: the queue row and the fence as they were peeked."""

    run_id: str
    workflow: str
    version: str
    state: str
    route: str
    root_run_id: str
    created_at: int
    execution_seq: int
    facts: int
    attempt: int
    priority: int
    consecutive_recoveries: int
    charged_recoveries: int
    compensating_for: str | None
    deadline_at: int | None
    warnings: int = 0
    #: the lanes it counts in, as JSON; None for most runs. Its end may let another run of a lane through.
    limits: str | None = None
    reservation: str | None = None


@dataclass(slots=True)
class LaneHolder:
    """A run that counts in a lane: it executes in it, or a slot is promised to it."""

    lane: str
    lane_limit: int
    run_id: str
    executing: bool


@dataclass(slots=True)
class Holdings:
    """One run and every row by which it has, is promised, or waits for the right to execute, as of one moment."""

    row: RunRow
    queue: QueueRow | None
    lease: LeaseRow | None
    waits: list[WaitRow]
    #: who counts in the lanes of this run; itself, too, if it executes
    holders: list[LaneHolder]
