"""A node: the loops that every member of the cluster runs, and the place where whatever happened is passed on.

It holds no truth. A start, a freed place, a recovery or a due timer is written to the database first; then the node
wakes its own hub and tells the others. What such a word would have told, each finds by itself within two seconds.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterable

from ironflow.config import Settings
from ironflow.loops.alarm import Alarm
from ironflow.loops.capacity_scanner import CapacityScanner
from ironflow.loops.driver import Driver, Loop, Report
from ironflow.loops.retention import INTERVAL_MS, Retention
from ironflow.loops.stale_claims import StaleClaims
from ironflow.loops.telling import LOOK_AROUND_MS, Neighbours, Telling
from ironflow.loops.waker import Waker
from ironflow.model.run import RunRow
from ironflow.observe.observation import Observation
from ironflow.server.hearts import Hearts
from ironflow.server.hub import Hub
from ironflow.server.liveness import Streams
from ironflow.server.sessions import Known, Sessions, unknown
from ironflow.server.turns import Turns
from ironflow.store.base import Store

#: A loop counts as alive if it made a pass within so many of its intervals, and within this time at least, seconds.
ALIVE_INTERVALS, ALIVE_S = 3, 10.0

#: How far the clock read here and the one of the database may differ, ms.
CLOCKS_APART_MS = 20

#: Told which runs have new events.
Reader = Callable[[Collection[str]], None]


class Node:
    """See the module's docstring. Make it in the loop in which it works.

    Args:
        store: the database; the node listens on it, so it is not shared with a worker.
        settings: intervals and times to live, of the workers too.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self.sessions = Sessions(store)
        self.hub = Hub(store, settings)
        self.hearts = Hearts(store)
        self.turns = Turns()
        self.streams = Streams(store, self.hearts.settled, self.hub.handed.whose)
        self.scanner = CapacityScanner(store, settings, time.monotonic)
        #: where this node hears others, for those who tell by address
        self.wake_address: str | None = None
        self.stopping = False
        #: by what this node is watched
        self.observation: Observation | None = None
        self._readers: list[Reader] = []
        self._passes: list[Telling] = []
        self._drivers: list[Driver] = []
        self._scanning = self._drive(self.scanner, settings.recovery_interval_ms, self._recovered)
        #: what it calls itself in its claims
        self.name = f"node-{secrets.token_hex(6)}"
        waker = Waker(store, self.name)
        waking = self._drive(waker, settings.waker_interval_ms, lambda report: self.hub.told())
        self.alarm = Alarm(store, waking, settings.waker_interval_ms)
        reset = settings.stale_claim_recovery_interval_ms
        self._drive(StaleClaims(store, settings), reset, lambda report: self.alarm.expect(0))
        self._looking = self._drive(Neighbours(self.look_around), LOOK_AROUND_MS, lambda report: None)
        if settings.run_retention_ms is not None:
            self._drive(Retention(store, settings.run_retention_ms), INTERVAL_MS, self._deleted)
        self._started_at = time.monotonic()

    def _drive(self, loop: Loop, interval_ms: int, found: Callable[[Report], None]) -> Driver:
        passes = Telling(loop, found)
        self._passes.append(passes)
        driver = Driver(passes, interval_ms)
        self._drivers.append(driver)
        return driver

    # ---- life

    async def start(self) -> None:
        """Listen, and begin to drive the loops and to hand out work."""
        self.wake_address = await self.store.listen(self._heard, self.name)
        await self.sessions.refresh()
        self._started_at = time.monotonic()
        self.hub.start()
        for driver in self._drivers:
            driver.start()
        self.alarm.start()

    def refuse(self) -> None:
        """The node is about to stop: held polls are answered now, streams end, and nothing new is handed out."""
        self.stopping = True
        self.hub.refuse()
        self.streams.close_all()

    async def stop(self) -> None:
        """End what this node does; the store is its owner's to close. A second call does nothing."""
        self.refuse()
        await self.alarm.stop()
        await asyncio.gather(*(driver.stop() for driver in self._drivers))
        await self.hub.stop()
        await self.streams.stop()
        await self.hearts.close()

    def silent_loops(self) -> list[str]:
        """The loops that made no pass for longer than they may; none where all is well."""
        now, silent = time.monotonic(), []
        for loop, driver in zip(self._passes, self._drivers, strict=True):
            allowed = max(ALIVE_S, ALIVE_INTERVALS * driver.interval_s)
            if now - (loop.at if loop.at is not None else self._started_at) > allowed:
                silent.append(loop.name)
        return silent

    # ---- what happened here: told to this node first, then to the others

    def started(self, row: RunRow, traceparent: str | None = None) -> None:
        """A run was created in the queue; `traceparent`: where its caller was, see `Observer.created`."""
        if self.observation is not None and self.observation.observer is not None:
            self.observation.observer.created(row, traceparent)
        if row.scheduled_at is not None and row.scheduled_at > self.store.now():
            self.alarm.expect(row.scheduled_at)
            return
        self.hub.started(row.route)
        self.tell("queue")

    def queued(self) -> None:
        """Runs came back into the queue."""
        self.hub.told()
        self.tell("queue")

    def left(self, run_id: str) -> None:
        """A worker gave this run's slot back; with that, a place in its lanes may be free for somebody else's run."""
        if run_id in self.hub.limited:
            del self.hub.limited[run_id]
            self.hub.wake()
            self.tell("queue")

    def recover_soon(self) -> None:
        """Leases have just expired: look now and not at the next interval."""
        self._scanning.kick()

    def due(self, at: int) -> None:
        """Something will want attention at this time, ms."""
        self.alarm.expect(at)

    def changed(self, run_id: str) -> None:
        """Somebody changed this run from outside, and the store has told the other processes: tell our own workers."""
        self.streams.check(run_id)
        self.touched((run_id,))
        self.hub.told()
        self.alarm.expect(0)

    def touched(self, run_ids: Collection[str]) -> None:
        """These journals grew: whoever follows them through this node may look."""
        for reader in self._readers:
            reader(run_ids)

    def follow(self, reader: Reader) -> None:
        """Tell this reader whenever journals grew here."""
        self._readers.append(reader)

    def tell(self, topic: str) -> None:
        """Tell the other processes."""
        self.store.notify(topic, self.sessions.rows)

    # ---- what others say

    def _heard(self, topic: str) -> None:
        if topic == "sessions":
            self._looking.kick()
        elif topic.startswith("run:"):
            run_id = topic[4:]
            self.streams.check(run_id)
            self.touched((run_id,))
        else:
            self.hub.told()
            self.alarm.expect(0)

    def _recovered(self, report: Report) -> None:
        self.hub.told()
        self.touched(report.run_ids)
        if report.counts.keys() & {"sessions", "suspects"}:
            self._looking.kick()

    def _deleted(self, report: Report) -> None:
        if self.observation is not None and self.observation.observer is not None:
            self.observation.observer.deleted(report.counts.get("runs", 0))

    async def look_around(self) -> None:
        """Read the sessions again; what is gone is told so, and what is to leave as well.

        What is held open by a key that counts no more ends.
        """
        await self.sessions.refresh()
        self._expect_suspects()
        now = {row.session_id: row for row in self.sessions.rows}
        self.drop({*self.hub.sessions, *self.streams.sessions} - now.keys())
        for session_id in self.streams.sessions:
            row = now.get(session_id)
            if row is not None and row.draining:
                self.streams.drain(session_id)
        await self.hub.end_revoked()
        await self.streams.end_revoked()

    def _expect_suspects(self) -> None:
        """Recover what those held who were cut off and stay away, when their time is up and not an interval later."""
        now = self.store.now()
        for since in {row.suspect_since for row in self.sessions.rows if row.suspect_since is not None}:
            at = self.scanner.suspect_at(since)
            if at is not None and 0 <= at - now < LOOK_AROUND_MS:
                asyncio.get_running_loop().call_later((at - now + CLOCKS_APART_MS) / 1000, self._scanning.kick)

    async def moved_here(self, session: Known) -> None:
        """A worker has opened its stream here: who tells by address is to tell this node from now on.

        Raises:
            SessionUnknown: it was removed since this node looked last.
        """
        session_id = session.row.session_id
        if self.wake_address in (None, session.row.wake_address):
            return
        row = await self.store.move_session(session_id, self.wake_address, self.settings.session_ttl_ms)
        if row is None:
            self.sessions.forget(session_id)
            self.drop([session_id])
            raise unknown(session_id)
        self.sessions.add(row)

    def drop(self, session_ids: Iterable[str]) -> None:
        """Sessions that are gone: answer what they hold open."""
        session_ids = list(session_ids)
        self.hub.forget(session_ids)
        for session_id in session_ids:
            self.streams.close(session_id)
