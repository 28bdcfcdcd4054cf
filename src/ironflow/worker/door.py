"""The door: every execution enters here, whether it is new, queued, woken or recovered.

A run is replayed outside any transaction and then activated with the first commit of its segment in one guarded write;
where the guard no longer holds, the instance is dropped and nothing happened. Whatever is wrong with one run (its code
does not fit its journal, its input cannot be read) becomes that run's end and never the others' of its batch.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING

from ironflow.engine import ending
from ironflow.engine.execution import Execution
from ironflow.engine.history import History
from ironflow.engine.plan import Plan, activation
from ironflow.errors import OUTAGES, IronflowError, PayloadTooLarge, ReplayError
from ironflow.model import run as runs
from ironflow.model.capacity import LeaseRow, RunHead
from ironflow.model.journal import RUN_CREATED, Event
from ironflow.model.run import RunRow
from ironflow.model.transition import APPLIED, GUARD_FRESH, LOST, Transition

if TYPE_CHECKING:
    from ironflow.engine.definitions import WorkflowSpec
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")


#: The answer of a failure: what became of the activation is unknown, or it fails every time. Its reservation is left to
#: expire, because a run that is given back at once would be handed out again at once.
FAILED = "failed"


class Entry:
    """One run on its way in: what was decided, and the store's answer to it."""

    __slots__ = ("answer", "execution", "head", "last_seq", "plan", "seen", "token_hash")

    def __init__(self, head: RunHead, execution: Execution | None, plan: Plan, token_hash: str) -> None:
        self.head = head
        #: the run as it was taken, for a second try, and the last number in its journal
        self.seen = replace(head)
        self.last_seq = 0
        self.execution = execution
        self.plan = plan
        self.token_hash = token_hash
        self.answer: str | Awaitable[str] = LOST


class Door:
    """See the module's docstring."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._chance = random.Random(int.from_bytes(os.urandom(8), "big")).random

    async def take(self, heads: list[RunHead]) -> int:
        """Replay and activate these runs; all activations join one commit. Returns how many now execute or ended."""
        worker = self.worker
        here = [h for h in heads if h.run_id in worker.segments or h.run_id in worker.taking]
        heads = [h for h in heads if h not in here]
        # Whoever looked for them counted the slots before; a start that went past the queue may have taken one since.
        free = max(0, worker.free)
        heads, late = heads[:free], heads[free:]
        entering = [head.run_id for head in heads]
        worker.taking.update(entering)  # before anything is waited for: what is counted above is taken now
        try:
            if here or late:
                await self._give_back(here + late)
            if not heads:
                return 0
            unparked = [head.run_id for head in heads if not worker.parked.has(head)]
            journals = await worker.port.journals(unparked) if unparked else {}
            # One whose journal could not be read stays out, and is left to its reservation as what FAILED is.
            readable = [head for head in heads if head.run_id in journals or worker.parked.has(head)]
            entries = self._open_all(readable, journals)
            taken = 0
            lost: list[RunHead] = []
            for entry in entries:
                head = entry.head
                word = await self._answered(entry)
                worker.taking.discard(head.run_id)
                if word == APPLIED:
                    taken += 1
                    worker.entered(head, entry.execution, entry.plan, entry.token_hash)
                    continue
                if entry.execution is not None:
                    entry.execution.close()
                if word != FAILED:
                    lost.append(head)
            if lost:
                await self._give_back(lost)
            return taken
        finally:
            worker.taking.difference_update(entering)

    async def _give_back(self, heads: list[RunHead]) -> None:
        """Not taken: what was reserved for it is for others at once."""
        reserved = [(head.run_id, head.reservation) for head in heads if head.reservation is not None]
        if reserved:
            await self.worker.port.unreserve(reserved)

    def _open_all(self, heads: list[RunHead], journals: dict[str, list[Event]]) -> list[Entry]:
        lock = self.worker.session.lock
        entries = []
        for head in heads:
            if lock is not None:
                lock.opening(head.run_id, head.execution_seq)
            entries.append(self._open(head, journals.get(head.run_id, [])))
        if lock is not None and heads:
            lock.opened()
        return entries

    async def _answered(self, entry: Entry) -> str:
        try:
            try:
                return entry.answer if isinstance(entry.answer, str) else await entry.answer
            except PayloadTooLarge as error:
                answer = self._refuse(entry, error)
                return answer if isinstance(answer, str) else await answer
        # Whether it was applied, or still will be, is unknown; if so, the run is given back once the store is reached.
        except OUTAGES as error:
            head = entry.head
            self.worker.nominal.add((head.run_id, head.execution_seq, entry.token_hash))
            log.warning("run %s could not be activated: %s", entry.head.run_id, error.message)
            return FAILED
        except Exception:
            log.exception("run %s could not be activated", entry.head.run_id)
            return FAILED

    def _refuse(self, entry: Entry, error: IronflowError) -> str | Awaitable[str]:
        """End a run whose first commit can never be made."""
        if entry.execution is not None:
            entry.execution.close()
            entry.execution = None
        head, new_seq = entry.seen, entry.head.execution_seq
        entry.plan = ending.refused(self.worker.registry.get(head.workflow), head, entry.last_seq, new_seq, error)
        lease = self._lease(head.run_id, new_seq, entry.token_hash)
        return self.worker.port.submit(activation(entry.plan, head, new_seq, lease))

    def _open(self, head: RunHead, events: list[Event]) -> Entry:
        worker = self.worker
        execution = worker.parked.take(head)
        new_seq = head.execution_seq + 1
        plan: Plan
        try:
            if execution is None:
                spec = worker.registry.get(head.workflow)
                ending.check_version(spec, head)
                execution = self._execution(spec, head, History.of(events))
            plan = self._first_plan(execution, head, new_seq)
        except Exception as error:
            last_seq = execution.history.last_seq if execution is not None else len(events)
            if execution is not None:
                execution.close()
                execution = None
            known = worker.registry.get(head.workflow) if head.workflow in worker.registry else None
            plan = ending.refused(known, head, last_seq, new_seq, _named(head, error))
        entry = Entry(head, execution, plan, worker.port.new_token())
        entry.last_seq = plan.events[0].seq - 1
        transition = activation(plan, head, new_seq, self._lease(head.run_id, new_seq, entry.token_hash))
        entry.answer = worker.port.submit(transition)
        head.execution_seq, head.state = new_seq, transition.state or runs.RUNNING
        return entry

    def _execution(self, spec: WorkflowSpec, head: RunHead, history: History) -> Execution:
        worker = self.worker
        limit = worker.settings.max_payload_bytes
        has_database = worker.port.transactions
        return Execution(
            spec, head, history, chance=self._chance, strict=worker.strict, limit=limit, transactions=has_database
        )

    def _first_plan(self, execution: Execution, head: RunHead, new_seq: int) -> Plan:
        now = self.worker.port.now()
        execution.head = head
        adoptable = self.worker.orphans.of(head.run_id)
        execution.open(new_seq, now, self.worker.session.row.worker_id, adoptable)
        return execution.settle(now)

    def _lease(self, run_id: str, seq: int, token_hash: str) -> LeaseRow:
        worker = self.worker
        return LeaseRow(run_id, seq, token_hash, worker.session.row.session_id, 0, worker.settings.lease_ttl_ms)

    async def start_here(self, row: RunRow, created: str, history: History) -> str:
        """Create a run and execute it at once in a free slot: creation and first step share one commit.

        Returns the store's answer; the caller learns from it, never from the end of the run's code.
        """
        worker = self.worker
        worker.taking.add(row.run_id)
        try:
            head = head_of(row)
            begun = self._execution(worker.registry.get(row.workflow), head, history)
            begun.created(created)
            execution: Execution | None = begun
            try:
                plan = self._first_plan(begun, head, 1)
            except IronflowError as error:
                begun.close()
                plan = ending.refused(begun.spec, head, 1, 1, error)
                plan.events.insert(0, Event(1, RUN_CREATED, None, created, 1))
                execution = None
            token_hash = worker.port.new_token()
            answer = worker.port.submit(self._fresh(row, plan, token_hash))
            try:
                word = answer if isinstance(answer, str) else await answer
            except OUTAGES:
                worker.nominal.add((row.run_id, 1, token_hash))
                raise
        finally:
            worker.taking.discard(row.run_id)
        if word == APPLIED:
            head.execution_seq, head.state = 1, row.state
            worker.entered(head, execution, plan, token_hash)
        elif execution is not None:
            execution.close()
        return word

    def _fresh(self, row: RunRow, plan: Plan, token_hash: str) -> Transition:
        transition = activation(plan, head_of(row), 1, self._lease(row.run_id, 1, token_hash))
        transition.guard, transition.row, transition.dequeue = GUARD_FRESH, row, False
        row.execution_seq, row.state = 1, transition.state or runs.RUNNING
        row.started_at = self.worker.port.now()
        row.lease_token_hash = transition.new_token_hash
        if transition.ended:
            row.ended_at = row.started_at
        for name, value in (transition.changes or {}).items():
            setattr(row, name, value)
        transition.changes = None
        return transition


def _named(head: RunHead, error: Exception) -> IronflowError:
    """The error with which a run ends that could not be opened. One of no class of ours is a defect, and is logged."""
    if isinstance(error, IronflowError):
        return error
    log.error("run %s could not be opened", head.run_id, exc_info=error)
    named = ReplayError(f"run {head.run_id} could not be opened: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named


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
        row.limits,
    )
