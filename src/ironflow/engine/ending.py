"""How a segment ends: it suspends, fails and is tried again, pauses, undoes what it did, or is over.

Functions over an :class:`~ironflow.engine.execution.Execution`, apart from it because each is one decision with one
reason. Every one returns the :class:`~ironflow.engine.plan.Leave` it decided on, or None while something still has to
end here first.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ironflow.codec.exceptions import decode_error, encode_error
from ironflow.codec.values import encode_any, parse
from ironflow.engine.instance import Raised, Returned
from ironflow.engine.plan import (
    BACKOFF,
    CLOSED,
    ENDED,
    EXECUTING,
    PAUSE,
    RETRY,
    SUSPENSION,
    WANTED,
    Leave,
    Plan,
    StepRun,
)
from ironflow.errors import (
    HandlerVersionMismatch,
    IronflowError,
    ReplayDivergence,
    RunTimeout,
    StepFailed,
    StepInterrupted,
    StepTimeout,
    WorkflowStuck,
)
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import wait as waits
from ironflow.model.capacity import RunHead
from ironflow.model.journal import Event
from ironflow.model.wait import WaitRow

if TYPE_CHECKING:
    from ironflow.engine.definitions import WorkflowSpec
    from ironflow.engine.execution import Execution
    from ironflow.engine.history import Fact
    from ironflow.engine.requests import Note, StepCall

#: The wait row of a run's own deadline; no step id has this form.
DEADLINE = "@deadline"
#: Errors that another attempt may not meet again; every other error of ours follows from the code or the input.
TRANSIENT = (StepFailed, StepTimeout, StepInterrupted)


# ---- suspension ------------------------------------------------------------------------------------------------


def suspend_or_stuck(e: Execution, now: int) -> Leave | None:
    """Nothing executes: leave with a wait row per open timer and long back-off, or say that nothing can ever happen."""
    rows = [WaitRow(e.head.run_id, key, waits.TIMER, waits.SLEEPING, due) for key, due in e.timers.items()]
    rows += [
        WaitRow(e.head.run_id, step.id, waits.BACKOFF, waits.RETRY_BACKOFF, step.due)
        for step in e.steps.values()
        if step.state == BACKOFF
    ]
    if not rows:
        e.verdict = Raised(
            WorkflowStuck(
                f"workflow {e.spec.name} waits for something that nothing can bring about:\n{e.instance.stuck_report()}"
            )
        )
        return end(e, e.verdict, now)
    for key, due in e.timers.items():
        if key not in e.history.timers:
            e.history.timers[key] = due
            e._event(j.TIMER_STARTED, key, f'{{"due":{due}}}')
    leave = Leave(SUSPENSION, runs.SLEEPING)
    leave.due = min(row.due_at or 0 for row in rows)
    if e.head.deadline_at is not None:
        rows.append(WaitRow(e.head.run_id, DEADLINE, waits.TIMER, waits.SLEEPING, e.head.deadline_at))
    leave.waits = rows
    e._event(j.RUN_SUSPENDED, None, f'{{"state":"{runs.SLEEPING}","due":{leave.due}}}')
    return leave


def next_wake(e: Execution) -> int | None:
    """When this segment wants to be called again although no body ended, ms."""
    due = [at for at, _, key in e._due[:1]]
    if e.head.deadline_at is not None and e.verdict is None:
        due.append(e.head.deadline_at)
    return min(due, default=None)


def expired(e: Execution, now: int) -> bool:
    """Whether the run's own deadline has passed."""
    return e.head.deadline_at is not None and now >= e.head.deadline_at and e.verdict is None


def expire(e: Execution, now: int) -> None:
    """End the run at its deadline, wherever its code is."""
    e.verdict = Raised(RunTimeout(f"run {e.head.run_id} did not end within its time"))


# ---- the end ---------------------------------------------------------------------------------------------------


class Undo:
    """The compensations of a run, newest first, one at a time, each a journaled step."""

    __slots__ = ("current", "errors", "left")

    def __init__(self, calls: list[StepCall]) -> None:
        self.left = calls
        self.current: StepRun | None = None
        self.errors: dict[str, str] = {}


def end(e: Execution, outcome: Returned | Raised | None, now: int) -> Leave | None:
    """The code is done, failed or no longer wanted: stop what still runs, undo what must be undone, end the run."""
    if e.undo is None:
        _stop_open(e)
        if e.stopping:
            return None
        if isinstance(outcome, Returned):
            try:
                return _succeed(e, outcome.value, now)
            except IronflowError as refused:
                outcome = e.verdict = Raised(refused)
        if isinstance(outcome, Raised):
            leave = _another_attempt(e, outcome.error, now)
            if leave is not None:
                return leave
        _begin_undo(e, outcome)
    if e.undo is not None and not _undo_step(e):
        return None
    return _over(e, outcome, now)


def _stop_open(e: Execution) -> None:
    for step in list(e.steps.values()):
        if step.state == EXECUTING:
            e.stop(step)
        elif step.state == BACKOFF:
            e._event(j.STEP_CANCELLED, step.id, None)
        if step.state != EXECUTING:
            step.state = CLOSED if step.state in (WANTED, BACKOFF) else step.state
    e.steps.clear()
    e.timers.clear()


def _succeed(e: Execution, value: Any, now: int) -> Leave:
    text = e.spec.output.encode(value, path="output") if value is not None or e.output is None else e.output
    leave = Leave(ENDED, runs.WARNING if e.warnings else runs.COMPLETED)
    leave.result = f'{{"t":{max(now, e.now)},"output":{text}}}'
    e._event(j.RUN_SUCCEEDED, None, leave.result)
    return leave


def _another_attempt(e: Execution, error: BaseException, now: int) -> Leave | None:
    """Another attempt if the policy allows one and the error may not come again; else the policy's last word."""
    if e.head.state == runs.CANCELLING or e.verdict is not None:
        return None
    policy, used = e.spec.retry, e.history.retries + 1
    fixed = isinstance(error, IronflowError) and not isinstance(error, TRANSIENT)
    if fixed or policy.max_attempts <= 1 or not policy.matches(error, ""):
        return None
    common = (
        f'"t":{max(now, e.now)},"attempt":{used},"of":{policy.max_attempts},"failed_steps":{_blame(error)}'
    )
    if used < policy.max_attempts:
        leave = Leave(RETRY, runs.RETRYING)
        leave.due = now + policy.delay_ms(used, e.chance(), getattr(error, "after_ms", None))
        leave.changes = {"attempt": e.head.attempt + 1, "retry_count": used}
        e._event(
            j.RUN_RETRYING,
            None,
            f'{{{common},"due":{leave.due},"mode":"{e.spec.retry_mode}","error":{encode_error(error)}}}',
        )
        return leave
    if e.spec.on_exhausted == "pause":
        e.hold = {"reason": "ATTEMPTS_EXHAUSTED", "error": parse(encode_error(error))}
        return pause(e, now)
    return None


def _begin_undo(e: Execution, outcome: Returned | Raised | None) -> None:
    done = {
        key
        for key in e.compensations
        if (r := e.history.recorded.get(key)) is not None and r.state == "ended"
    }
    calls = [call for key, call in e.compensations.items() if key not in done]
    if not calls:
        return
    e.undo = Undo(calls)
    if e.head.state != runs.CANCELLING and outcome is not None:
        e.plan.state = runs.CANCELLING
        e.plan.changes = {**(e.plan.changes or {}), "compensating_for": runs.FAILED}


def _undo_step(e: Execution) -> bool:
    """Take the next compensation on; True once none is left."""
    undo = e.undo
    assert undo is not None
    current = undo.current
    if current is not None and current.state != CLOSED:
        if current.state == WANTED:
            e.begin(current)
        return False
    if not undo.left:
        return True
    step = undo.current = StepRun(undo.left.pop())
    record = e.history.recorded.get(step.id)
    if record is not None:
        step.try_no = record.ended_tries + 1
    e.steps[step.id] = step
    e.encode(step)
    e.begin(step)
    return False


def replayed(e: Execution, fact: Fact) -> None:
    """A compensation that ended in an earlier segment: nothing is fed to the code, which has ended by then."""
    e.now = max(e.now, fact.at)


def _over(e: Execution, outcome: Returned | Raised | None, now: int) -> Leave:
    at = max(now, e.now)
    undo = (
        f',"undo_errors":{{{",".join(f"{json.dumps(k)}:{v}" for k, v in e.undo.errors.items())}}}'
        if e.undo
        else ""
    )
    if isinstance(outcome, Raised) and not e.history.asked_to_compensate:
        leave = Leave(ENDED, runs.FAILED)
        leave.result = (
            f'{{"t":{at},"error":{encode_error(outcome.error)},"failed_steps":{_blame(outcome.error)}{undo}}}'
        )
        e._event(j.RUN_FAILED, None, leave.result)
        return leave
    leave = Leave(ENDED, runs.CANCELLED)
    leave.result = f'{{"t":{at}{undo}}}'
    e._event(j.RUN_CANCELLED, None, leave.result)
    return leave


# ---- pause, divergence, refusal ----------------------------------------------------------------------------------


def pause(e: Execution, now: int) -> Leave | None:
    """Hold the run for a person, with the reason; everything finished stays."""
    _stop_open(e)
    if e.stopping:
        return None
    hold = e.hold or {}
    leave = Leave(PAUSE, runs.PAUSED)
    leave.changes = {"reason": hold.get("reason"), "resume_state": runs.PENDING}
    e._event(j.RUN_PAUSED, None, json.dumps({"t": max(now, e.now), **hold}))
    return leave


def refused(
    spec: WorkflowSpec | None, head: RunHead, last_seq: int, execution_seq: int, error: IronflowError
) -> Plan:
    """The code cannot take this run on: pause it at a divergence (or fail, if the workflow says so), else fail it."""
    plan = Plan()
    if isinstance(error, ReplayDivergence) and (spec is None or spec.on_divergence == "pause"):
        reason = {"reason": error.code, **error.details, "message": str(error)}
        plan.events = [Event(last_seq + 1, j.RUN_PAUSED, None, json.dumps(reason), execution_seq)]
        plan.leave = Leave(PAUSE, runs.PAUSED)
        plan.leave.changes = {"reason": error.code, "resume_state": runs.PENDING}
        return plan
    plan.leave = Leave(ENDED, runs.FAILED)
    plan.leave.result = f'{{"error":{encode_error(error)}}}'
    plan.events = [Event(last_seq + 1, j.RUN_FAILED, None, plan.leave.result, execution_seq)]
    return plan


def check_version(spec: WorkflowSpec, head: RunHead) -> None:
    """Refuse a run of a version this code does not claim to continue, before anything of it is replayed.

    Raises:
        HandlerVersionMismatch: neither the version nor one of the compatible ones.
    """
    if head.version != spec.version and head.version not in spec.compatible:
        raise HandlerVersionMismatch(
            f"run {head.run_id} was created by version {head.version!r} of {spec.name}; this code is {spec.version!r} "
            f"and lists {list(spec.compatible)} as compatible"
        )


# ---- errors and notes --------------------------------------------------------------------------------------------


def revived(text: str) -> BaseException:
    """The error as every replay will raise it."""
    return decode_error(parse(text))


def blamed(error: BaseException, step_id: str) -> BaseException:
    """Mark an error with the step it came from, so that a resumed attempt knows what to execute again."""
    try:
        error.__ironflow_step__ = step_id  # type: ignore[attr-defined]
    except (
        AttributeError
    ):  # a class with slots: the step is executed again only if its author raises another error
        pass
    return error


def _blame(error: BaseException) -> str:
    """The steps whose errors made the run fail, as JSON: through causes, contexts and groups."""
    found: list[str] = []
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        step_id = getattr(one, "__ironflow_step__", None)
        if step_id is not None and step_id not in found:
            found.append(step_id)
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
    return json.dumps(found)


def note(e: Execution, note: Note) -> tuple[str, dict[str, Any] | None]:
    """The payload of a note's event and the columns of the run that show it."""
    if note.kind == j.OUTPUT_SET:
        return f'{{"output":{e.output}}}', None
    if note.kind == j.COMPENSATION_REGISTERED:
        return encode_any(note.payload), {"compensations": len(e.compensations)}
    if note.kind == j.STATUS_SET:
        return encode_any(note.payload), {"status_text": str(note.payload.get("text"))}
    if note.kind == j.WARNING:
        e.warnings += 1
        return encode_any(note.payload), {"warnings": e.warnings}
    return encode_any(note.payload), None
