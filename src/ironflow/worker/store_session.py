"""A session in the database: its row, the peers it watches, and the routes it serves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ironflow.engine.definitions import seen
from ironflow.model.capacity import SessionRow
from ironflow.model.ids import join_routes
from ironflow.model.routing import Serves, own_runs
from ironflow.model.scope import DEFAULT
from ironflow.worker import evidence
from ironflow.worker.session import Session, row_of_this_process

if TYPE_CHECKING:
    from ironflow.engine.definitions import WorkflowSpec
    from ironflow.loops.capacity_scanner import CapacityScanner
    from ironflow.store.base import Store
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")


class StoreSession(Session):
    """See the module's docstring, and `Session`.

    Args:
        worker: whose session it is.
        store: where it is registered.
        scanner: recovers what a dead peer held.
        worker_id, tags, alone: see `Session`.
    """

    def __init__(
        self,
        worker: Worker,
        store: Store,
        scanner: CapacityScanner,
        worker_id: str | None,
        tags: tuple[str, ...],
        alone: str | None = None,
    ) -> None:
        self.store = store
        self.scanner = scanner
        super().__init__(worker, worker_id, tags, alone)
        self.routes: list[str] = []
        #: the runs this session has said it takes, serving no queue
        self._own: frozenset[str] = frozenset()
        #: peers that were alive when they were first seen
        self._known: set[str] = set()
        #: what this node calls itself in its claims; a session that is opened anew does not change it
        self.node = self.row.session_id

    def _new_row(self, session_id: str | None = None) -> SessionRow:
        settings = self.worker.settings
        row = row_of_this_process(session_id, self.worker_id, settings.concurrency)
        row.started_at = row.heartbeat_at = self.store.now()
        row.expires_at = row.started_at + settings.session_ttl_ms
        return row

    async def _register(self) -> None:
        store, row = self.store, self.row
        self.serves = Serves.of(DEFAULT, self.tags, self.worker.registry)
        if self._serves_queue:
            self.routes = self.serves.routes()
            row.serves = self.serves.to_json()
        elif self._own:
            row.serves = own_runs(self._own)
        row.routes = join_routes(self.routes)
        row.wake_address = await store.listen(self._heard, self.node)
        await store.open_session(row)
        await store.saw_workflows([seen(spec) for spec in self.worker.registry])

    async def _opened(self) -> None:
        await self.look_around()
        self.store.notify("sessions", self.peers)
        self.worker.spawn(self.store.rehearse())

    async def _leave(self) -> None:
        await self.store.close_session(self.row.session_id)

    async def close(self) -> None:
        """See `Membership`."""
        evidence.unwatch(self._died)
        await super().close()

    async def look_around(self) -> None:
        """See which other sessions there are, watch those whose death can be proven from here, and find new routes."""
        sessions = await self.store.sessions()
        self.peers = [s for s in sessions if s.session_id != self.row.session_id]
        self._known.intersection_update(peer.session_id for peer in self.peers)
        for peer in self.peers:
            if evidence.watchable(peer, self.row.host, self.row.boot_id, self.row.process_id):
                await self._watch(peer)
        await self.find_routes()

    async def _watch(self, peer: SessionRow) -> None:
        if peer.session_id not in self._known:
            self._known.add(peer.session_id)
            # Known before this worker takes anything: a run may be what killed its last owner.
            dead, opening = evidence.already_dead(peer)
            if dead:
                await self._recover(peer.session_id, opening)
                return
        evidence.watch_once(peer, self._died)

    # ---- what this worker serves -------------------------------------------------------------------------------------

    @property
    def _serves_queue(self) -> bool:
        """Whether runs come by route; a child process has its one run, and `ironflow run` its own."""
        return self._alone is None and self.worker.own is None

    def serve(self, spec: WorkflowSpec) -> None:
        """A workflow was registered after the session opened: take its runs too."""
        self.serves = Serves.of(DEFAULT, self.tags, self.worker.registry)
        if not self._serves_queue:
            return
        self.row.serves = self.serves.to_json()
        new = [route for route in self.serves.routes() if route not in self.routes]
        if new:
            self._also(new)
            self.worker.spawn(self.store.saw_workflows([seen(spec)]))

    async def find_routes(self) -> bool:
        """Serve what the queue holds and this worker can take: a start may ask for tags beyond its workflow's own.

        Returns whether there was anything new.
        """
        if not self._serves_queue:
            return False
        found = await self.store.queue_routes()
        known = set(self.routes)  # only now: what was added while the answer was on its way is not added twice
        new = [route for route in found if route not in known and self.can_take(route)]
        if new:
            self._also(new)
        return bool(new)

    def _also(self, routes: list[str]) -> None:
        self.routes += routes
        self.row.routes = join_routes(self.routes)
        if self.registered:
            self.worker.spawn(self._announce())

    def keep_own(self, run_ids: set[str]) -> None:
        """Say which runs this worker takes although it serves no queue: else `why` knows of nobody who does."""
        if self._own != run_ids:
            self._own = frozenset(run_ids)
            self.row.serves = own_runs(run_ids)
            if self.registered:
                self.worker.spawn(self._announce())

    async def _announce(self) -> None:
        """Bring the row up to date, so that `why` names this worker as one that could take such a run."""
        now, row = self.store.now(), self.row
        row.heartbeat_at, row.expires_at = now, now + self.worker.settings.session_ttl_ms
        row.credits = max(0, self.worker.free)
        if self.registered:
            await self.store.open_session(row)

    # ---- what threads and other processes say ------------------------------------------------------------------------

    def _heard(self, topic: str) -> None:
        worker = self.worker
        if self._closed:
            return
        if topic == "sessions":
            worker.spawn(self.look_around())
        elif topic.startswith("run:"):
            worker.spawn(worker.check(topic[4:]))
        else:
            worker.dispatcher.told()

    def _died(self, session_id: str, opening: evidence.Opening | None) -> None:
        """Called from a watcher's thread."""
        try:
            self._loop.call_soon_threadsafe(self._proven, session_id, opening)
        except RuntimeError:  # our own loop has closed
            return

    def _proven(self, session_id: str, opening: evidence.Opening | None) -> None:
        if not self._closed:
            self.worker.spawn(self._recover(session_id, opening))

    async def _recover(self, session_id: str, opening: evidence.Opening | None) -> None:
        gone = [peer for peer in self.peers if peer.session_id == session_id]
        # First: a worker without peers takes the recovered run without a reservation.
        self.peers = [peer for peer in self.peers if peer.session_id != session_id]
        dispatcher = self.worker.dispatcher
        report = await self.scanner.session_died(session_id, opening, dispatcher.wake)
        # Each run that was recovered has been told of as a warning; this line is for whoever looks for the process.
        log.debug("session %s is dead (its process is gone); runs recovered: %d", session_id, len(report.run_ids))
        dispatcher.wake()
        for peer in gone:
            evidence.discard(peer)

    def tell_queue(self, *, lane: bool = False) -> None:
        """See `Membership`. A free place in a lane is told only to those who are there."""
        if self.peers or not lane:
            self.store.notify("queue", self.peers)

    async def leaving(self) -> None:
        """See `Membership`."""
        if self.registered:
            await self.store.drain(self.row.session_id)

    async def died(self, session_id: str, opening: evidence.Opening | None) -> None:
        """See `Membership`."""
        await self.scanner.session_died(session_id, opening)
