"""Execution: a workflow instance held against its journal. Pure: facts and times go in, plans come out.

What it owns: the instance, every open step and timer of the run, and the events not yet committed. What it
promises: live and replayed, the workflow is fed the same facts in the same order with the same times; a step
with a recorded result is never executed; where the code no longer fits the journal, nothing of the new path
is journaled; and what is left to do is decided in one place, `settle`, after every activation.

What the code has asked for is kept by its base, the `Ledger`. How a journal is replayed stands in `replay`,
how a segment ends in `ending`, and how a run is undone in `undo`.
"""

from __future__ import annotations

import heapq
import json
from asyncio import CancelledError
from collections.abc import Collection
from typing import Any

from ironflow.codec.exceptions import encode_error
from ironflow.codec.values import parse
from ironflow.engine import ending, replay
from ironflow.engine.blame import blamed, revived
from ironflow.engine.definitions import TRANSACTION
from ironflow.engine.instance import Raised
from ironflow.engine.ledger import Ledger
from ironflow.engine.plan import BACKOFF, EXECUTING, REFUSED, STOPPING, WANTED, Plan, StepRun
from ironflow.engine.reconcile import Done, NotDone
from ironflow.engine.requests import Completed, Fact, Failed, Fired
from ironflow.errors import PayloadError, RunTimeout, StepFailed, StepInterrupted
from ironflow.model import journal as j
from ironflow.model import run as runs

#: A back-off up to this long keeps its slot, ms: giving it back costs more than it frees.
HELD_BACKOFF_MS = 5_000

_UNREAD: Any = object()
#: In the payload of a fact that is committed before the code is told of it; see `history.RecordedFact`.
_UNTOLD = ',"untold":true'


class Execution(Ledger):
    """One run in one segment; a parked one serves the next segment of the same run."""

    __slots__ = ()

    # ---- opening a segment

    def created(self, payload: str) -> None:
        """Journal the creation of a run that starts on the spot."""
        self.journal(j.RUN_CREATED, None, payload)

    def open(self, execution_seq: int, now: int, worker: str, adopted: Collection[tuple[str, int]] = ()) -> None:
        """Begin a segment: journal it, replay what is recorded (first time only), see what was cut off.

        Args:
            execution_seq: the fence this segment writes under.
            now: database time, ms.
            worker: shown in the journal.
            adopted: (step id, try) of bodies of this run that this very process still executes.

        Raises:
            ReplayDivergence: the code does not fit the journal. Nothing may be journaled but that.
        """
        self._execution_seq = execution_seq
        kind = j.RUN_RESUMED if self.history.started else j.RUN_STARTED
        at = max(now, self.now)
        extra = ',"cancelling":true' if self.head.state == runs.CANCELLING else ""
        self.journal(kind, None, f'{{"t":{at},"worker":{json.dumps(worker)}{extra}}}')
        # Before the code goes on: whether it could come to its end at once is not asked any more.
        self._end_if_overdue(at)
        if not self._opened:
            self._opened = True
            replay.run(self, at, adopted)

    # ---- what happened

    def ended(
        self,
        step: StepRun,
        now: int,
        result: str | None,
        error: BaseException | None,
        value: Any = _UNREAD,
        *,
        defer: bool = False,
    ) -> None:
        """A body ended. What nobody wants any more is dropped.

        Args:
            step: the step.
            now: database time, ms.
            result: its encoded result; None if it failed.
            error: what it raised.
            value: the result as reading `result` gives it, where the caller has it already.
            defer: journal the fact only, marked as one that the code has not seen; it is told by the next `settle`.
        """
        if step.state == STOPPING:
            del self.stopping[step.id]
            step.close()
            self.journal(j.STEP_CANCELLED, step.id, None)
            return
        if step.state != EXECUTING:
            return
        self.executing -= 1
        if now > self.now:
            self.now = now
        mark = _UNTOLD if defer or self.untold else ""
        if error is not None:
            fact: Fact | None = self._failed(step, error, mark)
        else:
            step.close()
            del self.steps[step.id]
            self.journal(j.STEP_COMPLETED, step.id, f'{{"t":{self.now}{mark},"result":{result}}}')
            self._progress()
            if value is _UNREAD:
                value = step.spec.result.decode(result or "null")
            fact = Completed(step.id, value)
        if fact is not None:
            if mark:
                self.untold.append((fact, self.now))
            else:
                self._tell(fact, self.now)

    def _progress(self) -> None:
        head = self.head
        if head.consecutive_recoveries or head.charged_recoveries:
            head.consecutive_recoveries = head.charged_recoveries = 0
            self.plan.progress = True

    def reconciled(self, step: StepRun, now: int, answer: Any, error: BaseException | None) -> None:
        """The author's `reconcile` told what became of an interrupted try.

        An error of its own tells nothing about the try, so it counts as `Unknown`: the run pauses, and asks
        again when a person lets it go on.
        """
        step.reconciling = False
        if isinstance(answer, Done) and error is None:
            try:
                text, value = step.spec.result.snapshot(answer.value, path=f"{step.id} result", limit=self.limit)
            except Exception as refused:
                self.ended(step, now, None, refused)
            else:
                self.ended(step, now, text, None, value)
        elif step.state == EXECUTING and self.undo is not None and not isinstance(answer, NotDone):
            # A run that is being undone comes to its end, and is not held: what is unknown is told with that end.
            self.executing -= 1
            message = f"step {step.id} was cut off, and `reconcile` does not know whether it took effect"
            self.fail(step, error or StepInterrupted(message))
        elif step.state == EXECUTING:
            self.executing -= 1
            self.want(step)
            if error is not None or not isinstance(answer, NotDone):
                self.hold = {"reason": "STEP_OUTCOME_UNKNOWN", "step_id": step.id}
                if error is not None:
                    self.hold["error"] = json.loads(encode_error(error))
        else:
            self.ended(step, now, None, error)

    def _failed(self, step: StepRun, error: BaseException, mark: str) -> Failed | None:
        if isinstance(error, CancelledError):
            # Raised into the workflow as it is, it would look as if the workflow had been cancelled.
            error = StepFailed("asyncio.CancelledError", "the body was cancelled, and not by its workflow")
        step.tries += 1
        policy = step.spec.retry
        # A result that cannot be stored comes again with every try, and so would the body's effects.
        final = step.tries >= policy.max_attempts or isinstance(error, PayloadError)
        if final or not policy.matches(error, step.spec.kind):
            return self.fail(step, error, mark)
        step.due = self.now + policy.delay_ms(step.tries, self.chance(), ending.asked_wait(error))
        step.state = BACKOFF
        step.try_no += 1
        self.push(step.due, step.id)
        self.journal(
            j.STEP_RETRYING,
            step.id,
            f'{{"t":{self.now},"attempt":{step.tries},"of":{policy.max_attempts},"due":{step.due},'
            f'"error":{encode_error(error)}}}',
        )
        return None

    def fail(self, step: StepRun, error: BaseException, mark: str = "") -> Failed:
        """Journal that a step has failed for good; the fact is for the caller to tell. `mark`: of one told later."""
        text = encode_error(error)
        step.close()
        self.steps.pop(step.id, None)
        self.journal(j.STEP_FAILED, step.id, f'{{"t":{self.now}{mark},"error":{text}}}')
        if self.undo is not None:
            self.undo_errors[step.id] = text
        return Failed(step.id, blamed(revived(parse(text)), step.id))

    def _tell(self, fact: Fact, at: int) -> None:
        if self.verdict is None and fact.id in self.instance.open:
            self.take(self.instance.activate(fact, at, False))
            if self.ready or self.refused:
                self.answer()

    def answer(self) -> None:
        """Answer what needs no body: first carried results in the order of the journal, then refused calls.

        The order is the one replay keeps: it feeds carried results as soon as they are asked for, and meets
        a refusal as a fact of its own.
        """
        while True:
            if self.ready:
                step_id = heapq.heappop(self.ready)[1]
                if step_id in self.instance.open:
                    replay.feed(self, self.history.carried[step_id])
            elif self.refused and self.replaying is None:
                step, error = self.refused.pop(0)
                if step.state == REFUSED:
                    failed = self.fail(step, error)
                    if self.verdict is None and step.id in self.instance.open:
                        self.take(self.instance.activate(failed, self.now, False))
            else:
                return

    # ---- what is left to do

    def facts(self) -> Plan:
        """The plan so far: what ended, before the code is told of it. Commit it, then `settle`.

        Workflow code that computes for long must not keep results from being stored meanwhile.
        """
        plan, self.plan = self.plan, Plan()
        return plan

    def settle(self, now: int) -> Plan:
        """Decide what is left: execute, wait, suspend, finish, or stuck. The one place that decides it.

        Args:
            now: database time, ms.

        Returns:
            the plan since the last call; commit it before anything else is fed.
        """
        while self.untold:
            self._tell(*self.untold.pop(0))
        if self.due and self.due[0][0] <= now:
            self._fire(now)
        self._end_if_overdue(now)
        plan = self.plan
        outcome = self.verdict or self.instance.outcome
        over = outcome is not None or self.history.asked_to_compensate
        if self.wanted and self.hold is None and not over and not self.leaving:
            self._begin_wanted()
        if self.hold is not None:
            plan.leave = ending.pause(self, now)
        elif over:
            plan.leave = ending.end(self, outcome, now)
        elif not self.executing and (self.leaving or not self._busy(now)):
            plan.leave = ending.release(self, now) if self.leaving else ending.suspend_or_stuck(self, now)
        if plan.leave is None and (self.due or self.head.deadline_at is not None):
            plan.wake_at = ending.next_wake(self)
        self.plan = Plan()
        return plan

    def _begin_wanted(self) -> None:
        wanted, self.wanted = self.wanted, []
        for step in wanted:
            if step.state != WANTED:
                continue
            if step.spec.kind == TRANSACTION and not self.transactions:
                # Not begun, so that nothing of it is cut off: a worker that has the database begins it.
                self.wanted.append(step)
                self.hold = {"reason": runs.NEEDS_DATABASE, "step_id": step.id}
            else:
                self.begin(step)

    def _fire(self, now: int) -> None:
        """Timers and back-offs that are due, in the order of their due times."""
        due = self.due
        while due and due[0][0] <= now:
            at, _, key = heapq.heappop(due)
            step = self.steps.get(key)
            if step is not None:
                if step.state == BACKOFF:
                    self.want(step)
            elif self.timers.get(key) == at and self.listening:
                del self.timers[key]
                self.now = max(self.now, now)
                self.journal(j.TIMER_FIRED, key, f'{{"t":{self.now}}}')
                replay.note_limit(self, key)
                self._tell(Fired(key), self.now)

    @property
    def listening(self) -> bool:
        """Whether the code goes on: it has not ended, and nobody has ended or held the run."""
        return self._goes_on and self.verdict is None and self.hold is None

    def overdue(self, now: int) -> bool:
        """Whether the run's own deadline has passed while its code went on."""
        deadline = self.head.deadline_at
        return deadline is not None and now >= deadline and self.verdict is None and self._goes_on

    def _end_if_overdue(self, now: int) -> None:
        if self.head.deadline_at is not None and self.overdue(now):
            self.verdict = Raised(RunTimeout(f"run {self.head.run_id} did not end within its time"))

    @property
    def _goes_on(self) -> bool:
        return self.instance.outcome is None and not self.history.asked_to_compensate

    def _busy(self, now: int) -> bool:
        """Whether something of this run still ends here, or is tried again within a moment."""
        return bool(self.stopping) or any(
            step.state == BACKOFF and step.due - now <= HELD_BACKOFF_MS for step in self.steps.values()
        )
