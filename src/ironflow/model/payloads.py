"""What a worker may write into an event, kind by kind: the places that the next owner, a list or a person reads.

A value of the user is the worker's affair. What is looked at here is what somebody else would trip over: a payload that
cannot be read, a time that cannot be shown, an error without the form of one. Refused where it comes in, each by its
place, because a journal is never corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ironflow.errors import InvalidInput
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.moment import LATEST_MS

#: A check gives what the value must be, or None where it is that.
Check = Callable[[Any], "str | None"]
#: A number that every column holds.
LARGEST: Final = (1 << 31) - 1


def _time(value: Any) -> str | None:
    fits = type(value) is int and 0 <= value <= LATEST_MS
    return None if fits else "a time in milliseconds since 1970, before the year 10000"


def _count(value: Any) -> str | None:
    return None if type(value) is int and 0 <= value <= LARGEST else "a whole number that is not negative"


def _number(value: Any) -> str | None:
    return None if type(value) is int and 1 <= value <= LARGEST else "a whole number from 1"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "text"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _texts(value: Any) -> str | None:
    fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return None if fits else "a list of texts"


def _error(value: Any) -> str | None:
    fits = isinstance(value, dict) and all(
        isinstance(value.get(part), str | None) for part in ("type", "message", "traceback")
    )
    return None if fits else "an error: an object whose type, message and traceback are texts"


def _errors(value: Any) -> str | None:
    fits = isinstance(value, dict) and all(_error(one) is None for one in value.values())
    return None if fits else "an object of errors"


def _state(value: Any) -> str | None:
    fits = isinstance(value, str) and value in runs.SUSPENDED
    return None if fits else f"one of {', '.join(sorted(runs.SUSPENDED))}"


def _mode(value: Any) -> str | None:
    return None if value in ("resume", "restart") else "resume or restart"


#: What the places of any kind must be, where they are there and not null. A hold of a paused run is told whole, with
#: whatever the worker found out: only what is read of it is listed.
_PLACES: Final[Mapping[str, Mapping[str, Check]]] = {
    j.RUN_STARTED: {"t": _time, "worker": _text, "cancelling": _flag},
    j.RUN_RESUMED: {"t": _time, "worker": _text, "cancelling": _flag},
    j.RUN_SUSPENDED: {"state": _state, "due": _time},
    j.RUN_RELEASED: {"t": _time},
    j.RUN_PAUSED: {"t": _time, "reason": _text, "message": _text, "error": _error, "failed_steps": _texts},
    j.RUN_RETRYING: {
        "t": _time, "attempt": _count, "of": _count, "due": _time, "mode": _mode, "error": _error,
        "failed_steps": _texts,
    },
    j.RUN_COMPENSATING: {"error": _error},
    j.RUN_SUCCEEDED: {"t": _time, "undo_errors": _errors},
    j.RUN_FAILED: {"t": _time, "error": _error, "failed_steps": _texts, "undo_errors": _errors},
    j.RUN_CANCELLED: {"t": _time, "undo_errors": _errors},
    j.STEP_STARTED: {"try": _number, "kind": _text, "input_hash": _text},
    j.STEP_COMPLETED: {"t": _time},
    j.STEP_FAILED: {"t": _time, "error": _error},
    j.STEP_RETRYING: {"t": _time, "attempt": _count, "of": _count, "due": _time, "error": _error},
    j.STEP_INTERRUPTED: {"reason": _text, "error": _error},
    j.STEP_CANCELLED: {"error": _error},
    j.TIMER_STARTED: {"due": _time},
    j.TIMER_FIRED: {"t": _time},
    j.STATUS_SET: {"text": _text},
    j.WARNING: {"message": _text},
}  # fmt: skip
#: The places that must be there: without them the event says nothing.
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    j.RUN_SUSPENDED: ("state",),
    j.RUN_FAILED: ("error",),
    j.STEP_FAILED: ("error",),
    j.TIMER_STARTED: ("due",),
}
_WANTED: Final = {kind: tuple(places.items()) for kind, places in _PLACES.items()}
#: Kinds that are about a step or a timer.
_OF_A_STEP: Final = frozenset(kind for kind in j.KINDS if kind.startswith(("step_", "timer_")))


def check(kind: str, step_id: str | None, payload: str | None, index: int) -> dict[str, Any]:
    """The data of an event that a worker sent.

    Args:
        kind, step_id, payload: of the event.
        index: its place among the events of its change.

    Raises:
        InvalidInput: it is nothing that the next reader could go by; the message names the place.
    """
    if step_id is None and kind in _OF_A_STEP:
        raise InvalidInput(f"events[{index}]: {kind} must name its step", hint="")
    try:
        data = j.read_payload(payload)
    except ValueError as error:
        raise InvalidInput(f"events[{index}].payload must be the text of a JSON object: {error}", hint="") from None
    for name, wanted in _WANTED.get(kind, ()):
        value = data.get(name)
        if value is not None:
            form = wanted(value)
            if form is not None:
                raise InvalidInput(f"events[{index}].payload.{name} of {kind} must be {form}", hint="")
        elif name in _NEEDED.get(kind, ()):
            raise InvalidInput(f"events[{index}].payload: {kind} must have {name}", hint="")
    return data
