"""A worker's session: its row, the lock that proves its death, its heartbeat, and the peers it watches.

The lock is taken before the row is inserted, so that whoever reads the row can already rely on it. A worker whose
session was removed (it was frozen, and the others went on without it) gives up what it held and registers anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ironflow.engine.definitions import seen
from ironflow.model.capacity import SessionRow
from ironflow.model.ids import check_text, join_routes, tags_of
from ironflow.model.routing import Serves
from ironflow.model.scope import DEFAULT
from ironflow.tasks import or_again
from ironflow.worker import evidence
from ironflow.worker.heartbeat import Heartbeat

if TYPE_CHECKING:
    from ironflow.engine.definitions import WorkflowSpec
    from ironflow.loops.capacity_scanner import CapacityScanner
    from ironflow.store.base import Store
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")

#: One per process: two engines of one process die together, and could not see each other's locks.
PROCESS_ID = f"{os.getpid()}-{secrets.token_hex(6)}"
#: Between two tries to register anew, seconds.
REGISTER_AGAIN_S = 1.0


def lock_folder() -> Path:
    """Where the sessions of this host keep their locks: one folder per user, whatever the database."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"ironflow-{user}" / "sessions"


def new_session_id() -> str:
    """An id that no other incarnation of any worker has."""
    return f"{PROCESS_ID}-{secrets.token_hex(4)}"


def row_of_this_process(session_id: str | None, worker_id: str, slots: int) -> SessionRow:
    """The row of a worker in this process, without its times; no id makes a new one.

    Raises:
        InvalidInput: the worker's name is too long, or could not be shown.
    """
    return SessionRow(
        session_id=session_id or new_session_id(),
        worker_id=check_text(worker_id, "worker_id"),
        host=evidence.host_name(),
        boot_id=evidence.boot_id(),
        pid=os.getpid(),
        process_id=PROCESS_ID,
        routes="",
        slots=slots,
        credits=slots,
        started_at=0,
        heartbeat_at=0,
        expires_at=0,
    )


def worker_name(worker_id: str | None) -> str:
    """What a worker is called: its stable name, or one of its host and process."""
    return worker_id or f"{evidence.host_name()}-{os.getpid()}"


def lock_of(row: SessionRow) -> evidence.SessionLock | None:
    """Take the lock that proves the end of this session, and say in its row where it lies."""
    lock = evidence.SessionLock.acquire(lock_folder(), row.session_id)
    row.lock_path = row.lock_device = row.lock_inode = None
    if lock is not None:
        row.lock_path, row.lock_device, row.lock_inode = str(lock.path), lock.device, lock.inode
    return lock


class Session:
    """See the module's docstring.

    Args:
        worker: whose session it is.
        store: where it is registered.
        scanner: recovers what a dead peer held.
        worker_id: a stable name, shown to people; None makes one from host and pid.
        tags: what the worker offers, checked by `ids.tags_of`; without any it serves what its workflows require of
            themselves.
        alone: the id of a child process that takes one run and serves no route; given by its parent.
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
        self.worker = worker
        self.store = store
        self.scanner = scanner
        self.tags = tags_of(tags, "tags")
        self.worker_id = worker_name(worker_id)
        self.peers: list[SessionRow] = []
        self.serves = Serves.of(DEFAULT, self.tags, worker.registry)
        self.routes: list[str] = []
        #: peers that were alive when they were first seen
        self._known: set[str] = set()
        #: whether the database knows this session, so that runs may be taken under it
        self.registered = False
        self.lock: evidence.SessionLock | None = None
        self._alone = alone
        self.row = self._new_row(alone)
        #: what this node calls itself in its claims; a session that is opened anew does not change it
        self.node = self.row.session_id
        self._heartbeat: Heartbeat | None = None
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def _new_row(self, session_id: str | None = None) -> SessionRow:
        settings = self.worker.settings
        row = row_of_this_process(session_id, self.worker_id, settings.concurrency)
        row.started_at = row.heartbeat_at = self.store.now()
        row.expires_at = row.started_at + settings.session_ttl_ms
        return row

    async def open(self) -> None:
        """Lock, register, beat, and look at the peers."""
        store, row = self.store, self.row
        self.lock = lock_of(row)
        self.serves = Serves.of(DEFAULT, self.tags, self.worker.registry)
        if self._serves_queue:
            self.routes = self.serves.routes()
            row.serves = self.serves.to_json()
        row.routes = join_routes(self.routes)
        try:
            row.wake_address = await store.listen(self._heard, self.node)
            await store.open_session(row)
            await store.saw_workflows([seen(spec) for spec in self.worker.registry])
        except BaseException:
            self._unlock()
            raise
        self.registered = True
        self._heartbeat = self._start_heartbeat()
        await self.look_around()
        store.notify("sessions", self.peers)
        self.worker.spawn(store.rehearse())

    async def close(self) -> None:
        """Say goodbye: nothing is left to be recovered. A second call does nothing."""
        registered, self.registered, self._closed = self.registered, False, True
        evidence.unwatch(self._died)
        try:
            if self._heartbeat is not None:
                await asyncio.to_thread(self._heartbeat.stop)
                self._heartbeat = None
            if registered:
                await self.store.close_session(self.row.session_id)
        except Exception as error:
            log.warning("the session could not be closed; it will expire: %s", error)
        finally:
            self._unlock()  # whoever gives up waiting for the database ends here, too

    def _unlock(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    async def look_around(self) -> None:
        """See which other sessions there are, watch those whose death can be proven from here, and find new routes."""
        sessions = await self.store.sessions()
        self.peers = [s for s in sessions if s.session_id != self.row.session_id]
        self._known.intersection_update(peer.session_id for peer in self.peers)
        for peer in self.peers:
            if evidence.watchable(peer, self.row.host, self.row.boot_id, PROCESS_ID):
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
        known = set(self.routes)
        new = [r for r in await self.store.queue_routes() if r not in known and self.can_take(r)]
        if new:
            self._also(new)
        return bool(new)

    def _also(self, routes: list[str]) -> None:
        self.routes += routes
        self.row.routes = join_routes(self.routes)
        if self.registered:
            self.worker.spawn(self._announce())

    async def _announce(self) -> None:
        """Bring the row up to date, so that `why` names this worker as one that could take such a run."""
        now, row = self.store.now(), self.row
        row.heartbeat_at, row.expires_at = now, now + self.worker.settings.session_ttl_ms
        row.credits = max(0, self.worker.free)
        if self.registered:
            await self.store.open_session(row)

    def can_take(self, route: str) -> bool:
        """Whether this worker serves a routing class; see `model.routing`."""
        return self.serves.can_take(route)

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

    def _start_heartbeat(self) -> Heartbeat:
        worker = self.worker
        heartbeat = Heartbeat(
            worker.port,
            self.row.session_id,
            worker.settings,
            worker.renewing,
            worker.verdicts,
            worker.cut_off,
            self._forgotten,
            worker.dismiss,
            worker.nominal.reached,
        )
        heartbeat.start()
        return heartbeat

    def _forgotten(self) -> None:
        """The session is gone from the database: somebody took this worker for dead. Register anew."""
        if self._closed or not self.registered:
            return
        self.registered = False  # nothing is taken under a session that nobody knows
        log.warning("session %s was removed; giving up what it held and registering anew", self.row.session_id)
        self.worker.forgotten(self.row.session_id)
        self._register_anew()

    def _register_anew(self) -> None:
        if not self._closed:
            self.worker.spawn(or_again(self._reopen, self._register_anew))

    async def _reopen(self) -> None:
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        self._unlock()
        while not self._closed:
            self.row = self._new_row()
            try:
                await self.open()
                break
            except Exception as error:
                log.warning("the worker could not register anew: %s", error)
                await asyncio.sleep(REGISTER_AGAIN_S)
        self.worker.dispatcher.wake()
