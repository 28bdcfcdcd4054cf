"""`fold` reads a whole run back from its journal: its state, its counters, its steps and every try of them.

Owns the one reading of a journal. Doctor compares it with the stored row, `runs get` shows it, and whoever follows a
run that is under way adds event by event to the same `Folder`, so no view can tell another story than the record does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ironflow.errors import CUT_OFF
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.journal import Event


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
    def try_no(self) -> int:
        """The number of the current or last try, 0 before the first; an interrupted try keeps its number."""
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
    #: the compensations that failed when the run was undone: step id → error
    undo_errors: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: what the run is paused for: the payload of the event that paused it
    hold: dict[str, Any] | None = None
    created_at: int = 0
    ended_at: int | None = None
    last_seq: int = 0
    #: where values stand that were not read along (`journal.APART`): of steps by their id, the input and the output
    apart: dict[str, int] = field(default_factory=dict)
    input_at: int | None = None
    output_at: int | None = None
    started_at: int | None = None
    #: when the earliest wait, or the next attempt, is due; None while it is not time that the run waits for
    due_at: int | None = None
    steps: dict[str, StepView] = field(default_factory=dict)
    #: the steps that have begun and not ended, in the order in which they began
    open: dict[str, StepView] = field(default_factory=dict)
    #: how many steps are in each state
    tally: Counter[str] = field(default_factory=Counter)
    #: the steps whose result stands until a restart, and the seq of it
    completed: dict[str, int] = field(default_factory=dict)
    #: the rules that the journal breaks (`journal.DENSE`, …), and how
    breaches: list[tuple[str, str]] = field(default_factory=list)
    ended_in_epoch: bool = False


#: Takes one event, with its payload as far as it can be gone by, into a view.
Handler = Callable[[Folded, Event, dict[str, Any]], None]


def fold(events: Iterable[Event]) -> Folded:
    """Read a run back from its journal; see `Folder`, which does it event by event."""
    folder = Folder()
    for event in events:
        folder.add(event)
    return folder.view


class Folder:
    """Reads a run back from its journal, one event at a time; `view` is always what the events so far add up to.

    Never raises on a journal that claims the impossible: what broke a rule is listed in `view.breaches`, so that one
    bad run cannot stop a check of thousands.
    """

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = Folded()

    def add(self, event: Event) -> None:
        """Take in the next event of the journal.

        Adding costs what the event changes, not what the run has done so far: a step that ended is not looked at
        again, so a run of any length can be followed.
        """
        view = self.view
        if event.seq != view.last_seq + 1:
            view.breaches.append((j.DENSE, f"seq {event.seq} follows {view.last_seq}: the journal is not dense"))
        view.last_seq = event.seq
        if event.execution_seq < view.execution_seq:
            told = f"seq {event.seq} was written by execution_seq {event.execution_seq}, after {view.execution_seq}"
            view.breaches.append((j.OWNERS_FOLLOW, told))
        view.execution_seq = max(view.execution_seq, event.execution_seq)
        if view.ended_in_epoch and event.kind != j.RUN_REOPENED:
            view.breaches.append((j.FOLDS, f"seq {event.seq} ({event.kind}) follows the terminal event of its epoch"))
        handler = _FOLD.get(event.kind)
        if handler is not None:
            if event.kind in _MOVES:
                view.due_at = None
            handler(view, event, _data_of(view, event))


def _data_of(view: Folded, event: Event) -> dict[str, Any]:
    """The payload of an event as far as it can be gone by; what has another form than it must is left out and told."""
    try:
        data = event.data()
    except ValueError as error:
        view.breaches.append((j.READABLE, f"seq {event.seq} ({event.kind}) has a payload that cannot be read: {error}"))
        return {}
    data, misfits = j.fitting(data)
    for name in misfits:
        view.breaches.append((j.FOLDS, f"seq {event.seq} ({event.kind}) has a payload whose {name} has another form"))
    return data


def _created(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.created_at, view.input = event.at, data.get("input")
    view.input_at = event.seq if event.payload == j.APART else None


def _suspended(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state, view.due_at = _named_state(view, event, data, runs.SLEEPING), data.get("due")


def _named_state(view: Folded, event: Event, data: dict[str, Any], otherwise: str) -> str:
    """The state that an event names; the usual one where it names none."""
    state: str = data.get("state", "")
    if state in runs.STATES:
        return state
    view.breaches.append((j.FOLDS, f"seq {event.seq} ({event.kind}) names no state of a run"))
    return otherwise


def _resumed(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state = runs.CANCELLING if data.get("cancelling") else runs.RUNNING
    if view.started_at is None:
        view.started_at = event.at


def _recovered(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.lease_recoveries += 1
    if data.get("charged", True):
        view.consecutive_recoveries += 1
    if view.state != runs.CANCELLING:
        view.state = runs.PENDING
    _interrupt_open(view, event, "interrupted: worker lease lost")


def _released(view: Folded, event: Event, data: dict[str, Any]) -> None:
    if view.state != runs.CANCELLING:
        view.state = runs.PENDING
    _interrupt_open(view, event, "interrupted: the worker left")


def _paused(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state, view.reason, view.hold = runs.PAUSED, data.get("reason"), data
    _interrupt_open(view, event, _BY_PAUSE["message"])


def _unpaused(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state, view.reason, view.hold = _named_state(view, event, data, runs.PENDING), None, None


def _retrying(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state, view.due_at = runs.RETRYING, data.get("due")
    view.attempt += 1
    view.retry_count += 1
    _forget(view, data)


def _cancel_requested(view: Folded, event: Event, data: dict[str, Any]) -> None:
    _interrupt_open(view, event, "interrupted: the run was cancelled")
    if data.get("compensate"):
        view.state = runs.CANCELLING


def _compensating(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state = runs.CANCELLING


def _reopened(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.state, view.epoch, view.attempt = runs.PENDING, view.epoch + 1, view.attempt + 1
    view.ended_in_epoch, view.ended_at, view.error, view.reason = False, None, None, None
    view.undo_errors, view.hold = {}, None
    view.consecutive_recoveries = view.retry_count = 0
    _forget(view, data)


def _forget(view: Folded, data: dict[str, Any]) -> None:
    """What a restart forgets: what the run noted down is noted again, and every step executes again."""
    if data.get("mode") == "restart":
        view.warnings = view.compensations = 0
        view.completed.clear()


def _ended(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.ended_in_epoch, view.ended_at, view.hold = True, event.at, None
    view.undo_errors = data.get("undo_errors") or {}
    if event.kind == j.RUN_SUCCEEDED:
        view.state = runs.WARNING if view.warnings else runs.COMPLETED
        view.output = data.get("output")
        view.output_at = event.seq if event.payload == j.APART else None
    else:
        view.state = runs.FAILED if event.kind == j.RUN_FAILED else runs.CANCELLED
        view.error = data.get("error")
    for step in list(view.open.values()):
        _end_try(view, step, event, steps.CANCELLED, data.get("error"))


def _step_started(view: Folded, event: Event, data: dict[str, Any]) -> None:
    step_id = event.step_id or ""
    if _stands(view, event, "was started again"):
        return
    step = view.steps.get(step_id) or _appears(view, step_id, data.get("kind", "tool"))
    _move(view, step, event, steps.RUNNING)
    step.due_at = None
    number = data.get("try", 1)
    step.tries.append(Try(number, steps.RUNNING, event.at, execution_seq=event.execution_seq))


def _step_ended(state: str) -> Handler:
    def end(view: Folded, event: Event, data: dict[str, Any]) -> None:
        if _stands(view, event, "again" if state == steps.COMPLETED else f"became {state}"):
            return
        step = view.steps.get(event.step_id or "")
        if step is None and state == steps.FAILED:  # refused at the call: there was no try
            step = _appears(view, event.step_id or "")
        if step is None:
            view.breaches.append((j.FOLDS, f"seq {event.seq} ({event.kind}) ends {event.step_id}, which never started"))
            return
        if step.state == steps.INTERRUPTED and state in _OWN_ENDS and _ran_on(step.tries, data):
            step.tries[-1].ended_at = None  # it ends only now
        _end_try(view, step, event, state, data.get("error"))
        step.due_at = data.get("due")
        if state == steps.COMPLETED:
            step.result = data.get("result")
            view.completed[step.step_id] = event.seq
            view.apart.pop(step.step_id, None)
            if event.payload == j.APART:
                view.apart[step.step_id] = event.seq
            view.consecutive_recoveries = 0

    return end


def _stands(view: Folded, event: Event, what: str) -> bool:
    """Whether the event is about a step whose result stands: it was handed on, and whatever follows is a breach."""
    seq = view.completed.get(event.step_id or "")
    if seq is None:
        return False
    view.breaches.append((j.RESULTS_STAND, f"{event.step_id} completed at seq {seq} and {what} at seq {event.seq}"))
    return True


def _ran_on(tries: list[Try], data: dict[str, Any]) -> bool:
    """Whether a step that ends without having begun again was not cut off by the pause after all: a body in a thread
    goes on meanwhile, and what it came to is recorded when the run goes on.
    """
    error = data.get("error") or {}
    return bool(tries) and tries[-1].error == _BY_PAUSE and error.get("type") != CUT_OFF


def _skipped(view: Folded, event: Event, data: dict[str, Any]) -> None:
    _move(view, _appears(view, event.step_id or ""), event, steps.SKIPPED)


def _appears(view: Folded, step_id: str, kind: str = "tool") -> StepView:
    """A step the journal had not named yet; or, of one that is skipped from now on, a view without a past."""
    before = view.steps.get(step_id)
    if before is not None:
        view.tally[before.state] -= 1
    # Workers in other languages write the payload; what they may call a step is not looked at before.
    step = view.steps[step_id] = StepView(step_id, j.name_of(step_id), kind if kind in steps.KINDS else steps.TOOL)
    view.tally[step.state] += 1
    return step


def _compensation(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.compensations += 1


def _status(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.status_text = data.get("text")


def _warning(view: Folded, event: Event, data: dict[str, Any]) -> None:
    view.warnings += 1


def _move(view: Folded, step: StepView, event: Event, target: str) -> None:
    if target not in steps.TRANSITIONS[step.state]:
        told = f"seq {event.seq}: step {step.step_id} is {step.state} and cannot become {target}"
        view.breaches.append((j.FOLDS, told))
    view.tally[step.state] -= 1
    view.tally[target] += 1
    step.state = target
    if target not in _OPEN:
        view.open.pop(step.step_id, None)
    elif step.step_id not in view.open:
        view.open[step.step_id] = step


def _end_try(view: Folded, step: StepView, event: Event, state: str, error: dict[str, Any] | None) -> None:
    if step.state != state:
        _move(view, step, event, state)
    if step.tries and step.tries[-1].ended_at is None:
        last = step.tries[-1]
        last.state, last.ended_at, last.error = state, event.at, error
    step.error = error


def _interrupt_open(view: Folded, event: Event, why: str) -> None:
    """A change of owner closes every open try: what the old owner did after its last record is unknown."""
    for step in view.open.values():
        if step.state == steps.RUNNING:
            _end_try(view, step, event, steps.INTERRUPTED, {"message": why})


#: The error of a try that a pause has interrupted.
_BY_PAUSE = {"message": "interrupted: the run was paused"}
#: What a body can come to by itself.
_OWN_ENDS = frozenset({steps.COMPLETED, steps.FAILED, steps.RETRYING})
#: States in which a step has begun and not ended.
_OPEN = frozenset({steps.RUNNING, steps.RETRYING, steps.INTERRUPTED})
#: After one of these the run no longer waits for the time it waited for.
_MOVES = j.TERMINAL_KINDS | {
    j.RUN_STARTED, j.RUN_RESUMED, j.RUN_RECOVERED, j.RUN_RELEASED, j.RUN_REOPENED, j.RUN_COMPENSATING,
    j.CANCEL_REQUESTED,
}  # fmt: skip

_FOLD: dict[str, Handler] = {
    j.RUN_CREATED: _created,
    j.RUN_STARTED: _resumed,
    j.RUN_RESUMED: _resumed,
    j.RUN_SUSPENDED: _suspended,
    j.RUN_RECOVERED: _recovered,
    j.RUN_RELEASED: _released,
    j.RUN_PAUSED: _paused,
    j.RUN_UNPAUSED: _unpaused,
    j.RUN_RETRYING: _retrying,
    j.CANCEL_REQUESTED: _cancel_requested,
    j.RUN_COMPENSATING: _compensating,
    j.RUN_REOPENED: _reopened,
    j.RUN_SUCCEEDED: _ended,
    j.RUN_FAILED: _ended,
    j.RUN_CANCELLED: _ended,
    j.STEP_STARTED: _step_started,
    j.STEP_COMPLETED: _step_ended(steps.COMPLETED),
    j.STEP_FAILED: _step_ended(steps.FAILED),
    j.STEP_RETRYING: _step_ended(steps.RETRYING),
    j.STEP_INTERRUPTED: _step_ended(steps.INTERRUPTED),
    j.STEP_CANCELLED: _step_ended(steps.CANCELLED),
    j.STEP_SKIPPED: _skipped,
    j.COMPENSATION_REGISTERED: _compensation,
    j.STATUS_SET: _status,
    j.WARNING: _warning,
}
