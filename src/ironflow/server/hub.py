"""The hub: matches the polls that workers hold open with what the queue has for them.

It looks when it is told: a start here, a notification from elsewhere, a place that became free, a recovered run, a new
poll; and every two seconds for what was never told. One matcher does all of it, so polls cannot race each other, and
those with equal routes are asked for once.

Fair among sessions: what is there is shared out between those that wait for the same routes, the longest-waiting first,
and a worker that was given something stands behind the others when it asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from ironflow.config import Settings
from ironflow.errors import OUTAGES, IronflowError, ServerStopping, SessionUnknown, StoreUnreachable, Unauthenticated
from ironflow.loops.driver import Outage
from ironflow.model.capacity import RunHead
from ironflow.model.journal import Event
from ironflow.model.routing import Serves
from ironflow.server.ends import Ends
from ironflow.server.handed import Handed
from ironflow.server.sessions import Known
from ironflow.store.base import Store
from ironflow.tasks import begin

log = logging.getLogger("ironflow.server")

#: Found only by looking if every notification was lost, seconds.
LOOK_S: Final = 2.0
#: After a look that failed, seconds.
AFTER_FAILURE_S: Final = 0.5
#: How much longer than asked for a poll may be held by a look that takes its time, seconds.
LATE_S: Final = 1.0
#: How long a look that is under way may take once the node leaves, seconds.
LAST_LOOK_S: Final = 0.3
#: Kinds of workers whose routes are remembered at most.
MOST_KINDS: Final = 1_000
#: Runs with lanes that are remembered at most; the end of one that was forgotten is found by looking.
MOST_REMEMBERED: Final = 100_000

#: A run that is handed out, and its journal.
Assignment = tuple[RunHead, list[Event]]

#: Whether the key of whoever asked still counts.
Counts = Callable[[], Awaitable[bool]]


async def _always() -> bool:
    return True


class Poll:
    """One request for work that is held open."""

    __slots__ = ("answer", "asked", "counts", "credits", "due", "routes", "session")

    def __init__(self, session: Known, credits: int, answer: asyncio.Future[list[Assignment]], counts: Counts) -> None:
        self.session = session
        self.credits = credits
        self.answer = answer
        self.counts = counts
        self.routes: tuple[str, ...] = ()
        #: whether the queue was looked at for it
        self.asked = False
        #: its time is up: answered after the look that is under way, if there is one
        self.due = False


class Hub:
    """See the module's docstring.

    Args:
        store: the database.
        settings: how long a reservation lasts.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        #: the held polls in the order in which they are served
        self._line: list[Poll] = []
        #: routes seen in the queue: a start may ask for tags beyond its workflow's own
        self._seen: frozenset[str] = frozenset()
        #: those of runs that this node has queued since it read the routes last
        self._meanwhile: set[str] = set()
        self._routes: dict[Serves, tuple[str, ...]] = {}
        #: what was handed out here, and to whom
        self.handed = Handed(store)
        #: how far the journals go that were handed out here, and those that workers write through this node
        self.ends = Ends()
        #: runs handed out here that count in lanes, in the order of handing out: their end lets others through
        self.limited: dict[str, None] = {}
        self._kick = asyncio.Event()
        #: everybody is to be looked at again, and not only those who are new
        self._woken = False
        #: something may be there of a route that was not seen yet
        self._told = True
        self._matching = False
        self._stopping = False
        self._outage = Outage(log, "a look for work")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to match, in a task of the running loop."""
        self._task = begin(self._run(), name="ironflow-hub")

    def refuse(self) -> None:
        """Hand out nothing more: every held poll is answered now, with nothing. New ones are refused."""
        self._stopping = True
        self._kick.set()
        # Those for whom a look is under way, too: it may wait for a database that is away; what it finds goes back.
        for poll in list(self._line):
            self._settle(poll, [])

    async def stop(self) -> None:
        """End the matcher. A look that is under way is finished first, so that what it reserved reaches somebody."""
        self.refuse()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait({task}, timeout=LAST_LOOK_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # ---- what it is told

    def wake(self) -> None:
        """Something may be there for a worker."""
        self._woken = True
        self._kick.set()

    def told(self) -> None:
        """Something may be there, perhaps of a route that was not seen before."""
        self._told = True
        self.wake()

    def started(self, route: str) -> None:
        """A run of this route was queued by this node."""
        self._meanwhile.add(route)
        if route not in self._seen:
            self._see(self._seen | {route})
        self.wake()

    @property
    def waiting(self) -> int:
        """How many polls are held."""
        return len(self._line)

    @property
    def sessions(self) -> set[str]:
        """Whose polls are held."""
        return {poll.session.row.session_id for poll in self._line}

    def forget(self, session_ids: Iterable[str]) -> None:
        """Sessions that are gone: their polls are answered so."""
        gone = set(session_ids)
        for poll in [one for one in self._line if one.session.row.session_id in gone]:
            self._settle(poll, SessionUnknown())

    async def end_revoked(self) -> None:
        """Refuse the polls whose keys count no more."""
        for poll in list(self._line):
            if not await poll.counts():
                self._settle(poll, Unauthenticated())

    # ---- polls

    async def poll(self, session: Known, credits: int, wait_s: float, counts: Counts = _always) -> list[Assignment]:
        """Up to so many runs for a session, as soon as there are any; none when the time is up.

        Args:
            session: who asks.
            credits: how many at most.
            wait_s: how long to wait for the first, seconds.
            counts: whether the asker's key still counts; asked again before anything is handed out.

        Raises:
            SessionUnknown: the session was removed meanwhile.
            Unauthenticated: the asker's key was revoked meanwhile, or has expired.
            ServerStopping: this node takes no polls any more.
            StoreUnreachable: the time is up and the database could not be asked.
        """
        if self._stopping:
            raise ServerStopping()
        if credits <= 0:
            return []
        loop = asyncio.get_running_loop()
        poll = Poll(session, credits, loop.create_future(), counts)
        # A worker has one poll at a time. An older one is of a connection that broke; it must not take what comes now.
        for older in [one for one in self._line if one.session.row.session_id == session.row.session_id]:
            self._settle(older, [])
        self._line.append(poll)
        self._kick.set()
        timer = loop.call_later(wait_s, self._time_is_up, poll)
        try:
            return await poll.answer
        finally:
            timer.cancel()
            if poll in self._line:
                self._line.remove(poll)

    def _time_is_up(self, poll: Poll) -> None:
        poll.due = True
        if poll.asked and not self._matching:
            self._settle(poll, [])
            return
        # A look is under way, or the first one for it is about to begin, and may find something. Not for ever: the
        # database may be away, or the looks fail.
        asyncio.get_running_loop().call_later(LATE_S, self._too_late, poll)

    def _too_late(self, poll: Poll) -> None:
        """No look was in time for it. That nothing is there is said only where the queue was looked at once."""
        self._settle(poll, [] if poll.asked else StoreUnreachable("the queue could not be looked at in time"))

    def _settle(self, poll: Poll, result: list[Assignment] | IronflowError) -> bool:
        """Answer a poll. Returns whether there was anybody left to hear it."""
        if poll in self._line:
            self._line.remove(poll)
        if poll.answer.done():
            return False
        if isinstance(result, IronflowError):
            poll.answer.set_exception(result)
        else:
            poll.answer.set_result(result)
        return True

    # ---- the matcher

    async def _run(self) -> None:
        while not self._stopping:
            self._kick.clear()
            self._matching = True
            failed = True
            try:
                await self._look()
                failed = False
            except OUTAGES as error:
                self._outage.met(error)
                self._answer_due(error)
            except Exception:
                log.exception("a look for work failed; the next one follows in %s s", AFTER_FAILURE_S)
            finally:
                self._matching = False
            self._answer_due()
            await self._sleep(failed=failed)

    async def _sleep(self, *, failed: bool) -> None:
        if failed:
            self._told = True  # what was said meanwhile has not been looked for
            await asyncio.sleep(AFTER_FAILURE_S)  # a kick does not bring a database back
            self._woken = True
            return
        try:
            async with asyncio.timeout(LOOK_S):
                await self._kick.wait()
        except TimeoutError:
            self._woken = self._told = True

    def _answer_due(self, error: IronflowError | None = None) -> None:
        for poll in [one for one in self._line if one.due and (one.asked or error is not None)]:
            self._settle(poll, error if error is not None else [])

    async def _look(self) -> None:
        woken, self._woken = self._woken, False
        polls = [poll for poll in self._line if woken or not poll.asked]
        if not polls:
            return
        for poll in polls:
            poll.routes = self._routes_of(poll.session)
        left = await self._share_out(polls)
        if any(poll.routes for poll in polls):
            self._outage.over()  # not after any look: one for nobody asks nothing
        if left and self._told:
            # Only now: what can be had without asking which routes there are is handed out without it.
            self._told, self._meanwhile = False, set()
            found = await self._store.queue_routes()
            # With what was queued here since it was asked: the answer may be older.
            self._see(frozenset(self._meanwhile.union(found)))
            grown = [poll for poll in left if self._routes_of(poll.session) != poll.routes]
            for poll in grown:
                poll.routes = self._routes_of(poll.session)
            if grown:
                await self._share_out(grown)

    def _see(self, routes: frozenset[str]) -> None:
        if routes != self._seen:
            self._seen = routes
            self._routes.clear()

    def _routes_of(self, session: Known) -> tuple[str, ...]:
        """What it serves by itself, and what of the queue it can take besides. Equal for equal workers."""
        if session.row.draining:
            return ()
        serves = session.serves
        found = self._routes.get(serves)
        if found is None:
            if len(self._routes) > MOST_KINDS:  # of workers, most of which are gone by now
                self._routes.clear()
            own = serves.routes()
            found = tuple(own + sorted(route for route in self._seen.difference(own) if serves.can_take(route)))
            self._routes[serves] = found
        return found

    async def _share_out(self, polls: Sequence[Poll]) -> list[Poll]:
        """One look for these polls. Returns those that got nothing."""
        groups: dict[tuple[str, ...], list[Poll]] = {}
        for poll in polls:
            groups.setdefault(poll.routes, []).append(poll)
        groups.pop((), None)
        taken: dict[Poll, list[RunHead]] = {}
        try:
            ready, all_seen = await self._ready(groups)
            for routes, group in groups.items():
                found = sum(ready.get(route, 0) for route in routes)
                if all_seen and not found:
                    continue
                # At least one each: more may have come since the look.
                share = max(1, -(-found // len(group))) if ready else max(poll.credits for poll in group)
                for poll in group:
                    if poll.answer.done():
                        continue
                    heads = await self._reserve(poll, min(poll.credits, share))
                    if heads:
                        taken[poll] = heads
                    else:
                        break  # nothing is left for whoever stands behind
        finally:
            await self._hand_out(taken)
        for poll in polls:
            poll.asked = True
        return [poll for poll in polls if poll not in taken]

    async def _ready(self, groups: dict[tuple[str, ...], list[Poll]]) -> tuple[dict[str, int], bool]:
        """How much is there of each route, and whether that is all of it.

        A lone poll that has just come is not worth this question: a worker under load asks when there is work.
        """
        polls = [poll for group in groups.values() for poll in group]
        if not polls or (len(polls) == 1 and not polls[0].asked):
            return {}, False
        wanted = sum(poll.credits for poll in polls)
        heads = await self._store.peek(sorted({route for routes in groups for route in routes}), wanted)
        ready: dict[str, int] = {}
        for head in heads:
            ready[head.route] = ready.get(head.route, 0) + 1
        return ready, len(heads) < wanted

    async def _reserve(self, poll: Poll, most: int) -> list[RunHead]:
        session_id = poll.session.row.session_id
        return await self._store.reserve(poll.routes, most, session_id, self._settings.reservation_ttl_ms)

    async def _hand_out(self, taken: dict[Poll, list[RunHead]]) -> None:
        """Answer with journals; whoever has gone meanwhile gets nothing, and what was kept for it goes back.

        So does what was kept for one whose key was revoked while it waited.
        """
        if not taken:
            return
        wanted = [head.run_id for heads in taken.values() for head in heads]
        journals, revoked = await asyncio.gather(self._store.journals(wanted), _revoked(taken))
        back: list[tuple[str, str]] = []
        for poll, heads in taken.items():
            if poll in revoked:
                self._settle(poll, Unauthenticated())
            elif self._settle(poll, [(head, journals[head.run_id]) for head in heads]):
                self._remember(heads)
                self.handed.note(poll.session.row.session_id, heads)
                for head in heads:
                    self.ends.handed(head, journals[head.run_id])
                continue
            back += [(head.run_id, head.reservation) for head in heads if head.reservation is not None]
        if back:
            await self._store.unreserve(back)
            self.wake()

    def _remember(self, heads: Sequence[RunHead]) -> None:
        for head in heads:
            if head.limits is not None:
                self.limited[head.run_id] = None
                if len(self.limited) > MOST_REMEMBERED:
                    del self.limited[next(iter(self.limited))]


async def _revoked(polls: Iterable[Poll]) -> set[Poll]:
    """Those whose keys count no more. One after the other: of those with one key, only the first may have to ask."""
    return {poll for poll in polls if not await poll.counts()}
