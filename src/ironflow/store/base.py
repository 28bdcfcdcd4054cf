"""The store: one async interface, two implementations, one conformance suite.

What it promises: a transition is applied whole or not at all; a refused one has written nothing; what was answered
`applied` survives the death of every process; time comes from the database and never runs backwards.

Two ways to write. `submit` takes a transition whose guard the writer knows (the owner of a run, a worker that takes
one, a start): these are gathered and committed in groups. `decide` locks run rows, hands each to a pure function and
applies what it returns: for everything that must look first (cancel, pause, recovery, a wake-up).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ironflow.model.capacity import Holdings, LeaseRow, QueueRow, RunHead, SessionRow
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.transition import Audit, Locked, Transition
from ironflow.model.wait import WaitRow

#: A pure function: the locked run in, its change (or None: leave it alone) out. It may raise a refusal.
Decide = Callable[[Locked], "Transition | None"]

#: Payloads longer than this (in characters) live in a table of their own.
INLINE_PAYLOAD = 8192


@dataclass(slots=True)
class RunFilter:
    """What `runs list` selects. Newest first; `before` is the (created_at, run_id) of the last row seen."""

    states: Sequence[str] = ()
    workflow: str | None = None
    reason: str | None = None
    label: tuple[str, str] | None = None
    before: tuple[int, str] | None = None
    limit: int = 50


@dataclass(slots=True)
class Verdict:
    """The answer to a heartbeat for one lease: refreshed, stale or unknown (asked again at the next one)."""

    run_id: str
    execution_seq: int
    verdict: str


REFRESHED = "refreshed"
LEASE_STALE = "stale"
LEASE_UNKNOWN = "unknown"


class Heart(Protocol):
    """The renewal path: synchronous, with a connection of its own, for the thread that renews."""

    def beat(
        self,
        session_id: str,
        session_ttl_ms: int,
        lease_ttl_ms: int,
        credits: int,
        held: Sequence[tuple[str, int, str, bool]],
    ) -> tuple[bool, list[Verdict]]:
        """Push the clocks of one session and of the leases it names (run_id, execution_seq, token_hash, executing).

        Returns whether the session still exists, and one verdict per lease.
        """
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


class OpenTransaction(Protocol):
    """A transaction in which a user's writes are done and the step's completion is still to be added.

    It holds locks: whoever has one commits or rolls back without waiting for anything else.
    """

    async def commit(self, transition: Transition) -> str:
        """Apply the transition in the same transaction and commit both, or neither.

        Returns `applied`, or a refusal: after `stale` the user's writes are gone too; after `news` the transaction is
        still open, for the owner to read what arrived and commit again.
        """
        ...

    async def rollback(self) -> None:
        """Undo the user's writes."""
        ...


class Store(Protocol):
    """See the module's docstring. Every method that reads gives rows of the model."""

    #: "sqlite" or "postgres"
    dialect: str
    #: how many segments this process executes; the committer's hint on whether waiting for company pays
    live_segments: int
    #: whether an open transaction (`begin`) keeps every other writer waiting; whoever has one then decides it before
    #: they wait for another write of theirs, which could never come
    exclusive_transactions: bool
    #: the address without its password
    name: str

    def now(self) -> int:
        """Milliseconds since 1970: the last database time seen plus the time since, never backwards."""
        ...

    def submit(self, transition: Transition) -> str | Awaitable[str]:
        """Apply a guarded transition in the next group commit.

        Returns the answer itself when it was committed on the spot (a lone writer gains nothing from waiting), else
        an awaitable of it: `applied`, `stale`, `news`, `lost` or `exists`.
        """
        ...

    async def decide(
        self,
        run_ids: Sequence[str],
        decide: Decide,
        *,
        skip_locked: bool = False,
        audit: Sequence[Audit] = (),
    ) -> dict[str, Transition | Exception | None]:
        """Lock these runs in order of id, decide each, apply what was decided, all in one transaction.

        Returns per run what was applied, None where nothing was to be done (or the run was locked elsewhere and
        `skip_locked` says to leave it), or the refusal that `decide` raised. An unexpected error falls back to one
        transaction per run, so that one bad run never stops a batch.
        """
        ...

    async def begin(self, body: Callable[[Any], Any], *, deadline_ms: int) -> tuple[Any, OpenTransaction]:
        """Call `body(connection)` in a transaction of the engine's own database and leave the transaction open.

        SQLite: `body` is a plain function, called in a thread with a `sqlite3.Connection` on which it cannot commit,
        attach or set pragmas; every other writer waits meanwhile, so it is cut off after `deadline_ms`. PostgreSQL:
        `body` is a coroutine function; it gets an `asyncpg.Connection` of its own, locks nothing of the engine's, and
        may take longer; it is called again if its connection breaks. What it raises is raised here, with its writes
        undone. An owner that is cancelled, or that says neither commit nor rollback for some seconds, has rolled back.

        Raises:
            TypeError: `body` is of the other colour; it was not called.
            StepTimeout: the deadline passed (SQLite).
            StoreError: no transaction could be had, or `body` ended it by itself.
        """
        ...

    # ---- reading
    async def run(self, run_id: str) -> RunRow | None: ...
    async def runs(self, filter: RunFilter) -> list[RunRow]: ...
    async def holdings(self, run_id: str) -> Holdings | None:
        """A run with its queue row, its lease (an expired one, too), its waits and the holders of its lanes.

        All as of one moment: a run that moves from the queue to a worker meanwhile must not look as if it were nowhere.
        """
        ...

    async def find_key(self, column: str, value: str, workflow: str | None) -> RunRow | None:
        """The run that holds an `idempotency_key` (of a workflow) or the live one that holds a `concurrency_key`."""
        ...

    async def journal(self, run_id: str, after: int = 0, limit: int = 0) -> list[Event]: ...
    async def journals(self, run_ids: Sequence[str]) -> dict[str, list[Event]]: ...

    # ---- the queue
    async def peek(self, routes: Sequence[str], limit: int) -> list[RunHead]:
        """The next ready segments of these routes, in the order they are to be handed out. Reserves nothing."""
        ...

    async def reserve(self, routes: Sequence[str], limit: int, session_id: str, ttl_ms: int) -> list[RunHead]:
        """As `peek`, but promised to one session: no other worker is given them before the reservation ends."""
        ...

    async def unreserve(self, reservations: Sequence[tuple[str, str]]) -> None:
        """Give reservations (run_id, token) back at once."""
        ...

    async def promote(self) -> int:
        """Make delayed segments ready whose `eligible_at` has passed. Returns how many."""
        ...

    async def queue_routes(self) -> list[str]:
        """The routing classes that have a segment in the queue: a run may ask for tags beyond its workflow's own."""
        ...

    async def next_due(self) -> int | None:
        """The earliest time at which a delayed segment or a sleeping wait wants attention, or None."""
        ...

    # ---- waits
    async def due(self, limit: int, routes: Sequence[str]) -> list[RunHead]:
        """Suspended runs of these routes with a wait that is due and unclaimed, earliest first."""
        ...

    async def claim_waits(self, node: str, limit: int) -> list[WaitRow]:
        """Claim due waits for one node (`waking`), earliest first: exactly one node gets each."""
        ...

    async def stale_claims(self, older_than: int, limit: int) -> list[str]:
        """Runs with a claim older than this time (ms) and neither lease nor queue row."""
        ...

    # ---- sessions and sweeps
    async def open_session(self, session: SessionRow) -> None: ...
    async def close_session(self, session_id: str) -> list[str]:
        """Remove a session and its credits; its leases and reservations expire now. Returns the runs it held."""
        ...

    async def expire_session(self, session_id: str) -> list[str] | None:
        """As `close_session`, but only if its time has passed once the row is locked: a heartbeat that came first wins.

        Returns None where it did.
        """
        ...

    async def sessions(self) -> list[SessionRow]: ...
    async def expired_sessions(self, limit: int) -> list[SessionRow]: ...
    async def expired_leases(self, limit: int, after: str = "") -> list[str]: ...
    async def expired_reservations(self, limit: int) -> list[str]: ...
    async def unowned(self, older_than: int, limit: int) -> list[str]:
        """Runs whose state says that they are owned or queued, with neither lease nor queue row.

        Looks at a bounded number of live runs and goes on from there at the next call, round and round: it is asked on
        every tick, and a hundred thousand sleeping runs must not be read each time for an alarm that never rings.
        """
        ...

    async def overdue(self, older_than: int, limit: int) -> list[str]:
        """Runs that nobody executes and whose deadline is not after this time (ms), earliest deadline first."""
        ...

    async def leases(self) -> list[LeaseRow]: ...
    async def queue(self, limit: int = 1000) -> list[QueueRow]: ...
    async def waits(self, run_id: str) -> list[WaitRow]: ...
    async def lanes(self) -> list[dict[str, Any]]:
        """Every lane in use: its name, limit, how many runs execute in it and how many are held back."""
        ...

    async def counts(self) -> dict[str, int]:
        """How many runs are in each state. Reads an entry per run that there ever was: for people, not for loops."""
        ...

    async def audits(self, limit: int = 100, run_id: str | None = None) -> list[dict[str, Any]]: ...

    # ---- workflows
    async def pause_workflow(self, workflow: str, actor: str) -> bool: ...
    async def resume_workflow(self, workflow: str, actor: str) -> bool: ...
    async def paused_workflows(self) -> dict[str, int]: ...
    async def saw_workflows(self, rows: Iterable[tuple[str, str, str]]) -> None: ...
    async def workflows(self) -> list[dict[str, Any]]: ...

    # ---- waking others
    async def listen(self, wake: Callable[[str], None]) -> str | None:
        """Call `wake(topic)` in this loop when another process says so. Returns the address to store, if any."""
        ...

    def notify(self, topic: str, sessions: Sequence[SessionRow] = ()) -> None:
        """Tell other processes (best effort; polling finds what this loses)."""
        ...

    async def rehearse(self) -> None:
        """Go through a takeover once without taking anything, so that the first real one finds everything prepared."""
        ...

    def heart(self) -> Heart:
        """A renewal path for the thread that calls this."""
        ...

    async def check(self) -> list[str]:
        """What the database itself says of its health (integrity, version). Empty when nothing is wrong."""
        ...

    async def close(self) -> None: ...
