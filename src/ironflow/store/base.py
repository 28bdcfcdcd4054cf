"""The store: one async interface, two implementations, one conformance suite.

What it promises: a transition is applied whole or not at all; a refused one has written nothing; what was answered
`applied` survives the death of every process; time comes from the database and never runs backwards.

Two ways to write. `submit` takes a transition whose guard the writer knows (the owner of a run, a worker that takes
one, a start): these are gathered and committed in groups. `decide` locks run rows, hands each to a pure function and
applies what it returns: for everything that must look first (cancel, pause, recovery, a wake-up).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ironflow.model.capacity import Holdings, LeaseRow, QueueRow, RunHead, SessionRow
from ironflow.model.journal import Event
from ironflow.model.key import KeyRow
from ironflow.model.run import RunRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import Audit, Locked, Transition
from ironflow.model.wait import WaitRow
from ironflow.observe.seam import Observer

#: A pure function: the locked run in, its change (or None: leave it alone) out. It may raise a refusal.
Decide = Callable[[Locked], "Transition | None"]

#: Payloads longer than this (in characters) live in a table of their own.
INLINE_PAYLOAD = 8192


@dataclass(slots=True)
class RunFilter:
    """What `runs list` selects. Newest first; `before` is the (created_at, run_id) of the last row seen.

    `scope` None selects from all of them: that is for who runs the platform. `worker_tag`: a tag that the run asks of
    its worker. `created_from` and `created_to` (milliseconds since 1970): not before the one, and before the other.
    """

    states: Sequence[str] = ()
    workflow: str | None = None
    reason: str | None = None
    label: tuple[str, str] | None = None
    before: tuple[int, str] | None = None
    limit: int = 50
    scope: Scope | None = DEFAULT
    priority: int | None = None
    worker_tag: str | None = None
    created_from: int | None = None
    created_to: int | None = None


@dataclass(slots=True)
class WorkflowSeen:
    """A workflow that a worker has: what is kept of it where its code is not.

    `worker_tags` as `ids.join_tags` writes them; `definition`: what a start needs to know, as JSON (see
    `engine.declared.Declared`).
    """

    name: str
    version: str
    worker_tags: str
    definition: str | None = None


@dataclass(slots=True)
class Verdict:
    """The answer to a heartbeat for one lease: refreshed, stale or unknown (asked again at the next one)."""

    run_id: str
    execution_seq: int
    verdict: str


REFRESHED = "refreshed"
LEASE_STALE = "stale"
LEASE_UNKNOWN = "unknown"


class Beat(NamedTuple):
    """The answer to a heartbeat.

    `known`: the session still exists. `draining`: somebody wishes that it takes nothing new and leaves. `verdicts`: one
    for each lease that was named, in that order.
    """

    known: bool
    draining: bool
    verdicts: list[Verdict]


class Heart(Protocol):
    """The renewal path: synchronous, with a connection of its own, for the thread that renews."""

    def beat(
        self,
        session_id: str,
        session_ttl_ms: int,
        lease_ttl_ms: int,
        credits: int,
        held: Sequence[tuple[str, int, str, bool]],
    ) -> Beat:
        """Push the clocks of one session and of the leases it names (run_id, execution_seq, token_hash, executing).

        A suspicion against the session ends with it.
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

    def observe(self, observer: Observer | None) -> None:
        """Tell somebody of every group commit and of everything that is decided; None: nobody."""
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

    async def find_key(self, column: str, value: str, workflow: str | None, scope: Scope = DEFAULT) -> RunRow | None:
        """The run that holds an `idempotency_key` (of a workflow) or the live one that holds a `concurrency_key`."""
        ...

    async def journal(self, run_id: str, after: int = 0, limit: int = 0) -> list[Event]: ...
    async def journals(self, run_ids: Sequence[str]) -> dict[str, list[Event]]: ...
    async def tail(self, after: Mapping[str, int], limit: int) -> dict[str, list[Event]]:
        """Of each run the events after a seq, at most `limit` of each, in one look; large payloads are `APART`."""
        ...

    async def outline(self, run_id: str, after: int, limit: int) -> list[Event]:
        """As `journal`, but large payloads of the kinds that hold a value (`journal.VALUE_KINDS`) are `APART`."""
        ...

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

    async def backlog(self) -> list[tuple[str, str, int]]:
        """How many segments wait, by routing class and by the full lane that holds them back ("": only for a worker).

        Delayed and promised ones do not wait. Reads an entry per segment: for people, not for loops.
        """
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

    async def gone_claimers(self) -> frozenset[str]:
        """Nodes that hold claims and listen no more under that name: a sign of death, no proof, often not to be had."""

    # ---- sessions and sweeps
    async def open_session(self, session: SessionRow) -> bool:
        """Register a session, or bring it up to date. False, and nothing done, if its id is of another scope or key."""
        ...

    async def close_session(self, session_id: str) -> list[str]:
        """Remove a session and its credits; its leases and reservations expire now. Returns the runs it held."""
        ...

    async def expire_session(self, session_id: str, suspect_until: int | None = None) -> list[str] | None:
        """As `close_session`, but only if its time has passed once the row is locked: a heartbeat that came first wins.

        `suspect_until` given: also if it has been under suspicion since that time (ms) or longer. Returns None where
        neither is so.
        """
        ...

    async def suspect(self, session_id: str) -> bool:
        """Its connection broke: suspected from now until its next heartbeat. False if it was already, or is gone."""
        ...

    async def suspects(self, older_than: int, limit: int) -> list[SessionRow]:
        """Sessions under suspicion since this time (ms) or longer, longest first."""
        ...

    async def drain(self, session_id: str) -> bool:
        """Wish that a session takes nothing new, finishes what it has and leaves. False if there is no such session."""
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

    async def counts(self, scope: Scope | None = None) -> dict[str, int]:
        """How many runs are in each state. Reads an entry per run that there ever was: for people, not for loops."""
        ...

    async def audits(
        self,
        limit: int = 100,
        run_id: str | None = None,
        scope: Scope | None = None,
        before: str | None = None,
    ) -> list[dict[str, Any]]:
        """The audit log, newest first. `before`: the audit_id of the last entry seen; `scope` None: of all of them."""
        ...

    # ---- workflows
    async def pause_workflow(self, workflow: str, actor: str, scope: Scope = DEFAULT) -> bool: ...
    async def resume_workflow(self, workflow: str, actor: str, scope: Scope = DEFAULT) -> bool: ...
    async def paused_workflows(self, scope: Scope = DEFAULT) -> dict[str, int]: ...
    async def saw_workflows(self, seen: Iterable[WorkflowSeen], scope: Scope = DEFAULT) -> None:
        """A worker has these. Each version is kept for itself, with the time when it was first seen."""
        ...

    async def workflows(self, scope: Scope = DEFAULT) -> list[dict[str, Any]]:
        """Every workflow that was seen, in the version that new runs get: see `model.routing.current`."""
        ...

    # ---- keys, and what else people change
    async def add_key(self, key: KeyRow, audit: Audit) -> bool:
        """Keep a new key, with its audit entry. False, and nothing written, if there is one of that id or hash."""
        ...

    async def key_by_hash(self, key_hash: str) -> KeyRow | None: ...
    async def keys(self, org: str | None) -> list[KeyRow]:
        """The keys of an organisation (None: all there are), oldest first; revoked ones, too."""
        ...

    async def revoke_key(self, key_id: str, actor: str) -> bool:
        """Take a key back, with an audit entry. Returns False where there was nothing to take back."""
        ...

    async def used_keys(self, used: Mapping[str, int]) -> None:
        """Note when keys (by id) were last used (ms). An earlier time than the one that is known changes nothing."""
        ...

    async def delete_run(self, run_id: str, actor: str, scope: Scope) -> bool:
        """Delete a run that has ended, with its journal; the audit log keeps that it was. False if the scope has none.

        Raises:
            InvalidTransition: it has not ended.
        """
        ...

    # ---- waking others
    async def listen(self, wake: Callable[[str], None], name: str = "") -> str | None:
        """Call `wake(topic)` in this loop when another process says so. Returns the address to store, if any.

        `name`: of this node, as in its claims."""

    async def watch(self, on_time: bool) -> None:
        """Show the others that this node watches the clocks and is on time; or that it is not."""

    async def watched(self, within_ms: int) -> bool:
        """Whether another node has shown so within the last so many ms; False where that cannot be told."""

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
