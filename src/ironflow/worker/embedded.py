"""The embedded worker: takes runs from the store, executes them in this process, and gives them back when it leaves.

It asks only while it has a free slot, replays outside any transaction, and activates with the first commit of the
segment in one guarded write: a guard that no longer holds drops the instance. Where other workers share the database
it reserves first, so that two of them do not replay the same run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Awaitable
from typing import Any

from ironflow.config import Settings
from ironflow.engine import ending
from ironflow.engine.bodies import Bodies, Body
from ironflow.engine.execution import Execution
from ironflow.engine.history import History
from ironflow.engine.plan import PAUSE, RETRY, SUSPENSION, Leave, Plan, StepRun, activation
from ironflow.engine.registry import Registry
from ironflow.engine.segment import Segment
from ironflow.errors import IronflowError
from ironflow.model import ids, operator
from ironflow.model import run as runs
from ironflow.model.capacity import LeaseRow, RunHead
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.transition import APPLIED, FRESH, Locked, Transition
from ironflow.store.base import Store, Verdict
from ironflow.worker.dispatcher import Dispatcher
from ironflow.worker.parked import Parked
from ironflow.worker.results import Results
from ironflow.worker.session import Session

log = logging.getLogger("ironflow.worker")

#: Bodies that outlive their segment (the run was paused) and may be adopted again; the oldest is forgotten first.
ORPHANS = 1_000


class Worker:
    """See the module's docstring.

    Args:
        store: the database.
        registry: the workflows this process can execute.
        settings: intervals, limits, times to live.
        results: who waits for the end of which run in this process.
        worker_id: a stable name, shown to people; None makes one from host and pid.
        tags: what this worker offers (hardware, region, network).
        strict: nondeterministic calls in workflow code raise instead of warning.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settings: Settings,
        results: Results,
        *,
        worker_id: str | None = None,
        tags: tuple[str, ...] = (),
        strict: bool = False,
    ) -> None:
        self.store = store
        self.registry = registry
        self.settings = settings
        self.results = results
        self.strict = strict
        self.slots = settings.concurrency
        self.bodies = Bodies(store, settings.threads, settings.max_payload_bytes)
        self.segments: dict[str, Segment] = {}
        #: run ids whose activation is under way
        self.taking: set[str] = set()
        self.parked = Parked(settings.parked_instances)
        self.orphans: dict[tuple[str, str, int], Body] = {}
        self.session = Session(self, worker_id, tags)
        self.dispatcher = Dispatcher(self)
        self._chance = random.Random(int.from_bytes(os.urandom(8), "big")).random
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register the session and begin to take runs."""
        await self.session.open()
        self.dispatcher.start()

    async def stop(self, *, drain_ms: int | None = None) -> None:
        """Take nothing more, let what executes end within the drain limit, release the rest, say goodbye."""
        await self.dispatcher.stop()
        limit = (self.settings.drain_timeout_ms if drain_ms is None else drain_ms) / 1000
        tasks = [segment.task for segment in self.segments.values() if segment.task is not None]
        if tasks and limit > 0:
            await asyncio.wait(tasks, timeout=limit)
        await self._release()
        await self.session.close()
        self.parked.close()
        self.bodies.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _release(self) -> None:
        held = list(self.segments)
        if not held:
            return
        session_id = self.session.row.session_id

        def decide(locked: Locked) -> Transition | None:
            return operator.release(locked, session_id)

        for segment in list(self.segments.values()):
            segment.abandon()
        tasks = [segment.task for segment in self.segments.values() if segment.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=2)
        await self.store.decide(held, decide)
        self.store.notify("queue", self.session.peers)

    @property
    def free(self) -> int:
        """Slots in which nothing executes and nothing is about to."""
        return self.slots - len(self.segments) - len(self.taking)

    # ---- taking runs -----------------------------------------------------------------------------------------------

    async def take(self, heads: list[RunHead]) -> int:
        """Replay and activate these runs; all activations join one commit. Returns how many now execute or ended."""
        heads = [h for h in heads if h.run_id not in self.segments and h.run_id not in self.taking]
        ids_ = [head.run_id for head in heads]
        self.taking.update(ids_)
        try:
            unparked = [head.run_id for head in heads if not self.parked.has(head)]
            journals = await self.store.journals(unparked) if unparked else {}
            pending = [self._activate(head, journals.get(head.run_id, [])) for head in heads]
            taken = 0
            for head, execution, plan, token_hash, answer in pending:
                word = answer if isinstance(answer, str) else await answer
                self.taking.discard(head.run_id)
                if word == APPLIED:
                    taken += 1
                    self._entered(head, execution, plan, token_hash)
                elif execution is not None:
                    execution.close()
            return taken
        finally:
            self.taking.difference_update(ids_)

    def _activate(
        self, head: RunHead, events: list[Event]
    ) -> tuple[RunHead, Execution | None, Plan, str, str | Awaitable[str]]:
        execution = self.parked.take(head)
        new_seq = head.execution_seq + 1
        plan: Plan
        try:
            if execution is None:
                spec = self.registry.get(head.workflow)
                ending.check_version(spec, head)
                execution = Execution(spec, head, History.of(events), chance=self._chance, strict=self.strict)
            plan = self._first_plan(execution, head, new_seq)
        except IronflowError as error:
            last_seq = execution.history.last_seq if execution is not None else len(events)
            if execution is not None:
                execution.close()
                execution = None
            spec_ = self.registry.get(head.workflow) if head.workflow in self.registry else None
            plan = ending.refused(spec_, head, last_seq, new_seq, error)
        token_hash = ids.token_hash(secrets.token_hex(16))
        transition = activation(plan, head, new_seq, self._lease(head.run_id, new_seq, token_hash))
        answer = self.store.submit(transition)
        head.execution_seq, head.state = new_seq, transition.state or runs.RUNNING
        return head, execution, plan, token_hash, answer

    def _first_plan(self, execution: Execution, head: RunHead, new_seq: int) -> Plan:
        now = self.store.now()
        execution.head = head
        execution.open(new_seq, now, self.session.row.worker_id, self._adoptable(head.run_id))
        return execution.settle(now)

    def _lease(self, run_id: str, seq: int, token_hash: str) -> LeaseRow:
        return LeaseRow(run_id, seq, token_hash, self.session.row.session_id, 0, self.settings.lease_ttl_ms)

    async def start_here(self, row: RunRow, created: str, history: History) -> str:
        """Create a run and execute it at once in a free slot: creation and first step share one commit.

        Returns the store's answer; the caller learns from it, never from the end of the run's code.
        """
        self.taking.add(row.run_id)
        try:
            head = head_of(row)
            execution: Execution | None = Execution(
                self.registry.get(row.workflow), head, history, chance=self._chance, strict=self.strict
            )
            assert execution is not None
            execution.created(created)
            try:
                plan = self._first_plan(execution, head, 1)
            except IronflowError as error:
                execution.close()
                plan = ending.refused(execution.spec, head, 1, 1, error)
                plan.events.insert(0, Event(1, "run_created", None, created, 1))
                execution = None
            token_hash = ids.token_hash(secrets.token_hex(16))
            answer = self.store.submit(self._fresh(row, plan, token_hash))
            word = answer if isinstance(answer, str) else await answer
        finally:
            self.taking.discard(row.run_id)
        if word == APPLIED:
            head.execution_seq, head.state = 1, row.state
            self._entered(head, execution, plan, token_hash)
        elif execution is not None:
            execution.close()
        return word

    def _fresh(self, row: RunRow, plan: Plan, token_hash: str) -> Transition:
        transition = activation(plan, head_of(row), 1, self._lease(row.run_id, 1, token_hash))
        transition.guard, transition.row, transition.dequeue = FRESH, row, False
        row.execution_seq, row.state = 1, transition.state or runs.RUNNING
        row.started_at = self.store.now()
        row.lease_token_hash = transition.new_token_hash
        if transition.ended:
            row.ended_at = row.started_at
        for name, value in (transition.changes or {}).items():
            setattr(row, name, value)
        transition.changes = None
        return transition

    def _entered(self, head: RunHead, execution: Execution | None, plan: Plan, token_hash: str) -> None:
        """The activation is committed: go on, or (its first act was to leave) be done with it."""
        if execution is None or plan.leave is not None:
            if execution is not None and execution.instance.held_log:
                execution.instance.release_log()
            self._gone(head, execution, plan.leave)
            return
        segment = Segment(self, execution, head, token_hash)
        self.segments[head.run_id] = segment
        self._count()
        segment.begin(plan)

    # ---- the end of a segment ----------------------------------------------------------------------------------------

    def left(self, segment: Segment, leave: Leave) -> None:
        """A segment committed its way out."""
        del self.segments[segment.head.run_id]
        self._count()
        self._gone(segment.head, segment.execution, leave)
        self.dispatcher.slot_free()

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
        if kind not in (SUSPENSION, RETRY):
            self.results.ended(head.run_id, leave.state, leave.result)
        if kind == PAUSE:
            log.warning("run %s is paused: %s", head.run_id, (leave.changes or {}).get("reason"))

    def lost(self, segment: Segment) -> None:
        """The run is not this worker's any more: stop its bodies, unless it is only paused and may come back."""
        self.segments.pop(segment.head.run_id, None)
        self._count()
        segment.execution.close()
        self.spawn(self._after_loss(segment))
        self.dispatcher.slot_free()

    async def _after_loss(self, segment: Segment) -> None:
        row = await self.store.run(segment.head.run_id)
        paused = row is not None and (row.state == runs.PAUSED or row.run_id in self.segments)
        for body in segment.bodies:
            if paused and body.owner is segment:
                body.owner = None
                self.orphans[segment.head.run_id, body.step.id, body.try_no] = body
            elif body.owner is segment:
                body.owner = None
                body.cancel()
        while len(self.orphans) > ORPHANS:
            del self.orphans[next(iter(self.orphans))]

    def adopt(self, run_id: str, step: StepRun) -> Body | None:
        """The body of this very try, if it still executes here (or ended while the run was paused)."""
        return self.orphans.pop((run_id, step.id, step.try_no), None)

    def _adoptable(self, run_id: str) -> set[tuple[str, int]]:
        return {(step_id, try_no) for owner, step_id, try_no in self.orphans if owner == run_id}

    # ---- what the outside says -----------------------------------------------------------------------------------------

    async def check(self, run_id: str) -> None:
        """Somebody changed this run: give it up if the fence was raised."""
        segment = self.segments.get(run_id)
        if segment is None:
            return
        row = await self.store.run(run_id)
        if row is None or row.execution_seq != segment.head.execution_seq:
            segment.abandon()

    def verdicts(self, lost: list[Verdict]) -> None:
        """Leases that were not renewed: give up what is stale; an unknown one is asked for again."""
        for verdict in lost:
            segment = self.segments.get(verdict.run_id)
            if (
                segment is not None
                and verdict.verdict == "stale"
                and (segment.head.execution_seq == verdict.execution_seq)
            ):
                log.warning("run %s is no longer ours: stopping it", verdict.run_id)
                segment.abandon()

    def cut_off(self) -> None:
        """Nothing could be renewed for one lease time: everything is given up, although nobody said so."""
        for segment in list(self.segments.values()):
            segment.abandon()

    def spawn(self, coroutine: Any) -> None:
        """Run a coroutine of the worker's own; kept until it ends."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _count(self) -> None:
        self.store.live_segments = len(self.segments)


def head_of(row: RunRow) -> RunHead:
    """What a worker needs of a row it made itself."""
    return RunHead(
        row.run_id,
        row.workflow,
        row.version,
        row.state,
        row.route,
        row.root_run_id,
        row.created_at,
        row.execution_seq,
        row.facts,
        row.attempt,
        row.priority,
        row.consecutive_recoveries,
        row.charged_recoveries,
        row.compensating_for,
        row.deadline_at,
        row.warnings,
    )
