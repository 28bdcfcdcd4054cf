"""Which of asyncio's helpers is making a task, where that decides what the task is called.

Two helpers make tasks in ways that differ between Pythons or processes. `wait_for` wraps its awaitable in a
task on 3.11 and awaits it directly on later versions; the wrapper must count as its caller, or ids would
depend on the Python. `as_completed` makes its tasks in the order of a *set* of coroutines, which hash by
address; they must be made in the order the author listed them. Both are recognised by their code objects on
the stack, since replacing the helpers would miss everyone who imported them by name.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import tasks
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Literal

from ironflow.errors import ForbiddenInWorkflow

_ENSURE: frozenset[CodeType] = frozenset(
    function.__code__
    for name in ("ensure_future", "_ensure_future")
    if (function := getattr(tasks, name, None)) is not None
)
_WAIT_FOR = tasks.wait_for.__code__
_iterator_class: Any = getattr(tasks, "_AsCompletedIterator", None)  # 3.13 and later
_AS_COMPLETED: CodeType = tasks.as_completed.__code__ if _iterator_class is None else _iterator_class.__init__.__code__
_AS_COMPLETED_ARGUMENT = "fs" if _iterator_class is None else "aws"

Origin = Literal["plain", "wait_for", "as_completed"]


class TaskOrigins:
    """Recognises the makers of one loop's tasks, and keeps the tasks made ahead for `as_completed`."""

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead: dict[int, Any] = {}

    def of(self, frame: FrameType) -> tuple[Origin, FrameType]:
        """Who called `create_task`, given its caller's frame; with the frame that holds the helper's
        arguments.
        """
        if frame.f_code not in _ENSURE:
            return "plain", frame
        while frame.f_code in _ENSURE and frame.f_back is not None:
            frame = frame.f_back
        if frame.f_code.co_name == "<setcomp>" and frame.f_back is not None:  # a frame of its own before 3.12
            frame = frame.f_back
        if frame.f_code is _WAIT_FOR:
            return "wait_for", frame
        return ("as_completed" if frame.f_code is _AS_COMPLETED else "plain"), frame

    def sibling(self, coro: Any, frame: FrameType, spawn: Callable[[Any], Any]) -> Any:
        """The task of `coro`, one of the coroutines given to `as_completed`: the first call makes them all,
        in order.
        """
        if id(coro) not in self._ahead:
            given = frame.f_locals[_AS_COMPLETED_ARGUMENT]
            if isinstance(given, (list, tuple)):
                for each in given:
                    if asyncio.iscoroutine(each) and id(each) not in self._ahead:
                        self._ahead[id(each)] = spawn(each)
        task = self._ahead.pop(id(coro), None)
        if task is None:
            if inspect.iscoroutine(coro):
                coro.close()
            raise ForbiddenInWorkflow(
                "asyncio.as_completed() got coroutines in something other than a list or tuple; "
                "it would start them in an order that differs between processes",
                hint="Give it a list, or use ctx.as_completed(…).",
            )
        return task
