"""The journal: its kinds and its events.

The journal is the authority: the row of a run and the view of its steps are projections of it (`model.fold`), and
`ironflow doctor` compares them on a live database. Payloads are JSON objects. A fact (an event that is fed to the
workflow on replay) carries its own time `t` in the payload: the time the workflow saw, which is not the time of the
commit that `at` holds.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

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
    RUN_RELEASED: "the worker gave the run back by itself: it leaves, or a transactional step has to begin anew",
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
    STEP_COMPLETED: "the result is stored; the body never runs again in this attempt. `untold`: stored before slow "
    "code was told of it",
    STEP_FAILED: "the error is stored and was raised into the workflow",
    STEP_RETRYING: "a try failed; payload: attempt, of, error, and the due time of the next",
    STEP_INTERRUPTED: "the body had started and its end is unknown: the owner was lost",
    STEP_CANCELLED: "the workflow no longer wants the step; a late result is dropped",
    STEP_SKIPPED: "the workflow skipped a step by name",
    TIMER_STARTED: "a timer outlives its segment: a sleep (`…/t1`), or a limit such as a timeout (`…/l1`); "
    "written at suspension only",
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
#: A change of owner: these carry the new execution_seq. For the reference, as are the facts.
OWNER_KINDS = frozenset({
    RUN_STARTED, RUN_RESUMED, RUN_RECOVERED, RUN_RELEASED, RUN_PAUSED, CANCEL_REQUESTED, RUN_REOPENED,
})  # fmt: skip

# ---- what must be true of every journal, under the names by which `engine.doctor` explains the rules
OWNERS_FOLLOW: Final = "I1"
RESULTS_STAND: Final = "I2"
FOLDS: Final = "I3"
DENSE: Final = "I4"
READABLE: Final = "I8"

#: The deepest nesting of a payload: what any reader of JSON takes, and twice what the codec writes.
DEEPEST: Final = 200
#: Under this name it is told why a payload cannot be read.
UNREADABLE: Final = "unreadable"


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def finite(text: str) -> float:
    """A number of JSON.

    Raises:
        ValueError: it is too large for one.
    """
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return number


_DECODER: Final = json.JSONDecoder(parse_constant=_no_number, parse_float=finite)


def read_payload(text: str | None) -> dict[str, Any]:
    """The data of a payload; none is an empty object.

    Raises:
        ValueError: it is no JSON object, or one that not every reader could take: nested too deeply, or with a number
            that is too long or too large. The message says which.
    """
    if not text:
        return {}
    try:
        data = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from None
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of the text, and not of an argument
    # Nothing that has fewer brackets can be so deep: almost no payload is walked through.
    if text.count("[") + text.count("{") > DEEPEST and not shallow(data, DEEPEST):
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    return data


def readable(text: str) -> bool:
    """Whether `read_payload` would take it; for whoever passes the text on as it is."""
    try:
        read_payload(text)
    except ValueError:
        return False
    return True


#: The form of what is read of payloads, whatever their kind.
_FORMS: Final[dict[str, type]] = {
    "state": str, "due": int, "error": dict, "undo_errors": dict, "try": int, "reason": str, "text": str,
    "message": str,
}  # fmt: skip


def fitting(data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What of a payload can be gone by, and the names of what has another form than it must, which is left out.

    The server refuses such a payload; a journal that has one all the same is shown, too.
    """
    misfits = [name for name, kind in _FORMS.items() if not isinstance(data.get(name), kind | None)]
    errors = data.get("undo_errors")
    if isinstance(errors, dict) and not all(isinstance(one, dict) for one in errors.values()):
        misfits.append("undo_errors")
    return {name: value for name, value in data.items() if name not in misfits} if misfits else data, misfits


def shallow(data: Any, most: int) -> bool:
    """Whether JSON data is nested at most so many levels deep."""
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > most:
            return False
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += [value for value in one.values() if isinstance(value, dict | list)]
            elif isinstance(one, list):
                inner += [value for value in one if isinstance(value, dict | list)]
        level = inner
    return True


#: In place of a payload that is there and was not read along, because it is large.
APART: Final = ""
#: What is large in a payload of these is a value of the user, which says nothing of how the run stands.
VALUE_KINDS: Final = (RUN_CREATED, RUN_SUCCEEDED, STEP_COMPLETED, VALUE_RECORDED, COMPENSATION_REGISTERED, OUTPUT_SET)


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
        """The payload as plain JSON (values of the user stay in their stored form).

        Raises:
            ValueError: see `read_payload`.
        """
        return read_payload(self.payload)

    def told(self) -> dict[str, Any]:
        """The same for who only looks: a payload that cannot be read is told as `unreadable`, with the reason."""
        try:
            return read_payload(self.payload)
        except ValueError as error:
            return {UNREADABLE: str(error)}

    def __repr__(self) -> str:
        return f"Event({self.seq}, {self.kind!r}, {self.step_id!r}, {self.payload!r}, {self.execution_seq})"


def name_of(step_id: str) -> str:
    """The name inside a step id (`scope/index:name`)."""
    return step_id.split(":", 1)[1] if ":" in step_id else step_id
