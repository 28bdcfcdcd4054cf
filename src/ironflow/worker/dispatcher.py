"""The dispatcher: decides when a worker looks for work, and what it takes.

It looks when it is told (a start in this process, a datagram or a notification from another one, a freed slot), when
something becomes due, and every two seconds as a fallback for what was never told. A saturated worker does not ask:
nothing is taken before a slot can execute it, so no lease or reservation runs down while its run waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar, cast

from ironflow.errors import OUTAGES
from ironflow.loops.capacity_scanner import CapacityScanner
from ironflow.loops.driver import Driver, Outage, Report
from ironflow.loops.next_due import NextDue
from ironflow.loops.retention import INTERVAL_MS, Retention
from ironflow.loops.stale_claims import StaleClaims
from ironflow.loops.telling import LOOK_AROUND_MS, Neighbours, Telling
from ironflow.loops.waker import Waker
from ironflow.model import run as runs
from ironflow.model.capacity import RunHead
from ironflow.tasks import Standing
from ironflow.worker.door import head_of
from ironflow.worker.entering import Entering
from ironflow.worker.store_session import StoreSession

if TYPE_CHECKING:
    from ironflow.store.base import Store
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")

A = TypeVar("A")
B = TypeVar("B")

#: Found only by polling if every notification was lost, seconds.
POLL_S = 2.0
#: A loop that never sleeps would starve the bodies it shares a thread with, seconds.
FLOOR_S = 0.001
#: After a look that the database did not answer, at the least, seconds: what is due then stays so.
AFTER_OUTAGE_S = 0.1
#: How far the clock read here and the one of the database may differ, ms.
CLOCKS_APART_MS = 20
#: While one timer after the other becomes due and nobody tells of the queue, it is looked at so often, ms: it takes two
#: statements, each as dear as the one that finds the timers.
QUEUE_AGAIN_MS = 20
#: How long a look for timers waits for those that enter before it is made all the same, seconds.
AHEAD_S = 0.003
#: After what is due was left to the waker: when to look at the due times again, ms.
DUE_AGAIN_MS = 100


class Dispatcher:
    """See the module's docstring. It also drives the loops of this engine node."""

    def __init__(self, worker: Worker, store: Store, scanner: CapacityScanner) -> None:
        self.worker = worker
        assert isinstance(worker.session, StoreSession)
        self.session = session = worker.session
        self.store = store
        self.scanner = scanner
        settings, node = worker.settings, session.node
        waker = Telling(Waker(store, node, lambda: self._draining), lambda report: self.wake())
        self.waker = Driver(waker, settings.waker_interval_ms)
        stale_claims = Telling(StaleClaims(store, settings), lambda report: self.expect(0))
        self.drivers = [
            Driver(Telling(self.scanner, lambda report: self.wake()), settings.recovery_interval_ms),
            Driver(stale_claims, settings.stale_claim_recovery_interval_ms),
            self.waker,
            Driver(Neighbours(self._look_around), LOOK_AROUND_MS),
        ]
        if settings.run_retention_ms is not None:
            retention = Telling(Retention(store, settings.run_retention_ms), self._deleted)
            self.drivers.append(Driver(retention, INTERVAL_MS))
        #: the last look found as much as it asked for: there may be more
        self.backlog = False
        self._next = NextDue()
        #: the last page of what is due was full, and some of it entered
        self._draining = False
        self._entering = Entering(worker.take)
        #: when the queue was looked at last, ms
        self._looked = 0
        #: somebody else said that there is work; its route may be one that this worker has not seen yet
        self._told = False
        #: a suspect was seen: only a reservation lets it start elsewhere without somebody else taking it meanwhile
        self._reserving = False
        self._outage = Outage(log, "a look for work")
        self._kick = asyncio.Event()
        self._standing = Standing(self._run, "ironflow-dispatcher", log)

    def start(self) -> None:
        """Begin to take runs and drive the loops."""
        self._standing.start()
        for driver in self.drivers:
            driver.start()

    async def stop(self, patience: float) -> None:
        """Take nothing more; a round under way is finished, so that no activation is left half done.

        Args:
            patience: how long that may take, seconds. A round that waits for a database that is away is given up: what
                it may have taken expires by itself.
        """
        until = asyncio.get_running_loop().time() + patience
        self._standing.dismiss()
        self._kick.set()
        await asyncio.gather(*(driver.stop() for driver in self.drivers))
        for part in (self._standing, self._entering, self.worker.door):
            await part.stop(max(0.0, until - asyncio.get_running_loop().time()))

    def wake(self) -> None:
        """Something may be there to take."""
        self._kick.set()

    def told(self) -> None:
        """Another process says that something may be there to take."""
        self._told = True
        self._kick.set()

    def slot_free(self) -> None:
        """A slot became free; that is news only if there was more than fitted."""
        if self.backlog:
            self._kick.set()

    def expect(self, due: int) -> None:
        """Something will be due at this time, ms."""
        if self._next.told(due):
            self._kick.set()

    def _deleted(self, report: Report) -> None:
        if self.worker.observer is not None:
            self.worker.observer.deleted(report.counts.get("runs", 0))

    async def _look_around(self) -> None:
        if self.session.registered:
            await self.session.look_around()

    async def _run(self) -> None:
        while self._standing.wanted:
            kicked = self._kick.is_set()
            self._kick.clear()
            again, least_s = False, FLOOR_S
            try:
                again = await self._round(kicked)
            except OUTAGES as error:
                self._outage.met(error)
                least_s = AFTER_OUTAGE_S
            except Exception:
                log.exception("a look for work failed; the next one follows in %s s", POLL_S)
                least_s = POLL_S
            if again and self._standing.wanted:
                await asyncio.sleep(FLOOR_S if self.worker.free <= 0 else 0)
                continue
            await self._sleep(least_s)

    async def _round(self, kicked: bool) -> bool:
        """One look. `kicked`: somebody told of work. Returns whether another should follow at once."""
        worker, store = self.worker, self.store
        free = worker.free
        if free <= 0:
            self.backlog = True
            return False
        if worker.own is not None:
            heads = await self._own(worker.own)
            if worker.own:
                self._outage.over()
            await worker.take(heads[:free])
            return False
        due: list[RunHead] = []
        all_in = True
        asked = store.now()
        due_now = self._next.at is not None and self._next.at <= asked
        if due_now:
            due = await self._look_for_due(free)
            if await self._enters_ahead(due, asked, kicked):
                return True
            all_in, free = await self._entering.all_in(), worker.free
        # Half of the slots stay with the queue, so that many timers due at once do not keep new runs from starting. The
        # other half is for whatever is due, and that does not wait for the look at the queue.
        room = max(free - len(due), (free + 1) // 2)
        at_once, later = self._split(due, free // 2)
        entered, queued = await _both(worker.take(at_once), self._look_at_queue(room, promote=due_now))
        self._outage.over()  # here, and not after any round: one without a free slot asks nothing
        heads, apart = await self._set_apart(later[: free - len(at_once) - len(queued)] + queued)
        # The door lets in no more than fit: starts in this process may have taken slots since they were counted above.
        self.backlog = len(at_once) + len(heads) + apart >= free or len(heads) >= worker.free
        if heads:
            entered += await worker.take(heads)
        # A page that was full has more behind it, and is left to nobody while some of it enters.
        self._draining = len(due) >= free and entered > 0
        if due_now and not self._draining and not (due and entered >= len(due) and all_in):
            await self._look_at_due(asked)
            due_now = False
        # Where all that was due has entered, more may have become due meanwhile: a look costs no more than asking when.
        return due_now or self.backlog or (self._reserving and not apart)

    async def _look_for_due(self, free: int) -> list[RunHead]:
        """What is due and not on its way in, at most as many as there are slots."""
        worker = self.worker
        found = await self.store.due(free + len(worker.taking), self.session.routes)
        here = worker.taking | worker.segments.keys()
        return [head for head in found if head.run_id not in here][:free]

    async def _enters_ahead(self, due: list[RunHead], asked: int, kicked: bool) -> bool:
        """Let a few timers enter without waiting for them, as long as nothing but timers is to be looked at.

        Returns whether that is how it is; else everything is to be looked at, and what is due is still to be taken.
        """
        if kicked or self.backlog or self._entering.short or asked - self._looked >= QUEUE_AGAIN_MS:
            return False
        if len(due) > self.worker.free // 2 or any(map(self.worker.isolation.wanted, due)):
            return False
        if due:
            self._entering.start(due)
        elif not self._entering:
            return False
        await self._entering.some(AHEAD_S)
        return True

    def _split(self, due: list[RunHead], most: int) -> tuple[list[RunHead], list[RunHead]]:
        """Up to so many that may enter right now, and the others. Suspects are for `_set_apart`."""
        wanted = self.worker.isolation.wanted
        return [h for h in due[:most] if not wanted(h)], [h for h in due[:most] if wanted(h)] + due[most:]

    async def _look_at_queue(self, room: int, *, promote: bool) -> list[RunHead]:
        self._looked = self.store.now()
        if promote:
            await self.store.promote()
        queued = await self._claim(room)
        if self._told and not queued:
            self._told = False
            if await self.session.find_routes():
                queued = await self._claim(room)
        return queued

    async def _own(self, run_ids: set[str]) -> list[RunHead]:
        """Which of these runs can be taken now. When the next of them can, is what the dispatcher waits for."""
        store, heads = self.store, []
        soonest: int | None = None
        resting = False
        self._next.asks()
        for run_id in sorted(run_ids):
            found = await store.holdings(run_id)
            if found is None or not self.session.can_take(found.row.route):
                continue
            resting = resting or found.lease is None
            times = [wait.due_at for wait in found.waits if wait.due_at is not None]
            if found.row.state not in runs.SUSPENDED:
                times = [found.queue.eligible_at] if found.queue is not None else []
            if times and min(times) <= store.now():
                heads.append(head_of(found.row))
            elif times:
                soonest = min(times) if soonest is None else min(soonest, *times)
        self._next.answered(soonest)
        if resting:  # a run that never rests is spared this commit
            self.session.keep_own(run_ids)
        return heads

    async def _look_at_due(self, asked: int) -> None:
        self._next.asks()
        due = await self.store.next_due()
        # Only what was due when this round asked was not offered; what became due since, the next round takes at once.
        if due is not None and due < asked - CLOCKS_APART_MS and not self.backlog:
            # It is due and was not offered: another worker's, or in a lane, or of a paused workflow, or a suspect. All
            # of these go through the queue, and the waker puts them there.
            self.waker.kick()
            due = self.store.now() + DUE_AGAIN_MS
        self._next.answered(due)

    async def _claim(self, limit: int) -> list[RunHead]:
        worker = self.worker
        routes = self.session.routes
        if not self.session.peers and not self._reserving:
            return await self.store.peek(routes, limit)
        settings = worker.settings
        return await self.store.reserve(routes, limit, self.session.row.session_id, settings.reservation_ttl_ms)

    async def _set_apart(self, heads: list[RunHead]) -> tuple[list[RunHead], int]:
        """Send the suspects to processes of their own. Returns the others, and how many suspects were sent."""
        isolation = self.worker.isolation
        plain = [head for head in heads if not isolation.wanted(head)]
        if len(plain) == len(heads):
            self._reserving = False
            return plain, 0
        sent = 0
        back: list[tuple[str, str]] = []
        found, self._reserving = self._reserving, True
        for head in heads:
            if head.reservation is None or not isolation.wanted(head):
                continue
            if isolation.has_room(head):
                isolation.start(head)
                sent += 1
            else:
                back.append((head.run_id, head.reservation))
        if back:
            await self.store.unreserve(back)
        if found and not sent:
            self._reserving = False  # none can start now; the end of a child process is what wakes the next look
        return plain, sent

    async def _sleep(self, least_s: float) -> None:
        wait = POLL_S
        if self._next.at is not None and self.worker.free > 0:
            wait = min(POLL_S, max(least_s, (self._next.at - self.store.now()) / 1000))
        try:
            await asyncio.wait_for(self._kick.wait(), wait)
        except TimeoutError:
            if wait >= POLL_S:
                self._next.told(0)  # what another process put to sleep was never told here
                self._told = True  # nor was a run of a route that this worker has not seen


async def _both(one: Awaitable[A], other: Awaitable[B]) -> tuple[A, B]:
    """Both results. An error of one is raised when the other has ended, too: neither is left half done."""
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    for result in (first, second):
        if isinstance(result, BaseException):
            raise result
    return cast(tuple[A, B], (first, second))
