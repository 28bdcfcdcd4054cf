"""The worker: takes runs, executes them in this process, and gives them back when it leaves.

It is one, whether its world is a database or a server that has one; what differs is given to it (`worker.port`).

It asks only while it has a free slot, so no lease runs down while its run waits. What is no longer its own it stops at
once and writes nothing more about: the fence would refuse it anyway, but the bodies of its steps would go on beside the
new owner's.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ironflow.config import Settings
from ironflow.engine.bodies import Bodies, Body
from ironflow.engine.execution import Execution
from ironflow.engine.history import History
from ironflow.engine.plan import PAUSE, RELEASE, RETRY, SUSPENSION, Leave, Plan, StepRun
from ironflow.engine.registry import Registry
from ironflow.engine.segment import Segment
from ironflow.errors import OUTAGES, IronflowError
from ironflow.model import run as runs
from ironflow.model.capacity import RunHead
from ironflow.model.run import RunRow
from ironflow.observe.seam import Observer
from ironflow.store.heart import LEASE_STALE, Held, Verdict
from ironflow.tasks import begin
from ironflow.worker.door import Door
from ironflow.worker.isolation import Isolation, Reach
from ironflow.worker.nominal import Nominal
from ironflow.worker.orphans import Orphans
from ironflow.worker.parked import Parked
from ironflow.worker.port import Finder, Holding, Membership, Port
from ironflow.worker.results import Results
from ironflow.worker.undone import Undone

log = logging.getLogger("ironflow.worker")
run_log = logging.getLogger("ironflow.runs")

#: How long a leaving worker waits for bodies it has cancelled: with patience, and without, seconds.
ENDING_S, ENDING_AT_ONCE_S = 1.5, 0.1
#: How long, beyond the drain limit, its last words to the database may take; and at the very least, seconds.
FAREWELL_S, LEAST_FAREWELL_S = 2.0, 0.5
#: How long the look for work that is under way may go on in a worker that leaves, at the very least, seconds.
ROUND_S = 1.0


class Worker:
    """See the module's docstring.

    Args:
        port: what it speaks to.
        registry: the workflows this process can execute.
        settings: intervals, limits, times to live.
        results: who waits for the end of which run in this process.
        session: makes its session.
        finder: makes what looks for work.
        reach: how a child process reaches what this one speaks to; None executes suspects here as well.
        strict: nondeterministic calls in workflow code raise instead of warning.
        own_only: serve no queue, and take only the runs put into `own`.
    """

    def __init__(
        self,
        port: Port,
        registry: Registry,
        settings: Settings,
        results: Results,
        *,
        session: Callable[[Worker], Membership],
        finder: Callable[[Worker], Finder],
        reach: Callable[[Worker], Reach] | None = None,
        strict: bool = False,
        own_only: bool = False,
    ) -> None:
        self.port = port
        self.registry = registry
        self.settings = settings
        self.results = results
        self.strict = strict
        self.slots = settings.concurrency
        self.bodies = Bodies(port, settings.threads, settings.max_payload_bytes)
        self.segments: dict[str, Segment] = {}
        #: the only runs this worker takes; None: whatever its routes bring
        self.own: set[str] | None = set() if own_only else None
        #: run ids whose activation is under way
        self.taking: set[str] = set()
        self.parked = Parked(settings.parked_instances)
        self.orphans = Orphans(self)
        self.nominal = Nominal(self)
        self._undone = Undone(self)
        self.door = Door(self)
        self.isolation = Isolation(self, reach)
        #: set once somebody wishes that this worker leaves: it takes nothing more, and whoever runs it stops it
        self.dismissed = asyncio.Event()
        #: why nobody takes anything from this worker any more: its key was taken back, or its database is gone
        self.refused: IronflowError | None = None
        self.stopping = False
        #: told of what happens here, where somebody watches
        self.observer: Observer | None = None
        self.session = session(self)
        self.dispatcher = finder(self)
        self._unreleased: dict[str, Holding] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register the session and begin to take runs."""
        await self.session.open()
        self.dispatcher.start()

    async def stop(self, *, drain_ms: int | None = None) -> None:
        """Take nothing more, let what executes end within the drain limit, release the rest, say goodbye.

        May be cancelled and called again with less patience; each part of it is done once. A database that is away does
        not keep it: what cannot be given back within 2 s beyond the limit is left to expire.

        Args:
            drain_ms: how long to wait for what executes, ms; 0 does not wait; None takes the setting.
        """
        limit = (self.settings.drain_timeout_ms if drain_ms is None else drain_ms) / 1000
        if limit > 0 and self.segments and not self.stopping:
            self.spawn(self._say_leaving())
        self.stopping = True
        self._leave_soon()  # not only when the dispatcher has stopped: no step begins from here on
        loop = asyncio.get_running_loop()
        until = loop.time() + limit
        await self.dispatcher.stop(max(limit, ROUND_S))
        tasks = [segment.task for segment in self.segments.values() if segment.task is not None]
        self._leave_soon()  # those that entered meanwhile
        if limit > 0:
            left = max(0.0, until - loop.time())
            await asyncio.gather(_ended(tasks, left), self.isolation.stop(left))
        else:
            await self.isolation.stop(0)
        self.port.hurry()
        await self._stop_bodies(ENDING_S if limit > 0 else ENDING_AT_ONCE_S)
        try:
            async with asyncio.timeout_at(max(until + FAREWELL_S, loop.time() + LEAST_FAREWELL_S)):
                await self._release()
                await self.session.close()
        except TimeoutError:
            log.warning("the database did not answer the goodbye of this worker; what it held expires by itself")
        self.parked.close()
        self.bodies.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _leave_soon(self) -> None:
        for segment in self.segments.values():
            segment.leave_soon()

    async def _say_leaving(self) -> None:
        try:
            await self.session.leaving()
        except Exception as error:  # for people alone: nothing is handed to this worker in any case
            log.debug("that this worker is leaving could not be told: %s", error)

    async def _stop_bodies(self, patience: float) -> None:
        """Stop what did not end, before its run is given back: it must not run beside the next owner's bodies."""
        segments = list(self.segments.values())
        self._unreleased.update(self._held())
        for segment in segments:
            segment.abandon()
        await _ended([segment.task for segment in segments if segment.task is not None], patience)
        bodies = self.orphans.cancel()
        await _ended([body.task for body in bodies if body.task is not None], patience)

    async def _release(self) -> None:
        """Give back what did not end."""
        if self._unreleased:
            await self._give_back(list(self._unreleased.values()), self.session.row.session_id)
            self._unreleased.clear()

    def _held(self) -> dict[str, Holding]:
        return {
            run_id: (run_id, segment.head.execution_seq, segment.token_hash)
            for run_id, segment in self.segments.items()
        }

    async def _give_back(self, held: list[Holding], session_id: str) -> None:
        try:
            await self.port.release(held, session_id)
            self.session.tell_queue()
        except Exception as error:
            log.warning("%d runs could not be given back; their leases will expire: %s", len(held), error)

    @property
    def free(self) -> int:
        """Slots in which nothing executes and nothing is about to; none where this worker may not take runs."""
        if self.stopping or self.dismissed.is_set() or not self.session.registered:
            return 0
        return self.slots - len(self.segments) - len(self.taking) - len(self.isolation.children)

    def adapt(self, settings: Settings) -> None:
        """The server's terms, in place of what this process was told."""
        self.settings = settings
        self.bodies.limit = settings.max_payload_bytes

    # ---- taking runs -----------------------------------------------------------------------------------------------

    async def take(self, heads: list[RunHead]) -> int:
        """See `Door.take`."""
        return await self.door.take(heads)

    async def start_here(self, row: RunRow, created: str, history: History) -> str:
        """See `Door.start_here`."""
        return await self.door.start_here(row, created, history)

    def entered(self, head: RunHead, execution: Execution | None, plan: Plan, token_hash: str) -> None:
        """The activation is committed: go on, or (its first act was to leave) be done with it."""
        watch = None
        if self.observer is not None:
            watch = self.observer.entered(head, self.session.worker_id)
            watch.committed(plan.events, None if plan.leave is None else plan.leave.state)
        if execution is None or plan.leave is not None:
            if execution is not None and execution.instance.held_log:
                execution.instance.release_log()
            self._gone(head, execution, plan.leave)
            if head.limits is not None:
                self._slot_free(head)
            return
        segment = Segment(self, execution, head, token_hash, watch)
        self.segments[head.run_id] = segment
        self._count()
        segment.begin(plan)
        if self.stopping:  # activated by a round that was under way when the worker was told to leave
            self._unreleased[head.run_id] = (head.run_id, head.execution_seq, token_hash)

    # ---- the end of a segment ----------------------------------------------------------------------------------------

    def left(self, segment: Segment, leave: Leave) -> None:
        """A segment committed its way out."""
        del self.segments[segment.head.run_id]
        self._count()
        self._gone(segment.head, segment.execution, leave)
        self._slot_free(segment.head)

    def _gone(self, head: RunHead, execution: Execution | None, leave: Leave | None) -> None:
        kind = leave.kind if leave is not None else None
        if execution is not None:
            if kind == SUSPENSION:
                self.parked.keep(head.run_id, execution)
            else:
                execution.close()
        if leave is None:
            return
        if kind in (SUSPENSION, RETRY) and leave.due is not None:
            self.dispatcher.expect(leave.due)
        if kind in (SUSPENSION, RETRY) and self.own is not None:
            self.dispatcher.wake()  # it rests, and others are told who goes on with it
        if kind == RELEASE:
            self.session.tell_queue()
        if kind not in (SUSPENSION, RETRY, RELEASE):
            if self.own is not None and kind != PAUSE:
                self.own.discard(head.run_id)
            self.results.ended(head.run_id, leave.state, leave.result)
            _say_end(head, leave)

    def lost(self, segment: Segment) -> None:
        """The run is not this worker's any more: stop its bodies, unless it is only paused and may come back."""
        self.segments.pop(segment.head.run_id, None)
        self._count()
        segment.execution.close()
        # At once, and not after looking: the run may be back here before the look is answered.
        self.orphans.keep(segment)
        if segment.watch is not None:
            segment.watch.lost(given_back=self.stopping)
        if not self.stopping:
            self.spawn(self.orphans.look_after(segment.head.run_id, segment.head.execution_seq))
        self._slot_free(segment.head)
        self.dispatcher.wake()  # the run may be in the queue by now

    async def undone(self, segment: Segment, step_id: str) -> None:
        """See `Undone.give_back`."""
        await self._undone.give_back(segment, step_id)

    async def give_back(self, segment: Segment) -> None:
        """Give a run back that is held here."""
        held = (segment.head.run_id, segment.head.execution_seq, segment.token_hash)
        await self._give_back([held], self.session.row.session_id)

    def _slot_free(self, head: RunHead) -> None:
        if head.limits is None:
            self.dispatcher.slot_free()
            return
        # A place in its lanes is free, too, and whoever waits for it may be anybody's.
        self.dispatcher.wake()
        self.session.tell_queue(lane=True)

    def adopt(self, run_id: str, step: StepRun) -> Body | None:
        """See `Orphans.adopt`."""
        return self.orphans.adopt(run_id, step)

    # ---- what the outside says ---------------------------------------------------------------------------------------

    async def check(self, run_id: str) -> None:
        """Somebody changed this run: give it up if the fence was raised."""
        segment = self.segments.get(run_id)
        if segment is None:
            return
        owner = await self.port.owner(run_id)
        if owner is None or owner.execution_seq != segment.head.execution_seq:
            segment.abandon()

    def renewing(self) -> tuple[list[Held], int]:
        """What the heartbeat renews, and the number of free slots. For its thread."""
        held = [
            (run_id, segment.head.execution_seq, segment.token_hash, segment.executing)
            for run_id, segment in list(self.segments.items())
        ]
        return held, max(0, self.free)

    def verdicts(self, lost: list[Verdict]) -> None:
        """Leases that were not renewed: give up what is stale; an unknown one is asked for again."""
        for verdict in lost:
            segment = self.segments.get(verdict.run_id)
            if (
                segment is not None
                and verdict.verdict == LEASE_STALE
                # Perhaps it has just left by a commit whose answer is on its way; else the fence refuses that, too.
                and not segment.writing
                and segment.head.execution_seq == verdict.execution_seq
            ):
                log.warning("run %s is no longer ours: stopping it", verdict.run_id)
                segment.abandon()

    def cut_off(self) -> None:
        """Nothing could be renewed for one lease time: everything is given up, although nobody said so."""
        self.nominal.add(*self._held().values())
        for segment in list(self.segments.values()):
            for body in segment.unsettled():
                body.cancel()
            segment.abandon()

    def forgotten(self, session_id: str) -> None:
        """Others took this worker for dead. What it still holds (it may have taken a run since) is given back."""
        held = list(self._held().values())
        self.cut_off()
        self.nominal.clear()
        if held:
            self.spawn(self._give_back(held, session_id))

    def dismiss(self) -> None:
        """Somebody wishes that this worker leaves; to one that is leaving, that may be its own word that comes back."""
        if not self.stopping and not self.dismissed.is_set():
            log.warning("this worker is asked to leave: it takes nothing more")
            self.dismissed.set()

    def refuse(self, error: IronflowError) -> None:
        """Nobody takes anything from this worker any more. It is to stop now: what it executes cannot be recorded."""
        self.refused = error
        self.dismissed.set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine of the worker's own; kept until it ends."""
        task = begin(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OUTAGES):
            log.warning("a task of the worker failed: %s", error.message)  # a traceback would tell nothing more
        elif error is not None:
            log.error("a task of the worker failed", exc_info=error)

    def _count(self) -> None:
        self.port.concurrent_writers = len(self.segments)


def _say_end(head: RunHead, leave: Leave) -> None:
    """A line about a run that ended or is held, in a log of its own: who shows runs in another way turns it off."""
    if leave.kind == PAUSE:
        run_log.warning("run %s of %s is paused: %s", head.run_id, head.workflow, (leave.changes or {}).get("reason"))
        return
    if leave.unreported:
        count, first = len(leave.unreported), leave.unreported[0].partition("\n")[0]
        more = f" (and {count - 1:,} more, see its terminal event)" if count > 1 else ""
        run_log.warning("in run %s of %s, %s%s", head.run_id, head.workflow, first, more)
    if leave.state != runs.FAILED:
        run_log.info("run %s of %s: %s", head.run_id, head.workflow, leave.state)
        return
    error = json.loads(leave.result or "{}").get("error") or {}
    name, message = str(error.get("type", "")).rpartition(".")[2], str(error.get("message", ""))
    run_log.warning("run %s of %s failed: %s: %s", head.run_id, head.workflow, name, message.partition("\n")[0])


async def _ended(tasks: list[asyncio.Task[Any]], patience: float) -> None:
    """Wait until these tasks have ended, but not longer than so many seconds."""
    if tasks:
        await asyncio.wait(tasks, timeout=patience)
