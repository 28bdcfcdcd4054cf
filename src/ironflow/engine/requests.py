"""What a workflow instance asks for, and what it is told: the whole vocabulary between workflow code and
executor.

The instance never acts. It answers each fact with requests (execute this step, start that timer, drop it
again, write this note down) and the executor decides from the journal what each one means. These are plain
slotted classes rather than frozen dataclasses because one of each is built for every durable step, and a
frozen constructor costs several times as much as a plain one.
"""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ironflow.engine.definitions import StepSpec

#: The code that makes a call, and where in it. Not its frame, which would keep all of its variables; and not the line,
#: which is worked out only where it is told.
Made = tuple[CodeType, int]


def place_of(made: Made) -> str:
    """Where a call was made, `file:line`."""
    code, at = made
    line = next((line for begin, end, line in code.co_lines() if begin <= at < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


class StepCall:
    """Execute this step, or look its result up in the journal.

    `id` names the call for ever: the same code reaches the same id in every replay. `waiter` is the instance's own (the
    future to complete) and means nothing to anyone else. `made` is where the author wrote the call, if that is known.
    """

    __slots__ = ("args", "id", "kwargs", "made", "step", "waiter")

    def __init__(
        self,
        id: str,
        step: StepSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        waiter: Any = None,
        made: Made | None = None,
    ) -> None:
        self.made = made
        self.id = id
        self.step = step
        self.args = args
        self.kwargs = kwargs
        self.waiter = waiter

    def __repr__(self) -> str:
        return f"StepCall({self.id!r})"


class StartTimer:
    """Wake me at `due`, in milliseconds since the epoch. `limit`: the timer is not slept through, but limits something
    (a timeout, or any other callback of the loop). `waiter` is the instance's own (the handle to run).
    """

    __slots__ = ("due", "id", "limit", "waiter")

    def __init__(self, id: str, due: int, waiter: Any = None, *, limit: bool = False) -> None:
        self.id = id
        self.due = due
        self.limit = limit
        self.waiter = waiter

    def __repr__(self) -> str:
        return f"StartTimer({self.id!r}, due={self.due})"


class CancelTimer:
    """The timer is no longer wanted; a fact that it fired, should one still come, is ignored."""

    __slots__ = ("id",)

    def __init__(self, id: str) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"CancelTimer({self.id!r})"


class CancelStep:
    """The step's result is no longer wanted: stop its body; a completion that still comes is ignored."""

    __slots__ = ("id",)

    def __init__(self, id: str) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"CancelStep({self.id!r})"


class Note:
    """Something to be journaled with the next commit that needs no answer.

    Kinds: `value_recorded`, `step_skipped`, `compensation_registered`, `status_set`, `output_set`, `warning`. The id is
    as stable as a step's, so a replayed note can be told from a new one by kind and id. Python objects which the
    executor still has to encode travel beside the payload: `call` (a compensation's step) and `value` (an output).
    """

    __slots__ = ("call", "id", "kind", "payload", "value")

    def __init__(
        self, kind: str, id: str, payload: dict[str, Any], call: StepCall | None = None, value: Any = None
    ) -> None:
        self.kind = kind
        self.id = id
        self.payload = payload
        self.call = call
        self.value = value

    def __repr__(self) -> str:
        return f"Note({self.kind!r}, {self.id!r}, {self.payload!r})"


class Completed:
    """Fact: the step's result is in the journal. `value` is already a copy that the workflow may keep."""

    __slots__ = ("id", "value")

    def __init__(self, id: str, value: Any) -> None:
        self.id = id
        self.value = value

    def __repr__(self) -> str:
        return f"Completed({self.id!r}, {self.value!r})"


class Failed:
    """Fact: the step has failed for good; `error` is raised where its result was awaited."""

    __slots__ = ("error", "id")

    def __init__(self, id: str, error: BaseException) -> None:
        self.id = id
        self.error = error

    def __repr__(self) -> str:
        return f"Failed({self.id!r}, {self.error!r})"


class Fired:
    """Fact: the timer is due."""

    __slots__ = ("id",)

    def __init__(self, id: str) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"Fired({self.id!r})"


Request = StepCall | StartTimer | CancelTimer | CancelStep | Note
Fact = Completed | Failed | Fired
Opened = StepCall | StartTimer
