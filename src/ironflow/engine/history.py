"""A run's journal, indexed for replay.

What it owns: for each step id what is recorded of it, and the facts in the order in which the workflow saw
them. What it promises: the same journal always gives the same history, whoever reads it and whenever.

An attempt that failed leaves results behind. When the next attempt *resumes*, these are carried over: each is
given to the workflow as soon as it asks for it, in the order of the journal, and one that is never asked for
again is no divergence, since the new attempt may take another path where the old one failed. The steps that
made the attempt fail are not carried, so they execute again. One whose body had begun and was told to end with
the attempt has been cut off, as by a crash: nobody knows whether it took effect. Time and chance stay those of
the attempt that is resumed, or a step would meet results that belong to other inputs than its own. A *restart*
carries nothing, and has a clock and a seed of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ironflow.codec.values import parse
from ironflow.model import journal as j
from ironflow.model.journal import Event

# ---- what is recorded of a step last
STARTED = "started"
INTERRUPTED = "interrupted"
RETRYING = "retrying"
ENDED = "ended"
CANCELLED = "cancelled"

#: Recorded, begun, and without an end.
OPEN = (STARTED, INTERRUPTED, RETRYING)

#: Why a run pauses whose automatic attempts are used up; lifting that pause is what grants another one.
ATTEMPTS_EXHAUSTED = "ATTEMPTS_EXHAUSTED"


class RecordedStep:
    """What the journal holds of one step id."""

    __slots__ = ("begun", "cut", "due", "ended_tries", "input_hash", "kind", "state", "step_id", "tries_in_attempt")

    def __init__(self, step_id: str) -> None:
        self.step_id = step_id
        #: None where the code may have made another of it since
        self.kind: str | None = "tool"
        self.input_hash: str | None = None
        self.state: str | None = None
        self.due = 0
        #: the number of the try that began last
        self.begun = 0
        #: that try was cancelled, and not a back-off behind it
        self.cut = False
        #: ended over the run's whole life: the number in the idempotency key follows from it
        self.ended_tries = 0
        #: ended in this attempt: what the retry policy counts
        self.tries_in_attempt = 0


class RecordedFact:
    """A fact as the journal holds it: what is fed to the workflow, and the time it carried.

    `told`: the workflow was told of it, as far as anybody knows. A fact that was committed first, because the code is
    slow, says so (`untold`); as long as nothing follows it that the code has asked for, the code gets it as news.
    """

    __slots__ = ("at", "kind", "payload", "seq", "step_id", "told")

    def __init__(self, seq: int, kind: str, step_id: str, at: int, payload: dict[str, Any]) -> None:
        self.seq = seq
        self.kind = kind
        self.step_id = step_id
        self.at = at
        self.payload = payload
        self.told = True


class History:
    """See the module's docstring. Built once from a journal; the segment that replays it consumes it."""

    __slots__ = (
        "asked_to_compensate",
        "attempt",
        "attempt_at",
        "begun",
        "carried",
        "compensations",
        "completed",
        "exhausted",
        "facts",
        "failing",
        "fresh",
        "generation",
        "granted",
        "input",
        "last_seq",
        "notes",
        "patches",
        "recorded",
        "registered",
        "retries",
        "slots",
        "started",
        "started_at",
        "timers",
        "untold",
        "warnings",
    )

    def __init__(self) -> None:
        self.input: Any = None
        #: where the clock of the code begins, ms: when its first segment did
        self.started_at = 0
        #: a segment of the run has begun
        self.started = False
        #: no segment has run this code since the creation or the last restart
        self.fresh = True
        #: a segment of the current attempt has begun, at `attempt_at` (ms)
        self.begun = False
        self.attempt_at = 0
        self.attempt = 1
        #: the attempt whose seed is used: the first one, or the last restart
        self.generation = 1
        self.last_seq = 0
        self.recorded: dict[str, RecordedStep] = {}
        #: which id the current attempt recorded at a place (`scope/index`): another name there is a divergence
        self.slots: dict[str, str] = {}
        self.facts: list[RecordedFact] = []
        #: the last ones, where it is not known that the code was told of them
        self.untold: list[RecordedFact] = []
        self.carried: dict[str, RecordedFact] = {}
        #: steps whose result stands until a restart: it was handed on, so whatever follows of them counts for nothing
        self.completed: set[str] = set()
        #: due times of the timers that outlived a segment, ms; fired ones too. Of limits it counts for nothing.
        self.timers: dict[str, int] = {}
        self.notes: set[tuple[str, str]] = set()
        self.patches: set[str] = set()
        #: ids of registered compensations: all since the last restart, and those of the current attempt
        self.compensations: set[str] = set()
        self.registered: set[str] = set()
        self.warnings = 0
        #: attempts that failed and were followed by another, in this epoch
        self.retries = 0
        #: how many of them came before a person granted the policy's number once more
        self.granted = 0
        #: somebody asked for the end of the run and its compensations are to run
        self.asked_to_compensate = False
        #: the recorded error of a run that is undoing what it did before it fails
        self.failing: Any = None
        #: the run is paused because its attempts are used up: what made the last one fail
        self.exhausted: dict[str, Any] | None = None

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        """Index a journal."""
        history = cls()
        for event in events:
            history.last_seq = event.seq
            if history.untold and event.kind not in _BESIDE_THE_CODE:
                history.tell()
            handler = _INDEX.get(event.kind)
            if handler is not None and not (event.step_id in history.completed and event.kind in _OF_A_TRY):
                handler(history, event, parse(event.payload) if event.payload else {})
        return history

    def step(self, step_id: str) -> RecordedStep:
        """What is recorded of a step, made on first mention."""
        record = self.recorded.get(step_id)
        if record is None:
            record = self.recorded[step_id] = RecordedStep(step_id)
        return record

    def state(self, step_id: str) -> str | None:
        """What is recorded of a step last, or None."""
        record = self.recorded.get(step_id)
        return None if record is None else record.state

    def tell(self) -> None:
        """Something follows that stands in the journal only after the code was told of everything before."""
        for fact in self.untold:
            fact.told = True
        self.untold.clear()

    def enter(self, at: int) -> None:
        """A segment begins at `at`, ms. The first of an attempt sets the attempt's time, and the first of all
        (or of a restart) the clock of the code: a timeout must not count the hours a run was queued.
        """
        self.started = True
        if self.begun:
            return
        self.begun, self.attempt_at = True, at
        if self.fresh:
            self.fresh, self.started_at = False, max(self.started_at, at)


def _created(history: History, event: Event, data: dict[str, Any]) -> None:
    history.input, history.started_at = data.get("input"), data.get("t", event.at)


def _entered(history: History, event: Event, data: dict[str, Any]) -> None:
    history.enter(data.get("t", event.at))


def _step_started(history: History, event: Event, data: dict[str, Any]) -> None:
    step_id = event.step_id or ""
    record = history.step(step_id)
    record.kind = data.get("kind", "tool")
    record.input_hash = data.get("input_hash")
    record.state, record.begun = STARTED, data.get("try", 1)
    _take_slot(history, step_id)


def _step_fact(history: History, event: Event, data: dict[str, Any]) -> None:
    step_id = event.step_id or ""
    record = history.step(step_id)
    record.state = ENDED
    record.ended_tries += 1
    record.tries_in_attempt += 1
    if event.kind == j.STEP_COMPLETED:
        history.completed.add(step_id)
    _take_slot(history, step_id)
    fact = RecordedFact(event.seq, event.kind, step_id, data.get("t", event.at), data)
    history.facts.append(fact)
    if data.get("untold"):
        fact.told = False
        history.untold.append(fact)
    elif history.untold:
        history.tell()


def _step_retrying(history: History, event: Event, data: dict[str, Any]) -> None:
    record = history.step(event.step_id or "")
    record.state, record.due = RETRYING, data.get("due", 0)
    record.ended_tries += 1
    record.tries_in_attempt += 1


def _step_interrupted(history: History, event: Event, data: dict[str, Any]) -> None:
    history.step(event.step_id or "").state = INTERRUPTED


def _step_cancelled(history: History, event: Event, data: dict[str, Any]) -> None:
    record = history.step(event.step_id or "")
    record.cut = record.state in (STARTED, INTERRUPTED)
    if record.state == STARTED:
        record.ended_tries += 1
    record.state = CANCELLED


def _step_skipped(history: History, event: Event, data: dict[str, Any]) -> None:
    _take_slot(history, event.step_id or "")
    _note(history, event, data)


def _take_slot(history: History, step_id: str) -> None:
    history.slots[step_id.partition(":")[0]] = step_id


def _timer_started(history: History, event: Event, data: dict[str, Any]) -> None:
    history.timers[event.step_id or ""] = data["due"]


def _timer_fired(history: History, event: Event, data: dict[str, Any]) -> None:
    history.facts.append(RecordedFact(event.seq, event.kind, event.step_id or "", data.get("t", event.at), data))


def _released(history: History, event: Event, data: dict[str, Any]) -> None:
    if "session" not in data:  # by its segment, which has told the code everything before it leaves
        history.tell()


def _value(history: History, event: Event, data: dict[str, Any]) -> None:
    history.patches.add(data["patched"])
    _note(history, event, data)


def _note(history: History, event: Event, data: dict[str, Any]) -> None:
    history.notes.add((event.kind, event.step_id or ""))


def _compensation(history: History, event: Event, data: dict[str, Any]) -> None:
    history.compensations.add(event.step_id or "")
    history.registered.add(event.step_id or "")
    _note(history, event, data)


def _warning(history: History, event: Event, data: dict[str, Any]) -> None:
    history.warnings += 1
    _note(history, event, data)


def _cancel_requested(history: History, event: Event, data: dict[str, Any]) -> None:
    history.asked_to_compensate = bool(data.get("compensate"))


def _compensating(history: History, event: Event, data: dict[str, Any]) -> None:
    history.failing = data["error"]


def _paused(history: History, event: Event, data: dict[str, Any]) -> None:
    history.exhausted = data if data.get("reason") == ATTEMPTS_EXHAUSTED else None


def _unpaused(history: History, event: Event, data: dict[str, Any]) -> None:
    if history.exhausted is not None:
        _open_attempt(history, history.exhausted)
        history.granted = history.retries


def _next_attempt(history: History, event: Event, data: dict[str, Any]) -> None:
    history.attempt += 1
    if event.kind == j.RUN_RETRYING:
        history.retries += 1
    else:
        history.retries = history.granted = 0
    _open_attempt(history, data)


def _open_attempt(history: History, data: dict[str, Any]) -> None:
    history.begun = False
    history.slots.clear()
    history.timers.clear()
    history.registered.clear()
    history.asked_to_compensate, history.failing, history.exhausted = False, None, None
    if data.get("mode", "resume") == "restart":
        history.fresh, history.generation = True, history.attempt
        history.carried.clear()
        history.completed.clear()
        history.notes.clear()
        history.compensations.clear()
        history.warnings = 0
        _forget(history, history.recorded)
    else:
        again = set(data.get("failed_steps", ()))
        facts = [*history.carried.values(), *history.facts]
        # A step that completed is kept whatever the event names: nothing ever executes it again.
        history.carried = {f.step_id: f for f in facts if f.kind == j.STEP_COMPLETED or f.step_id not in again}
        left = {step_id: record for step_id, record in history.recorded.items() if step_id not in history.carried}
        cut = [record for record in left.values() if _cut_off(record)]
        _forget(history, left)
        for record in cut:
            # The same try, as after a crash: whoever receives its effect knows it by its key.
            record.state, record.kind, record.ended_tries = STARTED, None, record.begun - 1
    history.facts.clear()


def _forget(history: History, step_ids: Iterable[str]) -> None:
    """These execute again in the new attempt; how many tries they had stays known."""
    for step_id in step_ids:
        record = history.recorded[step_id]
        record.state, record.input_hash, record.tries_in_attempt = None, None, 0


def _cut_off(record: RecordedStep) -> bool:
    """Whether a try of it has begun whose end no journal has, whoever ended the attempt: a failure beside it, a limit
    of the run, or a person.
    """
    return record.state in (STARTED, INTERRUPTED) or (record.state == CANCELLED and record.cut)


#: What is told of a try of a step.
_OF_A_TRY = frozenset({
    j.STEP_STARTED, j.STEP_COMPLETED, j.STEP_FAILED, j.STEP_RETRYING, j.STEP_INTERRUPTED, j.STEP_CANCELLED,
})  # fmt: skip

#: What may stand behind a fact although the code was not told of it: other ends of bodies, and what others decide.
_BESIDE_THE_CODE = frozenset({
    j.STEP_COMPLETED, j.STEP_FAILED, j.STEP_RETRYING, j.STEP_CANCELLED, j.RUN_RECOVERED, j.RUN_RELEASED, j.RUN_PAUSED,
    j.RUN_UNPAUSED, j.CANCEL_REQUESTED, j.RUN_CANCELLED, j.RUN_REOPENED,
})  # fmt: skip

#: What each kind of event adds to a history, given its payload.
_INDEX: dict[str, Callable[[History, Event, dict[str, Any]], None]] = {
    j.RUN_CREATED: _created,
    j.RUN_STARTED: _entered,
    j.RUN_RESUMED: _entered,
    j.RUN_RELEASED: _released,
    j.RUN_PAUSED: _paused,
    j.RUN_UNPAUSED: _unpaused,
    j.RUN_RETRYING: _next_attempt,
    j.RUN_REOPENED: _next_attempt,
    j.CANCEL_REQUESTED: _cancel_requested,
    j.RUN_COMPENSATING: _compensating,
    j.STEP_STARTED: _step_started,
    j.STEP_COMPLETED: _step_fact,
    j.STEP_FAILED: _step_fact,
    j.STEP_RETRYING: _step_retrying,
    j.STEP_INTERRUPTED: _step_interrupted,
    j.STEP_CANCELLED: _step_cancelled,
    j.STEP_SKIPPED: _step_skipped,
    j.TIMER_STARTED: _timer_started,
    j.TIMER_FIRED: _timer_fired,
    j.VALUE_RECORDED: _value,
    j.COMPENSATION_REGISTERED: _compensation,
    j.STATUS_SET: _note,
    j.OUTPUT_SET: _note,
    j.WARNING: _warning,
}
