"""Execution: a workflow instance held against its journal. Pure: facts and times go in, plans come out.

What it owns: the instance, the history it replays, every open step and timer, and the events not yet committed.
What it promises: live and replayed, the workflow is fed the same facts in the same order with the same times; a step
with a recorded result is never executed; where the code no longer fits the journal, nothing of the new path is
journaled; and what is left to do is decided in one place, `settle`, after every activation.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Any

from ironflow.codec.arguments import digest
from ironflow.codec.exceptions import decode_error, encode_error
from ironflow.engine import ending
from ironflow.engine.definitions import WorkflowSpec
from ironflow.engine.history import CANCELLED, INTERRUPTED, RETRYING, STARTED, Fact, History
from ironflow.engine.instance import Instance, Raised, Returned, RunInfo, UnknownFact
from ironflow.engine.plan import BACKOFF, CLOSED, EXECUTING, STOPPING, WANTED, Plan, StepRun
from ironflow.engine.reconcile import Done, NotDone
from ironflow.engine.requests import (
    CancelStep,
    CancelTimer,
    Completed,
    Failed,
    Fired,
    Note,
    Request,
    StartTimer,
    StepCall,
)
from ironflow.errors import IronflowError, ReplayDivergence, StepInterrupted
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.capacity import RunHead
from ironflow.model.ids import seed_of
from ironflow.model.journal import Event

#: A back-off up to this long keeps its slot: giving it back costs more than it frees.
HELD_BACKOFF_MS = 5_000


class Execution:
    """See the module's docstring. One per segment; a parked one serves the next segment of the same run."""

    def __init__(
        self,
        spec: WorkflowSpec,
        head: RunHead,
        history: History,
        *,
        chance: Callable[[], float],
        strict: bool = False,
    ) -> None:
        self.spec = spec
        self.head = head
        self.history = history
        self.chance = chance
        info = RunInfo(
            head.run_id,
            head.root_run_id,
            spec.name,
            head.attempt,
            seed_of(head.run_id, head.attempt),
            history.patches,
        )
        value = spec.input.validate(history.input) if spec.has_input else None
        self.instance = Instance(spec, value, info, strict=strict)
        #: the time of the last fact, ms
        self.now = history.started_at
        self.last_seq = history.last_seq
        self.steps: dict[str, StepRun] = {}
        self.stopping: dict[str, StepRun] = {}
        #: asked for or due again, not started yet, in order; may hold steps that were cancelled since
        self.wanted: list[StepRun] = []
        #: how many bodies execute
        self.executing = 0
        self.timers: dict[str, int] = {}
        self.plan = Plan()
        self.compensations: dict[str, StepCall] = {}
        self.undo: ending.Undo | None = None
        self.warnings = history.warnings
        self.output: str | None = None
        #: set where the end of the run does not come from the code: a deadline, an unknown outcome
        self.verdict: Raised | None = None
        self.hold: dict[str, Any] | None = None
        self._due: list[tuple[int, int, str]] = []
        self._order = 0
        self._reached: set[str] = set()
        self._changed: dict[str, str] = {}
        self._dropped: list[StepRun] = []
        self._ready: list[tuple[int, str]] = []
        self._execution_seq = head.execution_seq
        self._opened = False

    # ---- opening a segment ---------------------------------------------------------------------------------------

    def created(self, payload: str) -> None:
        """Journal the creation of a run that starts on the spot."""
        self._event(j.RUN_CREATED, None, payload)

    def open(
        self, execution_seq: int, now: int, worker: str, adopted: Collection[tuple[str, int]] = ()
    ) -> None:
        """Begin a segment: journal it, replay what is recorded (first time only), and see what was cut off.

        Args:
            execution_seq: the fence this segment writes under.
            now: database time, ms.
            worker: shown in the journal.
            adopted: (step id, try) of bodies of this run that this very process still executes; they are not cut off.

        Raises:
            ReplayDivergence: the code does not fit the journal. Nothing was journaled.
        """
        self._execution_seq = execution_seq
        kind = j.RUN_RESUMED if self.history.started else j.RUN_STARTED
        extra = ',"cancelling":true' if self.head.state == runs.CANCELLING else ""
        self._event(kind, None, f'{{"t":{max(now, self.now)},"worker":"{worker}"{extra}}}')
        if not self._opened:
            self._opened = True
            self._replay()
        self.history.started = True
        self._settle_records(adopted)

    def _replay(self) -> None:
        history, instance = self.history, self.instance
        replaying = history.started
        self._take(instance.start(self.now, replaying), replaying)
        self._feed_carried()
        for fact in history.facts:
            if fact.step_id in self.compensations:
                ending.replayed(self, fact)
                continue
            self._feed(fact)
            self._feed_carried()
        self._compare()
        history.facts.clear()

    def _feed(self, fact: Fact) -> None:
        step = self.steps.pop(fact.step_id, None)
        if step is not None:
            step.state = CLOSED
        self.timers.pop(fact.step_id, None)
        self.now = max(self.now, fact.at)
        told = self._told(fact, step)
        try:
            requests = self.instance.activate(told, self.now, True)
        except UnknownFact:
            raise ReplayDivergence(
                step_id=fact.step_id, expected="(not asked for)", recorded=f"{fact.kind} at seq {fact.seq}"
            ) from None
        self._take(requests, True)

    def _told(self, fact: Fact, step: StepRun | None) -> Completed | Failed | Fired:
        if fact.kind == j.TIMER_FIRED:
            return Fired(fact.step_id)
        if fact.kind == j.STEP_FAILED:
            return Failed(fact.step_id, ending.blamed(decode_error(fact.payload["error"]), fact.step_id))
        tree = fact.payload.get("result")
        return Completed(fact.step_id, step.spec.result.validate(tree) if step is not None else tree)

    def _feed_carried(self) -> None:
        """Results of an earlier attempt are answered as soon as they are asked for, in the order of the journal."""
        while self._ready:
            _, step_id = heapq.heappop(self._ready)
            if step_id in self.instance.open:
                self._feed(self.history.carried[step_id])

    def _compare(self) -> None:
        """After replay: everything recorded was reached, and no two results were swapped."""
        records = self.history.recorded
        for step_id in self.history.slots.values():
            if step_id not in self._reached and step_id not in self.compensations:
                raise ReplayDivergence(
                    step_id=step_id, expected="(not reached)", recorded=records[step_id].kind
                )
        for step_id, new in self._changed.items():
            for other in self._changed:
                if (
                    other != step_id
                    and j.name_of(other) == j.name_of(step_id)
                    and records[other].input_hash == new
                ):
                    raise ReplayDivergence(
                        step_id=step_id, expected=f"the input recorded for {other}", recorded="another input"
                    )
        if self._changed and self.spec.strict_inputs:
            step_id = next(iter(self._changed))
            raise ReplayDivergence(step_id=step_id, expected="the recorded input", recorded="another input")

    def _settle_records(self, adopted: Collection[tuple[str, int]]) -> None:
        """What was open when the last owner was lost: cut off, cancelled since, in back-off, or still running here."""
        for step in self._dropped:
            if self._record_state(step) == STARTED:
                self._event(j.STEP_CANCELLED, step.id, None)
        self._dropped.clear()
        for step in list(self.steps.values()):
            if step.state == EXECUTING:
                continue
            state = self._record_state(step)
            if state == STARTED and (step.id, step.try_no) in adopted:
                step.state = EXECUTING
                self.executing += 1
                self.plan.start.append(step)
            elif state == STARTED:
                self._event(j.STEP_INTERRUPTED, step.id, '{"reason":"the owner was lost"}')
                self._interrupted(step)
            elif state == CANCELLED:
                raise ReplayDivergence(
                    step_id=step.id, expected="a step that is awaited", recorded="cancelled"
                )
        for record in self.history.recorded.values():
            if record.state == STARTED:
                record.state = INTERRUPTED

    def _record_state(self, step: StepRun) -> str | None:
        record = self.history.recorded.get(step.id)
        return record.state if record is not None else None

    def _interrupted(self, step: StepRun) -> None:
        if step.spec.at_most_once:
            self._fail(
                step,
                StepInterrupted(
                    f"step {step.id} was cut off and is marked at_most_once: whether it took effect is unknown"
                ),
            )
        elif step.spec.reconcile is not None:
            step.reconciling = True

    # ---- what the code asks for ----------------------------------------------------------------------------------

    def _take(self, requests: list[Request], replaying: bool) -> None:
        for request in requests:
            kind = type(request)
            if kind is StepCall:
                self._on_step(request, replaying)
            elif kind is StartTimer:
                self._on_timer(request)
            elif kind is CancelTimer:
                self.timers.pop(request.id, None)
            elif kind is CancelStep:
                self._on_cancel(request.id, replaying)
            else:
                self._on_note(request)

    def _on_step(self, call: StepCall, replaying: bool) -> None:
        step = StepRun(call)
        self.steps[call.id] = step
        self.wanted.append(step)
        history = self.history
        record = history.recorded.get(call.id)
        if history.slots or record is not None:
            place = call.id.partition(":")[0]
            if history.slots.get(place, call.id) != call.id:
                raise ReplayDivergence(step_id=place, expected=call.id, recorded=history.slots[place])
            self._reached.add(call.id)
        try:
            self.encode(step)
        except IronflowError as refused:
            if record is None or record.state is None:
                self._fail(step, refused)
            return
        if record is None:
            return
        step.try_no, step.tries = record.ended_tries + 1, record.tries_in_attempt
        if record.state is None:
            return
        if record.kind != call.step.kind:
            raise ReplayDivergence(step_id=call.id, expected=call.step.kind, recorded=record.kind)
        if record.state == RETRYING:
            step.state, step.due = BACKOFF, record.due
            self._push(step.due, step.id)
        elif record.input_hash is not None and record.input_hash != step.input_hash:
            self._changed[call.id] = step.input_hash
        carried = history.carried.get(call.id)
        if carried is not None:
            heapq.heappush(self._ready, (carried.seq, call.id))

    def encode(self, step: StepRun) -> None:
        """Store the arguments as the body will get them: copies, so that workflow and body share nothing mutable."""
        step.args_text = step.spec.arguments.encode(step.call.args, step.call.kwargs)
        step.input_hash = digest(step.args_text)

    def _on_timer(self, request: StartTimer) -> None:
        due = self.history.timers.get(request.id, request.due)
        self.timers[request.id] = due
        self._push(due, request.id)
        carried = self.history.carried.get(request.id)
        if carried is not None:
            heapq.heappush(self._ready, (carried.seq, request.id))

    def _on_cancel(self, step_id: str, replaying: bool) -> None:
        step = self.steps.pop(step_id, None)
        if step is None:
            return
        if step.state == EXECUTING:
            self.stop(step)
            return
        if step.state == BACKOFF:
            self._event(j.STEP_CANCELLED, step.id, None)
        elif replaying:
            self._dropped.append(step)
        step.state = CLOSED

    def stop(self, step: StepRun) -> None:
        """Cancel a running body; its end is awaited before the run may end, unless its author let it go."""
        self.plan.stop.append(step)
        self.executing -= 1
        if step.spec.on_cancel == "abandon":
            step.state = CLOSED
            self._event(j.STEP_CANCELLED, step.id, '{"abandoned":true}')
        else:
            step.state = STOPPING
            self.stopping[step.id] = step

    def _on_note(self, note: Note) -> None:
        if note.kind == j.COMPENSATION_REGISTERED and note.call is not None:
            self.compensations[note.call.id] = note.call
        elif note.kind == j.OUTPUT_SET:
            self.output = self.spec.output.encode(note.value, path="output")
        if (note.kind, note.id) in self.history.notes:
            return
        self.history.notes.add((note.kind, note.id))
        payload, changes = ending.note(self, note)
        self._event(note.kind, note.id, payload)
        if changes:
            self.plan.changes = {**(self.plan.changes or {}), **changes}

    def _want(self, step: StepRun) -> None:
        step.state = WANTED
        self.wanted.append(step)

    def _push(self, due: int, key: str) -> None:
        self._order += 1
        heapq.heappush(self._due, (due, self._order, key))

    # ---- what happened -------------------------------------------------------------------------------------------

    def ended(self, step: StepRun, now: int, result: str | None, error: BaseException | None) -> None:
        """A body ended: with its encoded result, or with what it raised. A result nobody wants any more is dropped."""
        if step.state == STOPPING:
            del self.stopping[step.id]
            step.state = CLOSED
            self._event(j.STEP_CANCELLED, step.id, None)
            return
        if step.state != EXECUTING:
            return
        self.executing -= 1
        self.now = max(self.now, now)
        if error is not None:
            self._failed(step, error)
            return
        step.state = CLOSED
        self.plan.progress = True
        self._event(j.STEP_COMPLETED, step.id, f'{{"t":{self.now},"result":{result}}}')
        del self.steps[step.id]
        self._activate(Completed(step.id, step.spec.result.decode(result or "null")))

    def reconciled(self, step: StepRun, now: int, answer: Any, error: BaseException | None) -> None:
        """The author's `reconcile` told what became of an interrupted try."""
        step.reconciling = False
        if error is not None:
            self.ended(step, now, None, error)
        elif isinstance(answer, Done):
            self.ended(step, now, step.spec.result.encode(answer.value, path=f"{step.id} result"), None)
        elif step.state == EXECUTING:
            self.executing -= 1
            self._want(step)
            if not isinstance(answer, NotDone):
                step.reconciling = True
                self.hold = {"reason": "STEP_OUTCOME_UNKNOWN", "step_id": step.id}

    def _failed(self, step: StepRun, error: BaseException) -> None:
        step.tries += 1
        policy = step.spec.retry
        if step.tries < policy.max_attempts and policy.matches(error, step.spec.kind):
            hint = getattr(error, "after_ms", None)
            step.due = self.now + policy.delay_ms(step.tries, self.chance(), hint)
            step.state = BACKOFF
            step.try_no += 1
            self._push(step.due, step.id)
            self._event(
                j.STEP_RETRYING,
                step.id,
                f'{{"t":{self.now},"attempt":{step.tries},"of":{policy.max_attempts},"due":{step.due},'
                f'"error":{encode_error(error)}}}',
            )
        else:
            self._fail(step, error)

    def _fail(self, step: StepRun, error: BaseException) -> None:
        text = encode_error(error)
        step.state = CLOSED
        self._event(j.STEP_FAILED, step.id, f'{{"t":{self.now},"error":{text}}}')
        self.steps.pop(step.id, None)
        if self.undo is not None:
            self.undo.errors[step.id] = text
        self._activate(Failed(step.id, ending.blamed(ending.revived(text), step.id)))

    def _activate(self, fact: Completed | Failed | Fired) -> None:
        if self.verdict is not None or fact.id not in self.instance.open:
            return
        self._take(self.instance.activate(fact, self.now, False), False)
        self._feed_carried()

    def _fire(self, now: int) -> None:
        """Timers and back-offs that are due, in the order of their due times."""
        due = self._due
        while due and due[0][0] <= now:
            at, _, key = heapq.heappop(due)
            step = self.steps.get(key)
            if step is not None and step.state == BACKOFF and step.due == at:
                self._want(step)
            elif self.timers.get(key) == at:
                del self.timers[key]
                self.now = max(self.now, now)
                self._event(j.TIMER_FIRED, key, f'{{"t":{self.now}}}')
                self._activate(Fired(key))

    def _event(self, kind: str, step_id: str | None, payload: str | None) -> None:
        self.last_seq += 1
        self.plan.events.append(Event(self.last_seq, kind, step_id, payload, self._execution_seq))

    # ---- what is left to do --------------------------------------------------------------------------------------

    def settle(self, now: int) -> Plan:
        """Decide what is left: execute, wait, suspend, finish, or stuck. The one place where that is decided.

        Returns the plan since the last call; commit it before anything else is fed.
        """
        if self.verdict is None:
            self._fire(now)
        plan = self.plan
        if ending.expired(self, now):
            ending.expire(self, now)
        outcome = self.verdict or self.instance.outcome
        if self.hold is not None:
            plan.leave = ending.pause(self, now)
        elif outcome is not None or self.history.asked_to_compensate:
            plan.leave = ending.end(self, outcome, now)
        else:
            wanted, self.wanted = self.wanted, []
            for step in wanted:
                if step.state == WANTED:
                    self.begin(step)
            if not self.executing and not self._busy():
                plan.leave = ending.suspend_or_stuck(self, now)
        if plan.leave is None:
            plan.wake_at = ending.next_wake(self)
        self.plan = Plan()
        return plan

    def begin(self, step: StepRun) -> None:
        """Journal the start of a try; its body runs after the commit."""
        step.state = EXECUTING
        self.executing += 1
        self.plan.start.append(step)
        if step.reconciling:
            return
        parts = [f'"input_hash":"{step.input_hash}"']
        if step.spec.kind != "tool":
            parts.append(f'"kind":"{step.spec.kind}"')
        if step.try_no > 1:
            parts.append(f'"try":{step.try_no}')
        self._event(j.STEP_STARTED, step.id, "{" + ",".join(parts) + "}")

    def _busy(self) -> bool:
        """Whether something of this run still ends here, or is tried again within a moment."""
        if self.stopping:
            return True
        return any(
            step.state == BACKOFF and step.due - self.now <= HELD_BACKOFF_MS for step in self.steps.values()
        )

    def close(self) -> None:
        """Drop the instance: its code runs no further, on no loop."""
        self.instance.close()


__all__ = ["HELD_BACKOFF_MS", "Execution", "Returned"]
