"""The dispatcher: decides when a worker looks for work, and what it takes.

It looks when it is told (a start in this process, a datagram or a notification from another one, a freed slot), when
something becomes due, and every two seconds as a fallback for what was never told. A saturated worker does not ask:
nothing is taken before a slot can execute it, so no lease or reservation runs down while its run waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from ironflow.loops.capacity_scanner import CapacityScanner
from ironflow.loops.driver import Driver, Loop, Report
from ironflow.loops.stale_claims import StaleClaims
from ironflow.loops.waker import Waker
from ironflow.model.capacity import RunHead

if TYPE_CHECKING:
    from ironflow.worker.embedded import Worker

log = logging.getLogger("ironflow.worker")

#: Found only by polling if every notification was lost, seconds.
POLL = 2.0
#: A loop that never sleeps would starve the bodies it shares a thread with, seconds.
FLOOR = 0.001


#: How often the other sessions are read again; new ones announce themselves, so this finds what was lost.
LOOK_AROUND_MS = 1_000


class Neighbours:
    """Keeps the view of the other sessions current; see `Session.look_around`."""

    name = "neighbours"

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    async def run_once(self) -> Report:
        """Look once."""
        await self.worker.session.look_around()
        return Report()


class Dispatcher:
    """See the module's docstring. It also drives the loops of this engine node."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.scanner = CapacityScanner(worker.store, worker.settings, time.monotonic)
        settings, node = worker.settings, worker.session.row.session_id
        loops: list[tuple[Loop, int]] = [
            (self.scanner, settings.recovery_interval_ms),
            (StaleClaims(worker.store, settings), settings.stale_claim_recovery_interval_ms),
            (Waker(worker.store, node), settings.waker_interval_ms),
            (Neighbours(worker), LOOK_AROUND_MS),
        ]
        self.drivers = [Driver(loop, interval) for loop, interval in loops]
        #: the last look found as much as it asked for: there may be more
        self.backlog = False
        self._due: int | None = 0
        self._kick = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take runs and drive the loops."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name="ironflow-dispatcher")
        for driver in self.drivers:
            driver.start()

    async def stop(self) -> None:
        """Take nothing more; a round under way is finished, so that no activation is left half done."""
        task, self._task = self._task, None
        self._kick.set()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
        for driver in self.drivers:
            await driver.stop()

    def wake(self) -> None:
        """Something may be there to take."""
        self._kick.set()

    def slot_free(self) -> None:
        """A slot became free; that is news only if there was more than fitted."""
        if self.backlog:
            self._kick.set()

    def expect(self, due: int) -> None:
        """Something will be due at this time, ms."""
        if self._due is None or due < self._due:
            self._due = due
            self._kick.set()

    async def _run(self) -> None:
        while self._task is not None:
            self._kick.clear()
            try:
                again = await self._round()
            except Exception:
                log.exception("a look for work failed; the next one follows in %s s", POLL)
                again = False
            if again and self._task is not None:
                await asyncio.sleep(FLOOR if self.worker.free <= 0 else 0)
                continue
            await self._sleep()

    async def _round(self) -> bool:
        """One look. Returns whether another should follow at once."""
        worker, store = self.worker, self.worker.store
        free = worker.free
        if free <= 0:
            self.backlog = True
            return False
        heads: list[RunHead] = []
        due_now = self._due is not None and self._due <= store.now()
        if due_now:
            await store.promote()
            heads = await store.due(free, worker.session.routes)
        # Half of the slots stay with the queue, so that many timers due at once do not keep new runs from starting.
        room = max(free - len(heads), (free + 1) // 2)
        queued = await self._claim(room)
        heads = heads[: free - len(queued)] + queued
        self.backlog = len(heads) >= free
        if heads:
            await worker.take(heads)
        if due_now:
            self._due = await store.next_due()
        return self.backlog

    async def _claim(self, limit: int) -> list[RunHead]:
        worker = self.worker
        routes = worker.session.routes
        if not worker.session.peers:
            return await worker.store.peek(routes, limit)
        settings = worker.settings
        return await worker.store.reserve(
            routes, limit, worker.session.row.session_id, settings.reservation_ttl_ms
        )

    async def _sleep(self) -> None:
        wait = POLL
        if self._due is not None and self.worker.free > 0:
            wait = min(POLL, max(FLOOR, (self._due - self.worker.store.now()) / 1000))
        try:
            await asyncio.wait_for(self._kick.wait(), wait)
        except TimeoutError:
            if wait >= POLL:
                self._due = 0  # what another process put to sleep was never told here
