"""The tasks, futures and scopes of workflow code: asyncio's own, made the same in every process.

Two things about asyncio's objects differ from one process to the next: what a task's calls are named after,
and the order in which a set of tasks iterates (`for t in done`, a TaskGroup's abort), because sets go by hash
and objects hash by address. So a task here carries its `Scope`, from which its calls take their ids, and
tasks and futures hash by a number given in creation order. Scopes live on the task and not in a context
variable because code may replace a task's context, and must not thereby rename its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from ironflow.engine.requests import Opened

if TYPE_CHECKING:
    from ironflow.engine.workflow_loop import WorkflowLoop


class Scope:
    """The place calls are counted in: one per task, named by the path of creation numbers that leads to it.

    Calls, sleeps, limits (a timeout is one) and notes count apart, so that a timeout put around a step or a sleep,
    or a new status line, leaves the ids of all steps and sleeps as they were, and runs under way survive the edit.
    """

    __slots__ = ("calls", "children", "limits", "notes", "path", "timers")

    def __init__(self, path: str) -> None:
        self.path = path
        self.calls = 0
        self.timers = 0
        self.limits = 0
        self.notes = 0
        self.children = 0

    def timer_id(self) -> str:
        self.timers += 1
        return f"{self.path}/t{self.timers}"

    def limit_id(self) -> str:
        self.limits += 1
        return f"{self.path}/l{self.limits}"

    def note_id(self) -> str:
        self.notes += 1
        return f"{self.path}/n{self.notes}"

    def child(self) -> Scope:
        self.children += 1
        return Scope(f"{self.path}.{self.children}")


def is_limit(timer_id: str) -> bool:
    """Whether a timer is a limit by its id, and no sleep."""
    last = timer_id.rpartition("/")[2]
    return last.startswith("l") and last[1:].isdigit()


class WorkflowTask(asyncio.Task[Any]):
    """A task with a scope, a creation number as its hash, and its context within reach for closing it."""

    __slots__ = ("context", "number", "scope")

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        loop: WorkflowLoop,
        scope: Scope,
        number: int,
        context: Context,
        name: str,
    ) -> None:
        # Before the base class, which at once puts the task into a set and so needs its hash.
        self.number = number
        self.scope = scope
        self.context = context
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number


class WorkflowFuture(asyncio.Future[Any]):
    """A future that hashes by a number taken from its loop when it is first put into a set or a dict, and that only its
    run's code may set.

    Most futures never are put into one, and one is made for every step. First use is as reproducible as creation.
    A future that nobody awaits yet schedules nothing when it is set, so the loop would not see who does it.
    """

    __slots__ = ("number",)
    number: int

    def set_result(self, result: Any) -> None:
        loop: Any = self.get_loop()
        loop.check_inside("set_result")
        super().set_result(result)

    def set_exception(self, exception: type | BaseException) -> None:
        loop: Any = self.get_loop()
        loop.check_inside("set_exception")
        super().set_exception(exception)

    def cancel(self, msg: Any | None = None) -> bool:
        loop: Any = self.get_loop()
        loop.check_inside("cancel")
        return super().cancel(msg)

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:
            loop: Any = self.get_loop()
            self.number = number = loop.next_number()
            return cast(int, number)


class RequestFuture(WorkflowFuture):
    """The future behind a step or a durable sleep: cancelling it withdraws the request."""

    __slots__ = ("request",)
    request: Opened

    # Set by the instance alone, once for every step, and so without a look at who does it.
    set_result = asyncio.Future.set_result  # type: ignore[assignment]
    set_exception = asyncio.Future.set_exception  # type: ignore[assignment]

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        loop: Any = self.get_loop()
        loop.withdraw(self.request)
        return True


class WorkflowTimer(asyncio.TimerHandle):
    """A loop timer made durable: `id` names its request; "" for one that was due at once and never needed
    any.
    """

    __slots__ = ("id",)
    id: str
