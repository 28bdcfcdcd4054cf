"""The parts of a workflow's event loop that hold no state: its handles, its arithmetic, and all it refuses.

Most of what an event loop can do is I/O, threads, signals, or running itself. None of it could be replayed,
so every such method exists here and says, in one sentence, where the work belongs instead.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, NoReturn

from ironflow.errors import ForbiddenInWorkflow

#: 31 December 9999 in milliseconds: the latest due time that can be shown as a date in every time zone.
LATEST_DUE_MS = 253_402_214_400_000
#: The callback by which `asyncio.sleep` is known: every other timer of the loop limits something.
WAKES_SLEEPER: Callable[..., object] = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]
# A sum of an epoch time and a delay in float seconds is off by less than this many milliseconds. Taking it
# off before rounding up makes call_later(d) and call_at(time() + d) agree, which different Pythons use for
# one thing.
_FLOAT_SLACK_MS = 0.01


class Ready(asyncio.Handle):
    """A callback in the ready queue, with no more than that: its base prepares each one for debug mode, and
    one is made for every step. A cancelled one has no callback any more.
    """

    __slots__ = ()
    _callback: Callable[..., object] | None
    _context: Context

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context

    def cancel(self) -> None:
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._callback is None

    def __repr__(self) -> str:
        return "<cancelled callback>" if self._callback is None else f"<callback {describe(self._callback)}>"


_WHAT_IT_DOES = (
    "The run's loop runs the workflow's code until that ends, and nothing else; "
    "I/O belongs in a step: await ctx.step(…)"
)


class LoopBase(asyncio.AbstractEventLoop):
    """An event loop that refuses everything but what its subclass adds. The subclass must give a method of asyncio's
    only to answer it, and call nothing of its own by such a name: code would reach it.
    """

    # Asked by every future and task at its creation. bool() is False, and spares them a Python call.
    get_debug = staticmethod(bool)

    def get_task_factory(self) -> None:
        return None

    def get_exception_handler(self) -> None:
        return None


def _refused(name: str) -> Callable[..., NoReturn]:
    def method(self: LoopBase, *_args: Any, **_options: Any) -> NoReturn:
        raise ForbiddenInWorkflow(f"loop.{name}() was called in workflow code", hint=_WHAT_IT_DOES)

    method.__name__ = name
    method.__qualname__ = f"LoopBase.{name}"
    return method


# Of any Python, so that what a newer one adds is refused until somebody has thought about it.
for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in LoopBase.__dict__:
        setattr(LoopBase, _name, _refused(_name))


def due_ms(when: float) -> int:
    """The due time, in milliseconds since the epoch, of a timer for `when` in seconds: never early."""
    if when * 1000 >= LATEST_DUE_MS:
        return LATEST_DUE_MS
    return math.ceil(when * 1000 - _FLOAT_SLACK_MS)


def text_of(error: object, how: Callable[[object], str] = str) -> str:
    """What an author's error says, by `str` or `repr`. Never raises: what its class makes of them may."""
    try:
        return how(error)
    except Exception as failure:
        return f"<{type(error).__name__}, whose text could not be made: {type(failure).__name__}>"


def note(error: BaseException, text: str) -> None:
    """Add a note of the engine's to an author's error, if it takes one."""
    with suppress(TypeError):  # its `__notes__` is no list
        BaseException.add_note(error, f"ironflow: {text}")


def task_of(callback: Any) -> asyncio.Task[Any] | None:
    """The task that a callback drives. Never raises: a callback is any object, and may object to being looked at."""
    try:
        owner = getattr(callback, "__self__", None)
    except Exception:
        return None
    return owner if isinstance(owner, asyncio.Task) else None


def describe(callback: Any) -> str:
    """A callback as its author knows it: the task it drives, or the function's name."""
    task = task_of(callback)
    return text_of(callback, _name_of) if task is None else f"task {task.get_name()}"


def _name_of(callback: Any) -> str:
    return str(getattr(callback, "__qualname__", None) or repr(callback))
