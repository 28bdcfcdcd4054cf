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

from ironflow.engine.registry import default_route
from ironflow.loops.capacity_scanner import CapacityScanner
from ironflow.model.capacity import SessionRow
from ironflow.model.ids import split_route
from ironflow.worker import evidence
from ironflow.worker.heartbeat import Heartbeat, Held

if TYPE_CHECKING:
    from ironflow.engine.definitions import WorkflowSpec
    from ironflow.worker.embedded import Worker

log = logging.getLogger("ironflow.worker")

#: One per process: two engines of one process die together, and could not see each other's locks.
PROCESS_ID = f"{os.getpid()}-{secrets.token_hex(6)}"


def lock_folder() -> Path:
    """Where the sessions of this host keep their locks: one folder per user, whatever the database."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"ironflow-{user}" / "sessions"


class Session:
    """See the module's docstring."""

    def __init__(self, worker: Worker, worker_id: str | None, tags: tuple[str, ...]) -> None:
        self.worker = worker
        self.tags = tags
        self.worker_id = worker_id or f"{evidence.host_name()}-{os.getpid()}"
        self.peers: list[SessionRow] = []
        self.routes: list[str] = []
        self.row = self._new_row()
        self._lock: evidence.SessionLock | None = None
        self._heartbeat: Heartbeat | None = None
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def _new_row(self) -> SessionRow:
        now, settings = self.worker.store.now(), self.worker.settings
        return SessionRow(
            session_id=f"{PROCESS_ID}-{secrets.token_hex(4)}",
            worker_id=self.worker_id,
            host=evidence.host_name(),
            boot_id=evidence.boot_id(),
            pid=os.getpid(),
            process_id=PROCESS_ID,
            routes="",
            slots=settings.concurrency,
            credits=settings.concurrency,
            started_at=now,
            heartbeat_at=now,
            expires_at=now + settings.session_ttl_ms,
        )

    async def open(self) -> None:
        """Lock, register, beat, and look at the peers."""
        store, row = self.worker.store, self.row
        self._lock = evidence.SessionLock.acquire(lock_folder(), row.session_id)
        if self._lock is not None:
            row.lock_path = str(self._lock.path)
            row.lock_device, row.lock_inode = self._lock.device, self._lock.inode
        self.routes = sorted(default_route(spec) for spec in self.worker.registry)
        row.routes = "\n".join(self.routes)
        row.wake_address = await store.listen(self._heard)
        await store.open_session(row)
        await store.saw_workflows(
            (spec.name, spec.version, "\n".join(spec.worker_tags)) for spec in self.worker.registry
        )
        self._heartbeat = self._start_heartbeat()
        await self.look_around()
        store.notify("sessions", self.peers)

    async def close(self) -> None:
        """Say goodbye: nothing is left to be recovered."""
        self._closed = True
        evidence.unwatch(self._died)
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        await self.worker.store.close_session(self.row.session_id)
        if self._lock is not None:
            self._lock.release()

    async def look_around(self) -> None:
        """See which other sessions there are, and watch those whose death can be proven from here."""
        sessions = await self.worker.store.sessions()
        self.peers = [s for s in sessions if s.session_id != self.row.session_id]
        for peer in self.peers:
            if evidence.watchable(peer, self.row.host, self.row.boot_id, PROCESS_ID):
                evidence.watch_once(peer, self._died)

    def serve(self, spec: WorkflowSpec) -> None:
        """A workflow was registered after the session opened: take its runs too."""
        route = default_route(spec)
        if route not in self.routes:
            self.routes.append(route)
            self.row.routes = "\n".join(self.routes)
            self.worker.spawn(
                self.worker.store.saw_workflows([(spec.name, spec.version, "\n".join(spec.worker_tags))])
            )

    def can_take(self, route: str) -> bool:
        """Whether this worker serves a routing class: it has the workflow, and carries every tag."""
        workflow, tags = split_route(route)
        return workflow in self.worker.registry and tags <= set(self.tags) | self._own_tags(workflow)

    def _own_tags(self, workflow: str) -> set[str]:
        return set() if self.tags else set(self.worker.registry.get(workflow).worker_tags)

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
            worker.dispatcher.wake()

    def _died(self, session_id: str) -> None:
        """Called from a watcher's thread."""
        try:
            self._loop.call_soon_threadsafe(self._proven, session_id)
        except RuntimeError:  # our own loop has closed
            return

    def _proven(self, session_id: str) -> None:
        if not self._closed:
            self.worker.spawn(self._recover(session_id))

    async def _recover(self, session_id: str) -> None:
        scanner: CapacityScanner | None = self.worker.dispatcher.scanner
        if scanner is not None:
            log.warning("session %s is dead (its process is gone): recovering what it held", session_id)
            await scanner.session_died(session_id)
        self.worker.dispatcher.wake()

    def _start_heartbeat(self) -> Heartbeat:
        worker = self.worker
        heartbeat = Heartbeat(
            worker.store,
            self.row.session_id,
            worker.settings,
            self._held,
            worker.verdicts,
            worker.cut_off,
            self._forgotten,
        )
        heartbeat.start()
        return heartbeat

    def _held(self) -> tuple[list[Held], int]:
        worker = self.worker
        held = [
            (run_id, segment.head.execution_seq, segment.token_hash, segment.executing)
            for run_id, segment in list(worker.segments.items())
        ]
        return held, max(0, worker.free)

    def _forgotten(self) -> None:
        """The session is gone from the database: somebody took this worker for dead. Register anew."""
        if self._closed:
            return
        log.warning(
            "session %s was removed; giving up what it held and registering anew", self.row.session_id
        )
        self.worker.cut_off()
        self.worker.spawn(self._reopen())

    async def _reopen(self) -> None:
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        if self._lock is not None:
            self._lock.release()
        self.row = self._new_row()
        await self.open()
        self.worker.dispatcher.wake()
