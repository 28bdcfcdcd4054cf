"""`Call`: something the workflow wants from the engine, named but not yet begun.

A call gets its id where it is written and makes its request where it is awaited. That is what lets a list of
calls be handed to `asyncio.gather`, a TaskGroup or `ctx.parallel` in any fashion and still have the same ids
in every replay. It is a coroutine to asyncio, so that `TaskGroup.create_task(charge(order))` works and is
typed; it is not one to the interpreter, so that a call that was never awaited can be reported by name rather
than by a warning nobody reads.
"""

from __future__ import annotations

import asyncio
import sys
from abc import abstractmethod
from asyncio import base_tasks
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from ironflow.engine.definitions import StepSpec
from ironflow.engine.loop_base import LATEST_DUE_MS
from ironflow.engine.requests import Made, StartTimer, StepCall, place_of
from ironflow.engine.workflow_loop import WorkflowLoop, active_loops
from ironflow.errors import ForbiddenInWorkflow

R_co = TypeVar("R_co", covariant=True)

id_of = id  # for methods whose parameter is called `id`


class Call(Coroutine[Any, Any, R_co], Generic[R_co]):
    """A call of a step, a timer or a group of them: await it once, or hand it to asyncio or to the context.

    Awaiting it a second time, or in another run, raises `ForbiddenInWorkflow`. Never awaiting it fails the
    run with `StepNotAwaited`, because a forgotten `await` before a payment must not look like success.
    """

    __slots__ = ("__weakref__", "_begun", "_iterator", "_loop", "_made")
    _loop: WorkflowLoop
    _begun: bool
    _made: Made
    _iterator: Generator[Any, Any, R_co] | None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # What Python calls it where code computes with a call; `instance` knows by that name what was forgotten.
        type.__setattr__(cls, "__name__", "Call")

    @property
    @abstractmethod
    def name(self) -> str:
        """What the call is of, for reports."""

    @property
    def place(self) -> str:
        """Where it was made, `file:line`."""
        return place_of(self._made)

    @abstractmethod
    def _begin(self) -> Generator[Any, Any, R_co]:
        """Make the request, and return the iterator that ends with its result."""

    @abstractmethod
    def future(self) -> asyncio.Future[R_co]:
        """Begin the call and return its future: what the combinators need, which cancel and compare."""

    def _consume(self) -> WorkflowLoop:
        loop = self._loop
        if self._begun or active_loops.get(get_ident()) is not loop:
            self._refuse()
        self._begun = True
        loop.unstarted.pop(id_of(self), None)
        return loop

    def _refuse(self) -> NoReturn:
        if self._begun:
            raise ForbiddenInWorkflow(
                f"this call of {self.name} was already awaited",
                hint="A call is good for one await; keep its result, or make a task of it to await it twice.",
            )
        raise ForbiddenInWorkflow(
            f"this call of {self.name} was awaited outside the run that made it",
            hint="Await calls in the workflow that makes them; return values, not calls.",
        )

    # ---- the coroutine protocol

    def __await__(self) -> Generator[Any, Any, R_co]:
        return self._begin()

    def send(self, value: Any, /) -> Any:
        iterator = self._iterator
        if iterator is None:
            iterator = self._iterator = self._begin()
        return iterator.send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:
        if self._iterator is not None:
            return self._iterator.throw(typ) if val is None and tb is None else self._iterator.throw(typ, val, tb)
        self.close()
        raise typ if val is None else val

    def close(self) -> None:
        """Give the call up. One that has not begun is never requested, and not reported as forgotten."""
        self._loop.unstarted.pop(id_of(self), None)
        self._begun = True
        if self._iterator is not None:
            self._iterator.close()

    @property
    def __name__(self) -> str:  # what asyncio shows of a task that runs this call
        return self.name

    if not TYPE_CHECKING:  # who checks types, must not take this for something that a call has

        def __bool__(self) -> bool:
            # From Python 3.12 on asyncio asks whether a task has a coroutine, where it shows the task.
            if sys._getframe(1).f_globals.get("__name__") == base_tasks.__name__:
                return True
            raise TypeError("a 'Call' is neither true nor false: its result is")

    def __repr__(self) -> str:
        return f"<Call of {self.name}, {'awaited' if self._begun else 'not awaited yet'}>"


class JournaledStep(Call[R_co]):
    """The call of a step. `request` is what goes to the executor; its id was taken when the call was made.

    Args:
        at: the frame of the author's code that makes it.
        loop, step, args, kwargs: the run, and what is called.
    """

    __slots__ = ("request",)

    def __init__(
        self, at: FrameType, loop: WorkflowLoop, step: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._made = made = at.f_code, at.f_lasti
        self._loop = loop
        self._begun = False
        self._iterator = None
        self.request = StepCall(loop.call_id(step.name), step, args, kwargs, None, made)
        loop.unstarted[id_of(self)] = self

    @property
    def name(self) -> str:
        return self.request.step.name

    def __await__(self) -> Generator[Any, Any, R_co]:
        # What `await charge(order)` runs; spelled out, since it is the hottest line authors write.
        loop = self._loop
        if self._begun or active_loops.get(get_ident()) is not loop:
            self._refuse()
        self._begun = True
        loop.unstarted.pop(id_of(self), None)
        return loop.request(self.request).__await__()

    def _begin(self) -> Generator[Any, Any, R_co]:
        return self.__await__()

    def future(self) -> asyncio.Future[R_co]:
        return self._consume().request(self.request)


class DurableSleep(Call[None]):
    """A timer that outlives the process. `due_ms` gives its due time, in milliseconds, when it is awaited."""

    __slots__ = ("_due_ms", "_id")

    def __init__(self, at: FrameType, loop: WorkflowLoop, id: str, due_ms: Callable[[], int]) -> None:
        self._made = at.f_code, at.f_lasti
        self._loop = loop
        self._begun = False
        self._iterator = None
        self._id = id
        self._due_ms = due_ms
        loop.unstarted[id_of(self)] = self

    @property
    def name(self) -> str:
        return "sleep"

    def _begin(self) -> Generator[Any, Any, None]:
        return self.future().__await__()

    def future(self) -> asyncio.Future[None]:
        return self._consume().request(StartTimer(self._id, min(self._due_ms(), LATEST_DUE_MS)))


class GroupCall(Call[R_co]):
    """Several awaitables under one call (`ctx.parallel` and its kin). `parts` are given up with it."""

    __slots__ = ("_name", "_parts", "_run")

    def __init__(
        self,
        at: FrameType,
        loop: WorkflowLoop,
        name: str,
        run: Callable[[], Coroutine[Any, Any, R_co]],
        parts: Iterable[Any] = (),
    ) -> None:
        self._made = at.f_code, at.f_lasti
        self._loop = loop
        self._begun = False
        self._iterator = None
        self._name = name
        self._run = run
        self._parts = parts
        loop.unstarted[id_of(self)] = self

    @property
    def name(self) -> str:
        return self._name

    def _begin(self) -> Generator[Any, Any, R_co]:
        self._consume()
        return self._run().__await__()

    def future(self) -> asyncio.Future[R_co]:
        return self._loop.create_task(self)

    def close(self) -> None:
        if not self._begun:
            for part in self._parts:
                give_up(part)
        super().close()


def give_up(awaitable: Awaitable[Any]) -> None:
    """End an awaitable that will not be awaited any more, without a complaint that it never was."""
    if asyncio.isfuture(awaitable):
        awaitable.cancel()
    elif asyncio.iscoroutine(awaitable):
        awaitable.close()
