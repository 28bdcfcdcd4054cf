"""The journal: its kinds, its events, and `fold`, which reads a whole run back from them.

The journal is the authority. The row of a run and the view of its steps are projections that `fold` reproduces;
`ironflow doctor` compares the two on a live database. Payloads are JSON objects. A fact (an event that is fed to the
workflow on replay) carries its own time `t` in the payload: the time the workflow saw, which is not the time of the
commit that `at` holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ironflow.model import run as runs
from ironflow.model import step as steps

# ---- the run
RUN_CREATED = "run_created"
RUN_STARTED = "run_started"
RUN_SUSPENDED = "run_suspended"
RUN_RESUMED = "run_resumed"
RUN_RECOVERED = "run_recovered"
RUN_RELEASED = "run_released"
RUN_PAUSED = "run_paused"
RUN_UNPAUSED = "run_unpaused"
RUN_RETRYING = "run_retrying"
CANCEL_REQUESTED = "cancel_requested"
RUN_COMPENSATING = "run_compensating"
RUN_REOPENED = "run_reopened"
RUN_SUCCEEDED = "run_succeeded"
RUN_FAILED = "run_failed"
RUN_CANCELLED = "run_cancelled"
# ---- its steps
STEP_STARTED = "step_started"
STEP_COMPLETED = "step_completed"
STEP_FAILED = "step_failed"
STEP_RETRYING = "step_retrying"
STEP_INTERRUPTED = "step_interrupted"
STEP_CANCELLED = "step_cancelled"
STEP_SKIPPED = "step_skipped"
# ---- time, values, notes
TIMER_STARTED = "timer_started"
TIMER_FIRED = "timer_fired"
VALUE_RECORDED = "value_recorded"
COMPENSATION_REGISTERED = "compensation_registered"
STATUS_SET = "status_set"
OUTPUT_SET = "output_set"
WARNING = "warning"

#: What each kind means, for the reference; the order is the order of a run's life.
KINDS: dict[str, str] = {
    RUN_CREATED: "the run exists; payload: input, and how it was started",
    RUN_STARTED: "its first segment began on a worker",
    RUN_SUSPENDED: "the segment left the worker: only waits are open",
    RUN_RESUMED: "a later segment began",
    RUN_RECOVERED: "the lease was lost: the next execution_seq fences the old owner off; closes every open try",
    RUN_RELEASED: "the worker gave the run back by itself (drain)",
    RUN_PAUSED: "held by an operator or by a divergence",
    RUN_UNPAUSED: "the hold was lifted",
    RUN_RETRYING: "the attempt failed and another one follows",
    CANCEL_REQUESTED: "somebody asked for the end of the run",
    RUN_COMPENSATING: "the run has failed; what it registered is undone before it ends",
    RUN_REOPENED: "a failed or cancelled run was opened again; the next epoch",
    RUN_SUCCEEDED: "terminal: payload holds the output",
    RUN_FAILED: "terminal: payload holds the error",
    RUN_CANCELLED: "terminal",
    STEP_STARTED: "the body is about to run; committed before it does",
    STEP_COMPLETED: "the result is stored; the body never runs again in this attempt",
    STEP_FAILED: "the error is stored and was raised into the workflow",
    STEP_RETRYING: "a try failed; payload: attempt, of, error, and the due time of the next",
    STEP_INTERRUPTED: "the body had started and its end is unknown: the owner was lost",
    STEP_CANCELLED: "the workflow no longer wants the step; a late result is dropped",
    STEP_SKIPPED: "the workflow skipped a step by name",
    TIMER_STARTED: "a timer outlives its segment; written at suspension only",
    TIMER_FIRED: "a timer reached its due time",
    VALUE_RECORDED: "a value the workflow may see again only from here (patched)",
    COMPENSATION_REGISTERED: "what to undo if the run fails or is cancelled",
    STATUS_SET: "a line of status for people",
    OUTPUT_SET: "the output so far, or in place of the returned one",
    WARNING: "the run will end as `warning`",
}

#: One of these ends an epoch; exactly one per epoch.
TERMINAL_KINDS = frozenset({RUN_SUCCEEDED, RUN_FAILED, RUN_CANCELLED})
#: What replay feeds to the workflow, one at a time, in the order of the journal.
FACT_KINDS = frozenset({STEP_COMPLETED, STEP_FAILED, TIMER_FIRED})
#: A change of owner: these carry the new execution_seq.
OWNER_KINDS = frozenset({RUN_STARTED, RUN_RESUMED, RUN_RECOVERED, RUN_PAUSED, CANCEL_REQUESTED, RUN_REOPENED})


class Event:
    """One row of the journal. `seq` 0 asks the store for the next number; `payload` is JSON text or None."""

    __slots__ = ("at", "execution_seq", "kind", "payload", "seq", "step_id")

    def __init__(
        self,
        seq: int,
        kind: str,
        step_id: str | None = None,
        payload: str | None = None,
        execution_seq: int = 0,
        at: int = 0,
    ) -> None:
        self.seq = seq
        self.kind = kind
        self.step_id = step_id
        self.payload = payload
        self.execution_seq = execution_seq
        self.at = at

    def data(self) -> dict[str, Any]:
        """The payload as plain JSON (values of the user stay in their stored form)."""
        return json.loads(self.payload) if self.payload else {}

    def __repr__(self) -> str:
        return f"Event({self.seq}, {self.kind!r}, {self.step_id!r}, {self.payload!r}, {self.execution_seq})"


@dataclass(slots=True)
class Try:
    """One try of a step's body."""

    number: int
    state: str
    started_at: int
    ended_at: int | None = None
    error: dict[str, Any] | None = None
    execution_seq: int = 0


@dataclass(slots=True)
class StepView:
    """A step as lists show it: its current state, and every try it took."""

    step_id: str
    name: str
    kind: str = "tool"
    state: str = steps.SCHEDULED
    tries: list[Try] = field(default_factory=list)
    due_at: int | None = None
    result: Any = None
    error: dict[str, Any] | None = None

    @property
    def attempt(self) -> int:
        """The number of the current or last try; an interrupted try keeps its number."""
        return self.tries[-1].number if self.tries else 0


@dataclass(slots=True)
class Folded:
    """What a journal says about its run."""

    state: str = runs.PENDING
    execution_seq: int = 0
    epoch: int = 1
    attempt: int = 1
    retry_count: int = 0
    lease_recoveries: int = 0
    consecutive_recoveries: int = 0
    compensations: int = 0
    warnings: int = 0
    status_text: str | None = None
    reason: str | None = None
    input: Any = None
    output: Any = None
    error: dict[str, Any] | None = None
    created_at: int = 0
    ended_at: int | None = None
    last_seq: int = 0
    steps: dict[str, StepView] = field(default_factory=dict)
    breaches: list[str] = field(default_factory=list)
    ended_in_epoch: bool = False


def fold(events: Iterable[Event]) -> Folded:
    """Read a run back from its journal.

    Never raises on a journal that claims the impossible: what broke a rule is listed in `breaches`, so that one bad
    run cannot stop a check of thousands.
    """
    view = Folded()
    for event in events:
        if event.seq != view.last_seq + 1:
            view.breaches.append(f"seq {event.seq} follows {view.last_seq}: the journal is not dense")
        view.last_seq = event.seq
        if event.execution_seq < view.execution_seq:
            view.breaches.append(
                f"seq {event.seq} was written by execution_seq {event.execution_seq}, after {view.execution_seq}"
            )
        view.execution_seq = max(view.execution_seq, event.execution_seq)
        if view.ended_in_epoch and event.kind != RUN_REOPENED:
            view.breaches.append(f"seq {event.seq} ({event.kind}) follows the terminal event of its epoch")
        handler = _FOLD.get(event.kind)
        if handler is not None:
            handler(view, event, event.data())
    return view


def _created(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.created_at, view.input = event.at, data.get("input")


def _to(state: str) -> Any:
    def move(view: Folded, event: Event, data: dict[str, Any]) -> None:
        view.state = state

    return move


def _suspended(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state = data["state"]


def _resumed(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state = runs.CANCELLING if data.get("cancelling") else runs.RUNNING


def _recovered(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.lease_recoveries += 1
    if data.get("charged", True):
        view.consecutive_recoveries += 1
    if view.state != runs.CANCELLING:
        view.state = runs.PENDING
    _interrupt_open(view, event)


def _released(view: Folded, event: Event, data: dict[str, Any]) -> None:
    if view.state != runs.CANCELLING:
        view.state = runs.PENDING
    _interrupt_open(view, event)


def _paused(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state, view.reason = runs.PAUSED, data.get("reason")
    _interrupt_open(view, event)


def _unpaused(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state, view.reason = data["state"], None


def _retrying(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state = runs.RETRYING
    view.attempt += 1
    view.retry_count += 1
    if data.get("mode") == "restart":  # what it noted down is forgotten, and noted again
        view.warnings = view.compensations = 0


def _cancel_requested(view: Folded, event: Event, data: dict[str, Any]) -> None:
    _interrupt_open(view, event)
    if data.get("compensate"):
        view.state = runs.CANCELLING


def _reopened(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state, view.epoch, view.attempt = runs.PENDING, view.epoch + 1, view.attempt + 1
    view.ended_in_epoch, view.ended_at, view.error, view.reason = False, None, None, None
    view.consecutive_recoveries = view.retry_count = 0


def _ended(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.ended_in_epoch, view.ended_at = True, event.at
    if event.kind == RUN_SUCCEEDED:
        view.state = runs.WARNING if view.warnings else runs.COMPLETED
        view.output = data.get("output")
    else:
        view.state = runs.FAILED if event.kind == RUN_FAILED else runs.CANCELLED
        view.error = data.get("error")
    for step in view.steps.values():
        if step.state in (steps.RUNNING, steps.RETRYING, steps.INTERRUPTED):
            _end_try(view, step, event, steps.CANCELLED, data.get("error"))


def _step_started(view: Folded, event: Event, data: dict[str, Any]) -> None:
    step_id = event.step_id or ""
    step = view.steps.get(step_id)
    if step is None:
        step = view.steps[step_id] = StepView(step_id, name_of(step_id), data.get("kind", "tool"))
    _move(view, step, event, steps.RUNNING)
    step.due_at = None
    number = data.get("try", 1)
    step.tries.append(Try(number, steps.RUNNING, event.at, execution_seq=event.execution_seq))


def _step_ended(state: str) -> Any:
    def end(view: Folded, event: Event, data: dict[str, Any]) -> None:
        step = view.steps.get(event.step_id or "")
        if step is None and state == steps.FAILED:  # refused at the call: there was no try
            step = view.steps[event.step_id or ""] = StepView(event.step_id or "", name_of(event.step_id or ""))
        if step is None:
            view.breaches.append(f"seq {event.seq} ({event.kind}) ends {event.step_id}, which never started")
            return
        _end_try(view, step, event, state, data.get("error"))
        step.due_at = data.get("due")
        if state == steps.COMPLETED:
            step.result = data.get("result")
            view.consecutive_recoveries = 0

    return end


def _skipped(view: Folded, event: Event, data: dict[str, Any]) -> None:
    step_id = event.step_id or ""
    view.steps[step_id] = StepView(step_id, name_of(step_id), state=steps.SKIPPED)


def _compensation(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.compensations += 1


def _status(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.status_text = data.get("text")


def _warning(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.warnings += 1


def _move(view: Folded, step: StepView, event: Event, target: str) -> None:
    if target not in steps.TRANSITIONS[step.state]:
        view.breaches.append(
            f"seq {event.seq}: step {step.step_id} is {step.state} and cannot become {target}"
        )
    step.state = target


def _end_try(view: Folded, step: StepView, event: Event, state: str, error: dict[str, Any] | None) -> None:
    if step.state != state:
        _move(view, step, event, state)
    if step.tries and step.tries[-1].ended_at is None:
        last = step.tries[-1]
        last.state, last.ended_at, last.error = state, event.at, error
    step.error = error


#: What an interrupted try shows in step lists.
INTERRUPTED_ERROR: dict[str, Any] = {"message": "interrupted: worker lease lost"}


def _interrupt_open(view: Folded, event: Event) -> None:
    """A change of owner closes every open try: what the old owner did after its last record is unknown."""
    for step in view.steps.values():
        if step.state == steps.RUNNING:
            _end_try(view, step, event, steps.INTERRUPTED, INTERRUPTED_ERROR)


def name_of(step_id: str) -> str:
    """The name inside a step id (`scope/index:name`)."""
    return step_id.split(":", 1)[1] if ":" in step_id else step_id


def dense(events: Sequence[Event], after: int = 0) -> bool:
    """Whether these events follow `after` without a gap."""
    return all(event.seq == after + i for i, event in enumerate(events, 1))


_FOLD: dict[str, Any] = {
    RUN_CREATED: _created,
    RUN_STARTED: _resumed,
    RUN_RESUMED: _resumed,
    RUN_SUSPENDED: _suspended,
    RUN_RECOVERED: _recovered,
    RUN_RELEASED: _released,
    RUN_PAUSED: _paused,
    RUN_UNPAUSED: _unpaused,
    RUN_RETRYING: _retrying,
    CANCEL_REQUESTED: _cancel_requested,
    RUN_COMPENSATING: _to(runs.CANCELLING),
    RUN_REOPENED: _reopened,
    RUN_SUCCEEDED: _ended,
    RUN_FAILED: _ended,
    RUN_CANCELLED: _ended,
    STEP_STARTED: _step_started,
    STEP_COMPLETED: _step_ended(steps.COMPLETED),
    STEP_FAILED: _step_ended(steps.FAILED),
    STEP_RETRYING: _step_ended(steps.RETRYING),
    STEP_INTERRUPTED: _step_ended(steps.INTERRUPTED),
    STEP_CANCELLED: _step_ended(steps.CANCELLED),
    STEP_SKIPPED: _skipped,
    COMPENSATION_REGISTERED: _compensation,
    STATUS_SET: _status,
    WARNING: _warning,
}
