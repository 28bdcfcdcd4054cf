"""Replay: the recorded facts are fed to the code again, and what it asks for is held against the journal.

What it promises: the code sees every fact in the order and with the time it saw live; a request that the
journal answers is never executed; and code that asks for something else than was recorded, or no longer for
something that was, is found out before anything of its new path is journaled or executed.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ironflow.codec.values import encode_any
from ironflow.engine.blame import blamed, revived
from ironflow.engine.definitions import WorkflowSpec, unfit
from ironflow.engine.history import CANCELLED, ENDED, INTERRUPTED, OPEN, RETRYING, STARTED, RecordedFact
from ironflow.engine.instance import Raised, Returned, UnknownFact
from ironflow.engine.loop_base import text_of
from ironflow.engine.plan import BACKOFF, EXECUTING, REFUSED, StepRun
from ironflow.engine.requests import Completed, Failed, Fired, StartTimer, StepCall, place_of
from ironflow.engine.workflow_task import is_limit
from ironflow.errors import PayloadError, ReplayDivergence, StepInterrupted
from ironflow.model import journal as j

if TYPE_CHECKING:
    from ironflow.engine.execution import Execution
    from ironflow.engine.history import History, RecordedStep
    from ironflow.engine.ledger import Ledger

log = logging.getLogger("ironflow.replay")

#: Requests of the code that a divergence names; the others are counted.
_SHOWN = 3


class Replay:
    """What was seen while replaying: recorded ids that were reached, inputs that changed, steps let go of."""

    __slots__ = ("changed", "dropped", "reached")

    def __init__(self) -> None:
        self.reached: set[str] = set()
        #: step id → hash of the input it is called with now
        self.changed: dict[str, str] = {}
        self.dropped: list[str] = []


def input_of(spec: WorkflowSpec, history: History) -> Any:
    """The decoded input of a run.

    Raises:
        ReplayDivergence: the run has begun, and its input no longer fits the type the code wants.
        InvalidInput: the same of a run that has not begun.
    """
    if not spec.has_input:
        return None
    try:
        return spec.input.validate(history.input, path="input")
    except PayloadError as error:
        if not history.started:
            raise unfit(spec.name, error, spec.input) from error
        raise ReplayDivergence(
            "input", f"another input ({error.message})", "an input of another type"
        ) from error


def run(e: Execution, at: int, adopted: Collection[tuple[str, int]]) -> None:
    """Bring a new instance to where its journal ends, then take on what was open there.

    Args:
        e: an execution that has not begun.
        at: the time at which this segment begins, ms.
        adopted: (step id, try) of bodies that this process still executes.

    Raises:
        ReplayDivergence: the code does not fit the journal.
    """
    history = e.history
    known = not history.fresh
    history.enter(at)
    e.now = history.started_at
    e.replaying = Replay()
    e.take(e.instance.start(e.now, known))
    e.answer()
    for fact in history.facts:
        if fact.step_id in e.compensations:
            _undone(e, fact)
        else:
            feed(e, fact)
            e.answer()
    _compare(e, e.replaying)
    history.facts.clear()
    dropped, e.replaying = e.replaying.dropped, None
    _settle_records(e, at, dropped, adopted)
    e.answer()


def feed(e: Execution, fact: RecordedFact) -> None:
    """Tell the code a recorded fact."""
    step = e.steps.pop(fact.step_id, None)
    if step is not None:
        step.close()
    if fact.kind == j.TIMER_FIRED:
        _check_limit(e, fact)
        note_limit(e, fact.step_id)
    e.timers.pop(fact.step_id, None)
    if fact.at > e.now:
        e.now = fact.at
    try:
        requests = e.instance.activate(_told(fact, step), e.now, fact.told)
    except UnknownFact:
        raise ReplayDivergence(fact.step_id, _asked_instead(e), f"{fact.kind} at seq {fact.seq}") from None
    e.take(requests)


def _undone(e: Execution, fact: RecordedFact) -> None:
    """A compensation ended in an earlier segment. The code is not told: it had ended before."""
    e.now = max(e.now, fact.at)
    if fact.kind == j.STEP_FAILED:
        e.undo_errors[fact.step_id] = encode_any(fact.payload["error"])


def _told(fact: RecordedFact, step: StepRun | None) -> Completed | Failed | Fired:
    if fact.kind == j.TIMER_FIRED:
        return Fired(fact.step_id)
    if fact.kind == j.STEP_FAILED:
        return Failed(fact.step_id, blamed(revived(fact.payload["error"]), fact.step_id))
    tree = fact.payload.get("result")
    if step is None:  # withdrawn: the code does not get it
        return Completed(fact.step_id, None)
    try:
        return Completed(fact.step_id, step.spec.result.validate(tree, path="result"))
    except PayloadError as error:
        wanted = f"a result of another type ({error.message})"
        raise ReplayDivergence(fact.step_id, wanted, f"{fact.kind} at seq {fact.seq}") from error


# ---- requests held against the journal


def check_place(e: Ledger, step_id: str) -> None:
    """While replaying: refuse another name at a place where the journal has one.

    Raises:
        ReplayDivergence: the names differ.
    """
    if e.replaying is None:
        return
    place = step_id.partition(":")[0]
    recorded = e.history.slots.get(place, step_id)
    if recorded != step_id:
        raise ReplayDivergence(place, step_id, recorded, where=_written(e, step_id))
    e.replaying.reached.add(step_id)


def _written(e: Ledger, step_id: str) -> str | None:
    """Where the author wrote this call: the journal's name of a place leads nobody to a line."""
    request = e.instance.open.get(step_id)
    made = request.made if isinstance(request, StepCall) else None
    return None if made is None else place_of(made)


def check_skip(e: Ledger, step_id: str) -> None:
    """The same for a skipped step: it may not stand where a step of this name was executed."""
    check_place(e, step_id)
    if e.replaying is not None and e.history.state(step_id) is not None:
        raise ReplayDivergence(step_id, "a skipped step", "an executed step")


def recall(e: Ledger, step: StepRun) -> None:
    """Give a step that was just asked for what the journal holds of it: its tries, its back-off, its result.

    Raises:
        ReplayDivergence: something else is recorded at its place.
    """
    step_id, history = step.id, e.history
    check_place(e, step_id)
    skipped = (j.STEP_SKIPPED, step_id) in history.notes
    if skipped and e.replaying is not None and step_id.partition(":")[0] in history.slots:
        asked = f"a step of kind {step.spec.kind}"
        raise ReplayDivergence(step_id, asked, "a skipped step", where=_written(e, step_id))
    record = history.recorded.get(step_id)
    if record is None:
        return
    restore(e, step, record)
    if record.state is None:
        return
    if record.kind not in (None, step.spec.kind):
        raise ReplayDivergence(step_id, f"kind {step.spec.kind}", f"kind {record.kind}", where=_written(e, step_id))
    changed = record.state == ENDED and record.input_hash is not None and record.input_hash != step.input_hash
    if changed and e.replaying is not None:
        e.replaying.changed[step_id] = step.input_hash or ""
    carried = history.carried.get(step_id)
    if carried is not None:
        heapq.heappush(e.ready, (carried.seq, step_id))


def restore(e: Ledger, step: StepRun, record: RecordedStep) -> None:
    """Count on from the recorded tries, and sleep on until a recorded due time: a crash gives nobody a try."""
    step.try_no, step.tries = record.ended_tries + 1, record.tries_in_attempt
    if record.state == RETRYING and step.state != REFUSED:
        step.state, step.due = BACKOFF, record.due
        e.push(step.due, step.id)


def due_of(e: Ledger, request: StartTimer) -> int:
    """When a timer is due, ms: a sleep as recorded, else as asked for.

    A limit is always due as the code has it now: where a timeout was put around another, the record of its number is
    that of the other. The code asks for it at the same time in every replay.

    In a resumed attempt the clock stands at the last kept result until something new happens. A sleep goes on
    from there; a limit counts from the attempt's beginning, or it would be over before its step has begun.
    """
    history, timer_id = e.history, request.id
    if e.replaying is not None:
        e.replaying.reached.add(timer_id)
    carried = history.carried.get(timer_id)
    if carried is not None:
        heapq.heappush(e.ready, (carried.seq, timer_id))
    if request.limit:
        return request.due + max(0, history.attempt_at - e.now)
    return history.timers.get(timer_id, request.due)


def _check_limit(e: Execution, fact: RecordedFact) -> None:
    """Refuse to fire a limit with the record of another: one that was put around another has got its number."""
    due, scope = e.timers.get(fact.step_id), fact.step_id.rpartition("/")[0]
    if due is None or due <= fact.at:
        return
    for timer_id, passed in e.timers.items():
        if passed <= fact.at and is_limit(timer_id) and timer_id.rpartition("/")[0] == scope:
            wanted = f"a limit that had not passed by then, while {timer_id} had"
            raise ReplayDivergence(fact.step_id, wanted, f"{fact.kind} at seq {fact.seq}")


def note_limit(e: Ledger, timer_id: str) -> None:
    """Remember a timer that is about to fire, if it is a limit."""
    request = e.instance.open.get(timer_id)
    if isinstance(request, StartTimer) and request.limit:
        e.last_limit = timer_id


# ---- after replay


def _compare(e: Execution, seen: Replay) -> None:
    """Everything recorded was reached, and no two results were swapped."""
    history = e.history
    for step_id in history.registered:
        if step_id not in e.compensations:
            raise ReplayDivergence(step_id, "no compensation", "a compensation")
    for step_id in history.slots.values():
        if step_id not in seen.reached and step_id not in e.compensations:
            raise ReplayDivergence(step_id, _asked_instead(e), _RECORDED[history.state(step_id)])
    for timer_id in history.timers:
        # A limit that has not fired may go: nothing has come of it. One that has is a fact, and was asked for.
        if timer_id not in seen.reached and not is_limit(timer_id):
            raise ReplayDivergence(timer_id, _asked_instead(e), "a sleep")
    if seen.changed:
        _compare_inputs(e, seen.changed)


#: What the journal recorded of a step, by its state; of a skipped one there is none.
_RECORDED = {
    STARTED: "a step that has begun",
    INTERRUPTED: "a step that was cut off",
    RETRYING: "a step that is to be tried again",
    ENDED: "a step that has ended",
    CANCELLED: "a cancelled step",
    None: "a skipped step",
}


def _asked_instead(e: Execution) -> str:
    """What the code asks for where it does not ask for what is recorded: what only the code knows of, or its end."""
    outcome, history = e.instance.outcome, e.history
    if isinstance(outcome, Returned):
        return "nothing any more (it has returned)"
    if isinstance(outcome, Raised):
        return f"nothing any more (it has raised {type(outcome.error).__name__}: {text_of(outcome.error)})"
    asked = [key for key in e.instance.open if not is_limit(key)]
    new = [key for key in asked if key not in history.recorded and key not in history.timers] or asked
    if not new:
        return "nothing (it waits for something else)"
    shown = [f"a sleep ({key})" if isinstance(e.instance.open[key], StartTimer) else key for key in new[:_SHOWN]]
    more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
    return f"{', '.join(shown)}{more} instead"


def _compare_inputs(e: Execution, changed: dict[str, str]) -> None:
    records = e.history.recorded
    # A result belongs to another call if that call's input is now this one's, and its own has changed in turn.
    givers = {(j.name_of(step_id), records[step_id].input_hash): step_id for step_id in changed}
    for step_id, new in changed.items():
        giver = givers.get((j.name_of(step_id), new))
        if giver is not None and giver != step_id:
            raise ReplayDivergence(step_id, f"the input recorded for {giver}", "another input")
    current = [step_id for step_id in changed if step_id not in e.history.carried]
    if current and e.spec.strict_inputs:
        raise ReplayDivergence(current[0], "an input that has changed", "the input of its result")
    if current:
        log.warning(
            "run %s: %s finished with other inputs than the code gives now; the recorded results stand",
            e.head.run_id,
            ", ".join(current),
        )


def _settle_records(e: Execution, at: int, dropped: list[str], adopted: Collection[tuple[str, int]]) -> None:
    """What was open when the last owner left: cut off, cancelled since, in back-off, or still running here."""
    history = e.history
    for step_id in dropped:
        if history.state(step_id) in OPEN:
            e.journal(j.STEP_CANCELLED, step_id, None)
    for step in list(e.steps.values()):
        if history.state(step.id) == STARTED and (step.id, step.try_no) in adopted:
            step.state = EXECUTING
            e.executing += 1
            e.plan.start.append(step)
    if history.asked_to_compensate or e.verdict is not None or e.overdue(at):
        _abandon(e)
        return
    for step in list(e.steps.values()):
        state = history.state(step.id)
        if step.state == EXECUTING:
            continue
        if state in (STARTED, INTERRUPTED):
            cut_off(e, step, state)
        elif state == CANCELLED:
            raise ReplayDivergence(step.id, "a step that is awaited", "a cancelled step")
    for record in history.recorded.values():
        if record.state == STARTED:
            record.state = INTERRUPTED


def _abandon(e: Execution) -> None:
    """The run ends wherever its code is: nothing that is open goes on. A body that executes here is left to `end`,
    which waits for it: what it has yet to do must be done before it is undone.
    """
    for step in list(e.steps.values()):
        if step.state == EXECUTING:
            continue
        if e.history.state(step.id) in OPEN:
            e.journal(j.STEP_CANCELLED, step.id, None)
        step.close()
        del e.steps[step.id]
    e.timers.clear()


def cut_off(e: Ledger, step: StepRun, state: str) -> None:
    """A try that started and did not end: it is executed again, asked about, or fails if it may run only once."""
    if state == STARTED:
        e.journal(j.STEP_INTERRUPTED, step.id, '{"reason":"the owner was lost"}')
    step.cut = True
    if step.state == REFUSED:
        return
    if step.spec.reconcile is not None:
        step.reconciling = True
    elif step.spec.at_most_once:
        message = f"step {step.id} was cut off and is marked at_most_once: whether it took effect is unknown"
        step.state = REFUSED
        e.refused.append((step, StepInterrupted(message)))
