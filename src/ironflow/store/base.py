"""The store: one async interface, two implementations, one conformance suite.

What it promises: a transition is applied whole or not at all; a refused one has written nothing; what was answered
`applied` survives the death of every process; time comes from the database and never runs backwards.

Two ways to write. `submit` takes a transition whose guard the writer knows (the owner of a run, a worker that takes
one, a start): these are gathered and committed in groups. `decide` locks run rows, hands each to a pure function and
applies what it returns: for everything that must look first (cancel, pause, recovery, a wake-up).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ironflow.errors import StoreGone
from ironflow.model.capacity import RunHead, SessionRow
from ironflow.model.key import KeyRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.suspicion import Suspicion
from ironflow.model.transition import Audit, Decide, Decisions, Transition
from ironflow.model.wait import WaitRow
from ironflow.observe.seam import Observer
from ironflow.store.heart import Heart
from ironflow.store.reader import Reader

#: Payloads longer than this (in characters) live in a table of their own.
INLINE_PAYLOAD = 8192
#: How many delayed segments one call of `Store.promote` makes ready: a herd must not keep every other writer waiting.
PROMOTED = 1_000


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


class Deleted(NamedTuple):
    """How much `Store.delete_expired` deleted: whole trees, and the runs in them."""

    trees: int
    runs: int


class OpenTransaction(Protocol):
    """A transaction in which a user's writes are done and the step's completion is still to be added.

    It holds locks: whoever has one commits or rolls back without waiting for anything else.
    """

    async def commit(self, transition: Transition) -> str:
        """Apply the transition in the same transaction and commit both, or neither.

        Returns `applied`, or a refusal: after `stale` the user's writes are gone too; after `news` the transaction is
        still open, for the owner to read what arrived and commit again; after `undone` its connection had broken, and
        the database was asked: nothing of it is there.

        Raises:
            StoreUnreachable: whether it was committed could not be found out.
        """
        ...

    async def rollback(self) -> None:
        """Undo the user's writes."""
        ...


class Store(Reader, Protocol):
    """See the module's docstring; what a store reads stands in `Reader`."""

    #: "sqlite" or "postgres"
    dialect: str
    #: how many may write at the same time, as whoever uses this store sees it (the segments of a worker, the changes
    #: that a node has under way): the committer's hint on whether waiting for company pays
    concurrent_writers: int
    #: whether an open transaction (`begin`) keeps every other writer waiting; whoever has one then decides it before
    #: they wait for another write of theirs, which could never come
    exclusive_transactions: bool
    #: the address without its password
    name: str
    #: done once the database can never be used again from here; whoever works on it stops then
    gone: asyncio.Future[StoreGone]

    def now(self) -> int:
        """Milliseconds since 1970: the last database time seen plus the time since, never backwards."""
        ...

    async def ahead(self) -> int:
        """How far `now` is ahead of the clock behind it, ms: one that was set back, or another one since a failover.

        For so long `now` stands still.
        """
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
    ) -> Decisions:
        """Lock these runs in order of id, decide each, apply what was decided, all in one transaction.

        Returns per run what was applied, None where nothing was to be done (or the run was locked elsewhere and
        `skip_locked` says to leave it), or the refusal that `decide` raised. An unexpected error falls back to one
        transaction per run, so that one bad run never stops a batch.

        Raises:
            StoreError: of `errors.OUTAGES`: no run could be decided, or none from some run on.
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
            StoreUnreachable: no transaction could be had.
            StoreError: `body` ended it by itself, or its connection broke whenever it was called.
        """
        ...

    # ---- the queue and the waits
    async def reserve(self, routes: Sequence[str], limit: int, session_id: str, ttl_ms: int) -> list[RunHead]:
        """As `peek`, but promised to one session: no other worker is given them before the reservation ends."""
        ...

    async def unreserve(self, reservations: Sequence[tuple[str, str]]) -> None:
        """Give reservations (run_id, token) back at once."""
        ...

    async def promote(self, limit: int = PROMOTED) -> int:
        """Make delayed segments ready whose `eligible_at` has passed, at most `limit`, and let through whom a lane held
        back and now has room for. Returns how many in all; `limit` or more: there may be more of them.
        """
        ...

    async def claim_waits(self, node: str, limit: int) -> list[WaitRow]:
        """Claim due waits for one node (`waking`), earliest first: exactly one node gets each."""
        ...

    # ---- sessions and sweeps
    async def open_session(self, session: SessionRow) -> bool:
        """Register a session, or bring it up to date. False, and nothing done, if its id is of another scope or key."""
        ...

    async def move_session(self, session_id: str, wake_address: str | None, ttl_ms: int) -> SessionRow | None:
        """Its worker is told by whoever listens at this address from now on; a sign of life, as good as a heartbeat.

        Returns the session as it is now; None, and nothing done, where it is gone.
        """
        ...

    async def close_session(self, session_id: str) -> list[str]:
        """Remove a session and its credits; its leases and reservations expire now. Returns the runs it held."""
        ...

    async def expire_session(self, session_id: str, suspicion: Suspicion | None = None) -> list[str] | None:
        """As `close_session`, but only if its time has passed once the row is locked: a heartbeat that came first wins.

        `suspicion` given: also if it is a suspect that counts as dead by `model.suspicion`. None where neither is so.
        """

    async def suspect(self, session_id: str) -> bool:
        """Its connection broke: suspected from now until its next heartbeat. False if it was already, or is gone."""

    async def hold_back(self, within: int, older_than: int) -> None:
        """Suspicions of members of a mass (`within`, ms) that are older than this time (ms) begin anew now."""

    async def drain(self, session_id: str) -> bool:
        """Wish that a session takes nothing new, finishes what it has and leaves. False if there is no such session."""
        ...

    # ---- workflows
    async def pause_workflow(self, workflow: str, actor: str, scope: Scope = DEFAULT) -> bool:
        """Hold a workflow: its runs stay queued. With an audit entry; False, and nothing done, if it is held."""
        ...

    async def resume_workflow(self, workflow: str, actor: str, scope: Scope = DEFAULT) -> bool:
        """Let a workflow go on. With an audit entry; False, and nothing done, if it is not held."""
        ...

    async def saw_workflows(self, seen: Iterable[WorkflowSeen], scope: Scope = DEFAULT) -> None:
        """A worker has these. Each version is kept for itself, with the time when it was first seen."""
        ...

    # ---- keys, and what else people change
    async def add_key(self, key: KeyRow, audit: Audit) -> bool:
        """Keep a new key, with its audit entry. False, and nothing written, if there is one of that id or hash."""
        ...

    async def revoke_key(self, key_id: str, actor: str) -> bool:
        """Take a key back, with an audit entry. Returns False where there was nothing to take back."""
        ...

    async def used_keys(self, used: Mapping[str, int]) -> None:
        """Note when keys (by id) were last used (ms). An earlier time than the one that is known changes nothing."""
        ...

    async def delete_run(self, run_id: str, actor: str, scope: Scope) -> bool:
        """Delete a run that has ended, with its journal and all runs below it; the audit log keeps that it was.

        False if the scope has none.

        Raises:
            InvalidTransition: it has not ended, or one below it has not.
        """
        ...

    async def delete_expired(self, roots: Sequence[str], ended_before: int, scope: Scope) -> Deleted:
        """Delete these whole trees in one transaction, with one audit entry.

        A tree stays as it is where a run of it has not ended, or not before this time (ms); where one is in somebody's
        hands right now; or where it is not a root of this scope: none of these is waited for, and none is an error.
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

    async def close(self) -> None:
        """Commit what was submitted, answer it, and give every connection back. A second call does nothing."""
        ...
