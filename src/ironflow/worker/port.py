"""The port: what a worker needs of the world, whether that is a database or a server that has one.

The worker is one; these protocols are where its two worlds differ. `worker.local` speaks to a store in this process,
`ironflow.remote` to a server over HTTP. Three parts, each with one question: `Port` (commit, read, give back),
`Membership` (who am I to the others, and do I still live), `Finder` (is there anything to execute).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ironflow.engine.outside import Outside
from ironflow.model.capacity import SessionRow
from ironflow.model.journal import Event
from ironflow.store.heart import Heart

if TYPE_CHECKING:
    from ironflow.engine.definitions import WorkflowSpec
    from ironflow.worker.evidence import Opening, SessionLock

#: What a segment holds: (run_id, execution_seq, token as this worker keeps it).
Holding = tuple[str, int, str]


@dataclass(slots=True)
class Owner:
    """Who a run belongs to now, and what has been journaled by later owners than the one who asks."""

    execution_seq: int
    state: str
    kinds: frozenset[str] = frozenset()


class Port(Outside, Protocol):
    """See the module's docstring. What cannot be reached raises StoreUnreachable or ServerUnreachable."""

    #: how many may write at the same time, which are the segments that this process executes: whoever commits knows
    #: from it whether waiting for company pays
    concurrent_writers: int

    @property
    def name(self) -> str:
        """What it speaks to, as people see it."""
        ...

    async def journals(self, run_ids: Sequence[str]) -> dict[str, list[Event]]:
        """The journals of runs that this worker is about to take; one that cannot be read is left out."""
        ...

    async def unreserve(self, reservations: Sequence[tuple[str, str]]) -> None:
        """Give reservations (run_id, token) back at once."""
        ...

    async def keep(self, run_id: str, reservation: str, ttl_ms: int) -> bool:
        """Prolong a reservation; False where it is no longer this one, or cannot be prolonged."""
        ...

    async def release(self, held: Sequence[Holding], session_id: str) -> None:
        """Give runs back: in the queue at once, without an attempt or a recovery being counted."""
        ...

    async def give_back(self, run_id: str, session_id: str) -> None:
        """A child process left in order without its run: close its session, and give back what that held."""
        ...

    async def owner(self, run_id: str, since: int | None = None) -> Owner | None:
        """Who owns a run; None where there is no such run, or none for this session.

        Args:
            run_id: the run.
            since: also tell the kinds of what was journaled under a higher execution_seq than this.
        """
        ...

    def heart(self) -> Heart:
        """A renewal path for the thread that calls this."""
        ...

    def hurry(self) -> None:
        """The worker leaves: what cannot be had now is not waited for."""
        ...

    def new_token(self) -> str:
        """What a new lease is checked against, in the form in which this worker's transitions carry it."""
        ...

    async def close(self) -> None:
        """Close what it speaks through. A second call does nothing."""
        ...


class Membership(Protocol):
    """A worker's session, as the worker uses it."""

    #: shown to people
    worker_id: str
    row: SessionRow
    lock: SessionLock | None
    #: what the worker offers, by its own options
    tags: tuple[str, ...]
    #: whether the others know this session, so that runs may be taken under it
    registered: bool
    #: the other sessions, where this worker sees them itself
    peers: list[SessionRow]

    async def open(self) -> None:
        """Register, and begin to renew."""
        ...

    async def close(self) -> None:
        """Say goodbye. A second call does nothing."""
        ...

    def serve(self, spec: WorkflowSpec) -> None:
        """A workflow was registered after the session opened: take its runs too."""
        ...

    def can_take(self, route: str) -> bool:
        """Whether this worker serves a routing class."""
        ...

    def tell_queue(self, *, lane: bool = False) -> None:
        """Something was put into the queue, or (`lane`) a place in a lane is free: whoever takes runs may look."""
        ...

    async def leaving(self) -> None:
        """Tell the others that this worker takes nothing new: whoever asks why a run waits is not sent to it."""
        ...

    async def died(self, session_id: str, opening: Opening | None) -> None:
        """Proof that a child's process is gone: recover what its session held."""
        ...


class Finder(Protocol):
    """Looks for work and takes it, while there are free slots."""

    #: the last look found as much as it asked for: there may be more
    backlog: bool

    def start(self) -> None:
        """Begin to take runs."""
        ...

    async def stop(self, patience: float) -> None:
        """Take nothing more; what is half taken may end within so many seconds."""
        ...

    def wake(self) -> None:
        """Something may be there to take."""
        ...

    def told(self) -> None:
        """Another process says that something may be there to take."""
        ...

    def slot_free(self) -> None:
        """A slot became free."""
        ...

    def expect(self, due: int) -> None:
        """Something will be due at this time, ms."""
        ...
