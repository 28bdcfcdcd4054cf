"""The door: every execution enters here, whether it is new, queued, woken or recovered.

A run is replayed outside any transaction and then activated with the first commit of its segment in one guarded write;
where the guard no longer holds, the instance is dropped and nothing happened. Whatever is wrong with one run (its code
does not fit its journal, its input cannot be read) becomes that run's end and never the others' of its batch.

What follows from an activation follows from the store's answer, in a callback of it, and never from the patience of
whoever asked: a caller that is cancelled stops waiting, and a run that is leased to this worker is executed by it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ironflow.engine import ending
from ironflow.engine.execution import Execution
from ironflow.engine.history import History
from ironflow.engine.plan import Plan, activation
from ironflow.errors import OUTAGES, IronflowError, PayloadTooLarge, ReplayError, ServerUnreachable
from ironflow.model import run as runs
from ironflow.model.capacity import LeaseRow, RunHead
from ironflow.model.journal import RUN_CREATED, Event
from ironflow.model.run import RunRow
from ironflow.model.transition import APPLIED, GUARD_FRESH, Transition
from ironflow.worker.broken_off import BrokenOff

if TYPE_CHECKING:
    from ironflow.engine.definitions import WorkflowSpec
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")


#: The answer of a failure: what became of the activation is unknown, or it fails every time. Its reservation is left to
#: expire, because a run that is given back at once would be handed out again at once.
FAILED = "failed"
#: What to do about a run without a journal.
NO_JOURNAL = "`ironflow doctor` examines the whole database; start the run anew, or restore it from a backup."


#: What the store said of an activation, or why it said nothing.
Word = str | BaseException


class Entry:
    """One run on its way in: what was decided, and the store's word for it.

    `created`: the row of a run that is made with its activation, for a caller who is told of any error.
    """

    __slots__ = (
        "_asked", "created", "execution", "head", "last_seq", "plan", "refusable", "seen", "token_hash", "word",
    )  # fmt: skip

    def __init__(
        self, head: RunHead, execution: Execution | None, plan: Plan, token_hash: str, created: RunRow | None = None
    ) -> None:
        self.head = head
        #: ends as a failed run if its first commit is too large
        self.refusable = created is None
        #: the run as it was taken, for that second try, and the last number in its journal
        self.seen = replace(head) if self.refusable else head
        self.last_seq = 0
        self.execution = execution
        self.plan = plan
        self.token_hash = token_hash
        self.created = created
        #: None while it is not known
        self.word: Word | None = None
        #: whoever waits for it
        self._asked: asyncio.Future[Word] | None = None

    async def heard(self) -> Word:
        """The word, once it is known; for one caller. One that is cancelled only stops waiting."""
        if self.word is not None:
            return self.word
        self._asked = asyncio.get_running_loop().create_future()
        return await self._asked

    def settle(self, word: Word) -> None:
        """It is known, and everything has followed from it."""
        self.word = word
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(word)


class Door:
    """See the module's docstring."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._chance = random.Random(int.from_bytes(os.urandom(8), "big")).random
        self._under_way: set[Entry] = set()
        #: whoever waits until none is
        self._idle: asyncio.Future[None] | None = None
        self._shut = False
        self._broken_off = BrokenOff(worker)

    async def take(self, heads: list[RunHead]) -> int:
        """Replay and activate these runs; all activations join one commit. Returns how many now execute or ended."""
        worker = self.worker
        heads = _once(heads)
        here = [h for h in heads if h.run_id in worker.segments or h.run_id in worker.taking]
        heads = [h for h in heads if h not in here]
        # Whoever looked for them counted the slots before; a start that went past the queue may have taken one since.
        free = max(0, worker.free)
        heads, late = heads[:free], heads[free:]
        entering = {head.run_id for head in heads}
        worker.taking.update(entering)  # before anything is waited for: what is counted above is taken now
        try:
            if here or late:
                await self._give_back(here + late)
            if not heads:
                return 0
            await worker.orphans.ended(entering)
            unparked = [head.run_id for head in heads if not worker.parked.has(head)]
            journals = await worker.port.journals(unparked) if unparked else {}
            entries = self._open_all(heads, journals)
            words = [await entry.heard() for entry in entries]
        finally:
            worker.taking.difference_update(entering.difference(entry.head.run_id for entry in self._under_way))
        lost = [entry.head for entry, word in zip(entries, words, strict=True) if word not in (APPLIED, FAILED)]
        if lost:
            await self._give_back(lost)
        return words.count(APPLIED)

    async def stop(self, patience: float) -> None:
        """Let what was submitted enter, within so many seconds. What is answered after that stays out, and expires."""
        if self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._idle}, timeout=patience)
        self._shut = True

    async def _give_back(self, heads: list[RunHead]) -> None:
        """Not taken: what was reserved for it is for others at once."""
        reserved = [(head.run_id, head.reservation) for head in heads if head.reservation is not None]
        if reserved:
            await self.worker.port.unreserve(reserved)

    def _open_all(self, heads: list[RunHead], journals: dict[str, list[Event]]) -> list[Entry]:
        lock = self.worker.session.lock
        entries = []
        for head in heads:
            execution, events = self.worker.parked.take(head), journals.get(head.run_id)
            if execution is None and events is None:
                # It could not be read, or was not asked for: what was opened just now may have pushed a parked one out.
                # It stays out, and is left to its reservation as what FAILED is.
                continue
            if lock is not None:
                lock.opening(head.run_id, head.execution_seq)
            entries.append(self._open(head, execution, events or []))
        if lock is not None and entries:
            lock.opened()
        return entries

    # ---- the store's word, and what follows from it ------------------------------------------------------------------

    def _submit(self, entry: Entry, transition: Transition) -> None:
        try:
            answer = self.worker.port.submit(transition)
        except Exception as error:
            self._answered(entry, error)
            return
        if isinstance(answer, str):
            self._answered(entry, answer)
            return
        self._under_way.add(entry)
        asyncio.ensure_future(answer).add_done_callback(partial(self._called_back, entry))

    def _called_back(self, entry: Entry, answer: asyncio.Future[str]) -> None:
        self._under_way.discard(entry)
        if answer.cancelled():
            self._answered(entry, ServerUnreachable("the connection was closed before the answer came", hint=""))
        else:
            self._answered(entry, answer.exception() or answer.result())
        if self._idle is not None and not self._under_way and not self._idle.done():
            self._idle.set_result(None)

    def _answered(self, entry: Entry, word: Word) -> None:
        if isinstance(word, PayloadTooLarge) and entry.refusable:
            self._refuse(entry, word)
            return
        worker, head = self.worker, entry.head
        worker.taking.discard(head.run_id)
        try:
            if word == APPLIED:
                self._enter(entry)
            elif entry.execution is not None:
                entry.execution.close()
            if isinstance(word, OUTAGES):
                # Whether it was or will be applied is unknown; if so, it is given back once the store is reached.
                worker.nominal.add((head.run_id, head.execution_seq, entry.token_hash))
        finally:
            entry.settle(word if entry.created is not None else _told(head, word))

    def _enter(self, entry: Entry) -> None:
        """The activation is committed: the worker goes on with it, unless it has left meanwhile."""
        worker, head = self.worker, entry.head
        if entry.created is not None and worker.observer is not None:
            worker.observer.created(entry.created)
        if self._shut:
            if entry.execution is not None:
                entry.execution.close()
            return
        worker.entered(head, entry.execution, entry.plan, entry.token_hash)
        segment = worker.segments.get(head.run_id)
        if segment is not None:
            self._broken_off.watch(segment)

    def _refuse(self, entry: Entry, error: IronflowError) -> None:
        """End a run whose first commit can never be made."""
        if entry.execution is not None:
            entry.execution.close()
            entry.execution = None
        entry.refusable = False
        head, new_seq = entry.seen, entry.head.execution_seq
        entry.plan = ending.refused(self.worker.registry.get(head.workflow), head, entry.last_seq, new_seq, error)
        lease = self._lease(head.run_id, new_seq, entry.token_hash)
        self._submit(entry, activation(entry.plan, head, new_seq, lease))

    # ---- opening -----------------------------------------------------------------------------------------------------

    def _open(self, head: RunHead, execution: Execution | None, events: list[Event]) -> Entry:
        worker = self.worker
        new_seq = head.execution_seq + 1
        plan: Plan
        try:
            if execution is None:
                spec = worker.registry.get(head.workflow)
                ending.check_version(spec, head)
                if not events:  # deleted meanwhile, and its guard refuses; to go on would be to begin from the start
                    raise ReplayError(f"the journal of run {head.run_id} is empty", hint=NO_JOURNAL)
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
        head.execution_seq, head.state = new_seq, transition.state or runs.RUNNING
        self._submit(entry, transition)
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
        entry = Entry(head, execution, plan, worker.port.new_token(), row)
        transition = self._fresh(row, plan, entry.token_hash)
        head.execution_seq, head.state = 1, row.state
        worker.taking.add(row.run_id)
        self._submit(entry, transition)
        word = await entry.heard()
        if isinstance(word, BaseException):
            raise word
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


def _once(heads: list[RunHead]) -> list[RunHead]:
    """Each run once, as it was seen last: what is due may be handed to the queue between two looks of one round."""
    newest: dict[str, RunHead] = {}
    for head in heads:
        seen = newest.get(head.run_id)
        if seen is None or _age(seen) <= _age(head):
            newest[head.run_id] = head
    return list(newest.values())


def _age(head: RunHead) -> tuple[int, int, bool]:
    """Of two views of a run, the newer one has the higher; of equal ones, the one that is promised to us."""
    return head.execution_seq, head.facts, head.reservation is not None


def _told(head: RunHead, word: Word) -> str:
    """The word for a run that somebody else has made: nobody but the log hears why it could not be activated."""
    if isinstance(word, str):
        return word
    if isinstance(word, OUTAGES):
        log.warning("run %s could not be activated: %s", head.run_id, word.message)
    else:
        log.error("run %s could not be activated", head.run_id, exc_info=word)
    return FAILED


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
