"""What a store reads: the half of its interface that changes nothing, whoever asks and however often.

Rows are those of the model. A question of a sweep is decided again on the locked run, so its answer may be a moment
old; a list for people may cost what it shows, and nothing that a loop asks on every tick grows with history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ironflow.model.capacity import Holdings, LeaseRow, QueueRow, RunHead, SessionRow
from ironflow.model.journal import Event
from ironflow.model.key import KeyRow
from ironflow.model.run import RunRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.suspicion import Suspects, Suspicion
from ironflow.model.wait import WaitRow


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
class Expired:
    """A page of `Reader.expired_trees`."""

    #: the id of each root, and how many events its journal has
    roots: list[tuple[str, int]]
    #: the (created_at, run_id) behind which the next page begins; None: this one was the last
    after: tuple[int, str] | None


class Unowned(NamedTuple):
    """A page of `Reader.unowned`: what was found, and the id behind which the next page begins; "" begins anew."""

    run_ids: list[str]
    after: str


class Standing(NamedTuple):
    """Where a run stands: whose it is, how it queues, who owns it, and how far its journal goes."""

    run_id: str
    org: str
    environment: str
    workflow: str
    route: str
    priority: int
    execution_seq: int
    facts: int
    token_hash: str | None
    #: the number of its last event
    last_seq: int

    @property
    def scope(self) -> Scope:
        """Whose it is."""
        return Scope(self.org, self.environment)


class Reader(Protocol):
    """See the module's docstring."""

    # ---- runs and journals
    async def run(self, run_id: str) -> RunRow | None:
        """The row of a run."""
        ...

    async def runs(self, filter: RunFilter) -> list[RunRow]:
        """One page of the runs that a filter selects, newest first; the next one begins at its `before`."""
        ...

    async def standings(self, run_ids: Collection[str]) -> dict[str, Standing]:
        """Where these runs stand, in one look; those that do not exist are not among them."""
        ...

    async def holdings(self, run_id: str) -> Holdings | None:
        """A run with queue row, lease (an expired one, too), waits and the holders of its lanes, as of one moment: one
        that moves from the queue to a worker meanwhile must not look as if it were nowhere.
        """
        ...

    async def find_key(self, column: str, value: str, workflow: str | None, scope: Scope = DEFAULT) -> RunRow | None:
        """The run that holds an `idempotency_key` (of a workflow) or the live one that holds a `concurrency_key`."""
        ...

    async def journal(self, run_id: str, after: int = 0, limit: int = 0) -> list[Event]:
        """The events of a run behind a seq, in order, at most `limit` (0: all); none where there is no such run."""
        ...

    async def last_event(self, run_id: str) -> Event | None:
        """The latest event of a run: of one that has ended, how it did. None where there is no such run."""
        ...

    async def journals(self, run_ids: Sequence[str]) -> dict[str, list[Event]]:
        """The whole journals of these runs, in one look; every one asked for has an entry."""
        ...

    async def events_at(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], Event]:
        """The events of these runs under these numbers, in one look; those that do not exist are not among them."""
        ...

    async def tail(self, after: Mapping[str, int], limit: int) -> dict[str, list[Event]]:
        """Of each run the events after a seq, at most `limit` of each, in one look; large payloads are `APART`."""
        ...

    async def outline(self, run_id: str, after: int, limit: int) -> list[Event]:
        """As `journal`, but large payloads of the kinds that hold a value (`journal.VALUE_KINDS`) are `APART`."""
        ...

    # ---- the queue and the waits
    async def peek(self, routes: Sequence[str], limit: int) -> list[RunHead]:
        """The next ready segments of these routes, in the order they are to be handed out. Reserves nothing."""
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

    async def due(self, limit: int, routes: Sequence[str]) -> list[RunHead]:
        """Suspended runs of these routes with a wait that is due and unclaimed, earliest first."""
        ...

    async def stale_claims(self, older_than: int, limit: int) -> list[str]:
        """Runs with a claim older than this time (ms) and neither lease nor queue row."""
        ...

    async def gone_claimers(self) -> frozenset[str]:
        """Nodes that hold claims and listen no more under that name: a sign of death, no proof, often not to be had."""

    # ---- what sweeps look for
    async def expired_sessions(self, limit: int) -> list[SessionRow]:
        """Sessions whose time has passed, the longest expired first."""
        ...

    async def suspects(self, suspicion: Suspicion, limit: int) -> Suspects:
        """Who counts as dead by suspicion now, at most so many, and whether others are held back."""

    async def expired_leases(self, limit: int, after: str = "") -> list[str]:
        """Runs whose lease has expired, in order of id, behind the id `after`."""
        ...

    async def expired_reservations(self, limit: int) -> list[str]:
        """Runs that were promised to a session which did not begin in time, in order of id."""
        ...

    async def unowned(self, older_than: int, limit: int, after: str = "") -> Unowned:
        """Runs whose state says that they are owned or queued, with neither lease nor queue row, in order of id.

        Looks at a bounded number of live runs behind the id `after`, and says where to go on: it is asked on every
        tick, and a hundred thousand sleeping runs must not be read each time for an alarm that never rings.
        """
        ...

    async def overdue(self, older_than: int, limit: int) -> list[str]:
        """Runs that nobody executes and whose deadline is not after this time (ms), earliest deadline first."""
        ...

    async def scopes(self) -> list[Scope]:
        """Whose runs there are. Costs a few steps for each scope, however many runs it has."""
        ...

    async def expired_trees(
        self, scope: Scope, ended_before: int, after: tuple[int, str], page: int, limit: int
    ) -> Expired:
        """Roots of a scope that ended before a time (ms, inclusive), as did their children; the oldest first.

        Looks at the runs that were created by then, at most `page` of them and no further than `limit` finds, from
        behind a (created_at, run_id) on. Whether a whole tree has ended is decided again on its locked runs.
        """
        ...

    # ---- lists, for people and for whoever tells others
    async def sessions(self) -> list[SessionRow]:
        """Every registered session, in the order in which they began; expired ones that no sweep has met, too."""
        ...

    async def leases(self) -> list[LeaseRow]:
        """The leases that hold: never an expired one."""
        ...

    async def queue(self, limit: int = 1000) -> list[QueueRow]:
        """The dispatch queue in the order of handing out, whatever the status of its rows."""
        ...

    async def reservations(self, session_id: str) -> list[tuple[str, str]]:
        """What a session was promised and has not taken, as `Store.unreserve` takes it: (run_id, token)."""
        ...

    async def waits(self, run_id: str) -> list[WaitRow]:
        """The open waits of a run."""
        ...

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

    async def paused_workflows(self, scope: Scope = DEFAULT) -> dict[str, int]:
        """The workflows that are held, and since when (ms)."""
        ...

    async def workflows(self, scope: Scope = DEFAULT) -> list[dict[str, Any]]:
        """Every workflow that was seen, in the version that new runs get: see `model.routing.current`."""
        ...

    async def key_by_hash(self, key_hash: str) -> KeyRow | None:
        """The key of this hash, whether it still opens anything or not."""
        ...

    async def keys(self, org: str | None) -> list[KeyRow]:
        """The keys of an organisation (None: all there are), oldest first; revoked ones, too."""
        ...

    async def check(self) -> list[str]:
        """What the database itself says of its health (integrity, version). Empty when nothing is wrong."""
        ...
