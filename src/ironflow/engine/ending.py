"""How a segment ends: it suspends, fails and is tried again, pauses, or the run is over.

Functions over an :class:`~ironflow.engine.execution.Execution`, apart from it because each is one decision
with one reason. Every one returns the :class:`~ironflow.engine.plan.Leave` it decided on, or None while
something still has to end here first.
"""

from __future__ import annotations

import heapq
import json
from typing import TYPE_CHECKING, Any

from ironflow.codec.exceptions import encode_error
from ironflow.engine import undo
from ironflow.engine.blame import blame
from ironflow.engine.history import ATTEMPTS_EXHAUSTED
from ironflow.engine.instance import Raised, Returned
from ironflow.engine.plan import BACKOFF, ENDED, EXECUTING, PAUSE, RELEASE, RETRY, SUSPENSION, Leave, Plan
from ironflow.errors import (
    ConfigError,
    DefinitionError,
    HandlerVersionMismatch,
    IronflowError,
    PayloadError,
    ReplayDivergence,
    ReplayError,
    RequestError,
    StepInterrupted,
    WorkflowStuck,
)
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import wait as waits
from ironflow.model.capacity import RunHead
from ironflow.model.journal import Event
from ironflow.model.retry import RetryAfterError
from ironflow.model.wait import WaitRow

if TYPE_CHECKING:
    from ironflow.engine.definitions import WorkflowSpec
    from ironflow.engine.execution import Execution

#: The wait row of a run's own deadline; no step id has this form.
DEADLINE = "@deadline"

#: Errors that follow from the code or its input: another attempt meets them again, so none is used for them.
#: StepInterrupted is here because that step may not run again unless a person says so.
DETERMINISTIC = (PayloadError, DefinitionError, ReplayError, RequestError, ConfigError, StepInterrupted)


# ---- suspension --------------------------------------------------------------------------------------------


def suspend_or_stuck(e: Execution, now: int) -> Leave | None:
    """Nothing executes: leave with a wait row for each timer and long back-off, or say that nothing can happen."""
    run_id = e.head.run_id
    rows = [WaitRow(run_id, key, waits.TIMER, waits.SLEEPING, due) for key, due in e.timers.items()]
    rows += [
        WaitRow(run_id, step.id, waits.BACKOFF, waits.RETRY_BACKOFF, step.due)
        for step in e.steps.values()
        if step.state == BACKOFF
    ]
    if not rows:
        e.verdict = Raised(
            WorkflowStuck(
                f"workflow {e.spec.name} waits for what nothing can bring about:\n{e.instance.stuck_report()}"
            )
        )
        return end(e, e.verdict, now)
    for key, due in e.timers.items():
        if e.history.timers.get(key) != due:  # of a limit, the code may have another one now
            e.history.timers[key] = due
            e.journal(j.TIMER_STARTED, key, f'{{"due":{due}}}')
    if e.head.deadline_at is not None:
        rows.append(WaitRow(run_id, DEADLINE, waits.TIMER, waits.SLEEPING, e.head.deadline_at))
    leave = Leave(SUSPENSION, runs.SLEEPING)
    leave.waits = rows
    leave.due = min(row.due_at for row in rows if row.due_at is not None)
    e.journal(j.RUN_SUSPENDED, None, f'{{"state":"{runs.SLEEPING}","due":{leave.due}}}')
    return leave


def next_wake(e: Execution) -> int | None:
    """When this segment wants to be called again although no body ended, ms. Forgets withdrawn timers."""
    while e.due and not _awaited(e, e.due[0]):
        heapq.heappop(e.due)
    at = e.due[0][0] if e.due else None
    deadline = e.head.deadline_at
    if deadline is not None and e.listening:
        return deadline if at is None else min(at, deadline)
    return at


def _awaited(e: Execution, entry: tuple[int, int, str]) -> bool:
    due, _, key = entry
    step = e.steps.get(key)
    return e.timers.get(key) == due if step is None else step.state == BACKOFF


# ---- the end -----------------------------------------------------------------------------------------------


def end(e: Execution, outcome: Returned | Raised | None, now: int) -> Leave | None:
    """The code is done, failed or no longer wanted: stop what still runs, undo what must be, end the run."""
    if e.undo is None:
        _stop_open(e)
        if e.stopping:
            return None
        if not e.history.asked_to_compensate:
            if isinstance(outcome, Returned):
                outcome = _stored(e, outcome)
                if isinstance(outcome, Returned):
                    return _over(e, outcome, now)
            if isinstance(outcome, Raised):
                leave = _another_attempt(e, outcome.error, now)
                if leave is not None:
                    return leave
        undo.begin(e, outcome if isinstance(outcome, Raised) else None)
    if e.undo is not None and not undo.advance(e, e.undo):
        return None
    return _over(e, outcome, now)


def _stop_open(e: Execution) -> None:
    for step in list(e.steps.values()):
        if step.state == EXECUTING:
            e.stop(step)
        else:
            if step.state == BACKOFF or step.cut:
                e.journal(j.STEP_CANCELLED, step.id, None)
            step.close()
    e.steps.clear()
    e.timers.clear()


def _stored(e: Execution, returned: Returned) -> Returned | Raised:
    """Store what the code returned. What cannot be stored fails the run, once: it would be returned again."""
    if returned.value is not None or e.output is None:
        try:
            e.output = e.spec.output.encode(returned.value, path=f"{e.spec.name} output", limit=e.limit)
        except Exception as refused:  # whatever storing it raised
            e.verdict = Raised(refused)
            return e.verdict
    return returned


def _another_attempt(e: Execution, error: BaseException, now: int) -> Leave | None:
    """Another attempt if the policy allows one and the error may not come again; else the policy's last word."""
    if e.head.state == runs.CANCELLING or e.verdict is not None:
        return None
    policy, history = e.spec.retry, e.history
    used = history.retries - history.granted + 1
    if policy.max_attempts <= 1 or isinstance(error, DETERMINISTIC) or not policy.matches(error, ""):
        return None
    failed = {"failed_steps": blame(error, e.last_limit, automatic=True), "mode": e.spec.retry_mode}
    if used >= policy.max_attempts:
        if e.spec.on_exhausted != "pause":
            return None
        failed["mode"] = "resume"  # a pause is there to keep what is finished
        e.hold = {"reason": ATTEMPTS_EXHAUSTED, "error": json.loads(encode_error(error)), **failed}
        return pause(e, now)
    leave = Leave(RETRY, runs.RETRYING)
    leave.due = now + policy.delay_ms(used, e.chance(), asked_wait(error))
    leave.changes = {"attempt": e.head.attempt + 1, "retry_count": history.retries + 1}
    if e.spec.retry_mode == "restart":
        leave.changes |= {"warnings": 0, "compensations": 0}
    facts = {"t": max(now, e.now), "attempt": used, "of": policy.max_attempts, "due": leave.due, **failed}
    e.journal(j.RUN_RETRYING, None, f'{json.dumps(facts)[:-1]},"error":{encode_error(error)}}}')
    return leave


def asked_wait(error: BaseException) -> int | None:
    """How long the failing side asked to wait, ms. Asked of no other class: what its attribute of that name is, or does
    when it is read, nobody has checked.
    """
    after = error.__dict__.get("after_ms") if isinstance(error, RetryAfterError) else None
    return after if isinstance(after, int) else None


def _over(e: Execution, outcome: Returned | Raised | None, now: int) -> Leave:
    """The terminal event, and how the run is shown from now on."""
    parts = [f'"t":{max(now, e.now)}']
    if e.history.asked_to_compensate:
        kind, state = j.RUN_CANCELLED, runs.CANCELLED
    elif isinstance(outcome, Raised):
        kind, state = j.RUN_FAILED, runs.FAILED
        parts.append(f'"error":{encode_error(outcome.error)}')
        parts.append(f'"failed_steps":{json.dumps(blame(outcome.error, e.last_limit, automatic=False))}')
    else:
        kind, state = j.RUN_SUCCEEDED, runs.WARNING if e.warnings else runs.COMPLETED
        parts.append(f'"output":{e.output}')
    if e.undo_errors:
        errors = ",".join(f"{json.dumps(key)}:{text}" for key, text in e.undo_errors.items())
        parts.append(f'"undo_errors":{{{errors}}}')
    if e.instance.unreported:
        parts.append(f'"unreported":{json.dumps(e.instance.unreported)}')
    leave = Leave(ENDED, state)
    leave.result = f"{{{','.join(parts)}}}"
    leave.unreported = e.instance.unreported
    e.journal(kind, None, leave.result)
    return leave


def release(e: Execution, now: int) -> Leave | None:
    """The worker is leaving: give the run back between two steps, to be queued at once. No recovery is counted."""
    if e.stopping:
        return None
    leave = Leave(RELEASE, runs.PENDING)
    e.journal(j.RUN_RELEASED, None, f'{{"t":{max(now, e.now)}}}')
    return leave


# ---- pause, divergence, refusal ----------------------------------------------------------------------------


def pause(e: Execution, now: int) -> Leave | None:
    """Hold the run for a person, with the reason. What executes comes to its end first, and is kept."""
    if e.executing or e.stopping:
        return None
    hold: dict[str, Any] = e.hold or {}
    leave = Leave(PAUSE, runs.PAUSED)
    leave.changes = {"reason": hold.get("reason"), "resume_state": runs.PENDING}
    e.journal(j.RUN_PAUSED, None, json.dumps({"t": max(now, e.now), **hold}))
    return leave


def refused(spec: WorkflowSpec | None, head: RunHead, last_seq: int, execution_seq: int, error: IronflowError) -> Plan:
    """The code cannot take this run on: pause it at a divergence (or fail, if the workflow says so), else fail.

    A run that is already ending cannot be paused any more: it fails, and says that it was not undone.

    Args:
        spec: the workflow, if it is known here.
        head: the run as it was taken.
        last_seq: the last number in its journal.
        execution_seq: the fence of the segment that ends before it began.
        error: what stood in the way.
    """
    plan = Plan()
    pausable = isinstance(error, ReplayDivergence) and head.state != runs.CANCELLING
    if pausable and (spec is None or spec.on_divergence == "pause"):
        reason = {"reason": error.code, **error.details, "message": str(error)}
        plan.events = [Event(last_seq + 1, j.RUN_PAUSED, None, json.dumps(reason), execution_seq)]
        plan.leave = Leave(PAUSE, runs.PAUSED)
        plan.leave.changes = {"reason": error.code, "resume_state": runs.PENDING}
        return plan
    plan.leave = Leave(ENDED, runs.FAILED)
    plan.leave.result = f'{{"error":{encode_error(error)}}}'
    plan.events = [Event(last_seq + 1, j.RUN_FAILED, None, plan.leave.result, execution_seq)]
    return plan


def give_up(e: Execution, plan: Plan, error: IronflowError) -> None:
    """Put the end of the run in place of a plan that can never be committed: too large for whoever would write it.

    Raises:
        IronflowError: the given one, where not even this end can be.
    """
    first = plan.events[0]
    end = refused(e.spec, e.head, first.seq - 1, first.execution_seq, error)
    assert end.leave is not None
    if plan.leave is not None and plan.leave.result == end.leave.result:
        raise error
    plan.events, plan.leave, plan.changes, plan.state = end.events, end.leave, None, None
    plan.start, plan.wake_at = [], None


def check_version(spec: WorkflowSpec, head: RunHead) -> None:
    """Refuse a run of a version this code does not claim to continue, before anything of it is replayed.

    Raises:
        HandlerVersionMismatch: neither the version nor one of the compatible ones.
    """
    if head.version != spec.version and head.version not in spec.compatible:
        raise HandlerVersionMismatch(
            f"run {head.run_id} was created by version {head.version!r} of {spec.name}; this code is "
            f"{spec.version!r} and lists {list(spec.compatible)} as compatible"
        )
