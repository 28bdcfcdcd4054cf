"""`Context`: everything workflow code may ask for besides the steps it calls.

What is here is either a request to the engine (and then a `Call`, or a note that joins the next commit) or a
value that is the same in every replay. There is nothing else a workflow needs from outside, and so nothing
else it gets.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from threading import get_ident
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload
from uuid import UUID

from ironflow.context import combinators
from ironflow.context.call import Call, DurableSleep, GroupCall, JournaledStep
from ironflow.context.combinators import LazyMap, Outcome, check_limit, check_on_error
from ironflow.context.log import run_logger
from ironflow.context.steps import Step, undecorated_spec
from ironflow.duration import Duration, to_ms
from ironflow.engine import handler_thread
from ironflow.engine.definitions import TRANSACTION, StepSpec, check_name
from ironflow.engine.instance import Instance
from ironflow.engine.requests import Note, StepCall
from ironflow.engine.workflow_loop import active_loops
from ironflow.engine.workflow_task import Scope
from ironflow.errors import DefinitionError, ForbiddenInWorkflow, InvalidInput
from ironflow.model import journal as j
from ironflow.model.ids import LONGEST_NAME, LONGEST_STATUS, LONGEST_WARNING, check_length

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Context:
    """The run, as its workflow sees it.

    Attributes:
        run_id, root_run_id, workflow_name: which run this is, and the outermost one it belongs to.
        attempt: 1 + the automatic retries of the run.
        random: a `random.Random` that gives the same numbers in every replay.
        log: a logger that is silent while replaying, and whose lines come out after the commit they belong to.
    """

    def __init__(self, instance: Instance) -> None:
        info = instance.info
        self._instance = instance
        self._loop = instance.loop
        self._random: Random | None = None
        self._uuids: Random | None = None
        self._log: logging.LoggerAdapter[logging.Logger] | None = None
        self._unpatched: set[str] = set()
        self.run_id = info.run_id
        self.root_run_id = info.root_run_id
        self.workflow_name = info.workflow_name
        self.attempt = info.attempt

    # ---- values

    @property
    def random(self) -> Random:
        """See the class. Made when it is first asked for: most runs draw nothing."""
        if self._random is None:
            self._random = Random(f"{self._instance.info.seed}/random")
        return self._random

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """See the class."""
        if self._log is None:
            self._log = run_logger(self._instance)
        return self._log

    def now(self) -> datetime:
        """The time of the last thing that happened to the run (aware, UTC). It stands still between awaits."""
        return _EPOCH + self._loop.now_ms * _MILLISECOND

    def uuid4(self, name: str | None = None) -> UUID:
        """A random UUID that is the same in every replay.

        With a `name` it depends on the run and the name alone, so that calls may be added or reordered around
        it; without one, on how many were drawn before.
        """
        seed = self._instance.info.seed
        if name is not None:
            return UUID(bytes=hashlib.sha256(f"{seed}/uuid/{name}".encode()).digest()[:16], version=4)
        if self._uuids is None:
            self._uuids = Random(f"{seed}/uuid")
        return UUID(int=self._uuids.getrandbits(128), version=4)

    def patched(self, id: str) -> bool:
        """Whether this run takes the changed path called `id`.

        True in every run that gets here for the first time with the new code; False in one that passed this
        place with the old. A run's first answer is its answer for good.
        """
        _bounded(id, "the id of a patch", LONGEST_NAME)
        patches = self._instance.info.patches
        if id in patches:
            return True
        scope = self._scope("patched")
        if self._loop.replaying or id in self._unpatched:
            self._unpatched.add(id)
            return False
        patches.add(id)
        self._loop.ask_note(Note(j.VALUE_RECORDED, f"{scope.note_id()}:{id}", {"patched": id}))
        return True

    # ---- steps

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    def step(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call[Any]:
        """Call a function as a step without decorating it. A lambda needs a name: `step(name="…")(lambda: …)`."""
        return self._call(_spec_of(fn), args, kwargs)

    @overload
    def transaction(self, fn: Step[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    @overload
    def transaction(
        self, fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Call[R]: ...
    @overload
    def transaction(self, fn: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    def transaction(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call[Any]:
        """Call a step that writes to the engine's own database, exactly once.

        What `fn` writes and the record that the step is done commit together or not at all.

        Args:
            fn: a function, or a step with its options; it gets the driver's connection before its other arguments.
                SQLite: a plain `def` and a `sqlite3.Connection`. Every other writer waits for it, so it has to end
                within its `timeout` (250 ms if it has none). PostgreSQL: an `async def` and an `asyncpg.Connection`.
                It may not end the transaction.
            args, kwargs: the other arguments.
        """
        spec = fn.transactional if isinstance(fn, Step) else undecorated_spec(fn, TRANSACTION)
        return self._call(spec, args, kwargs)

    def compensate(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Register what undoes a step, to be run, newest first, if the run fails or is cancelled.

        Register it before the step it undoes: it is journaled in the commit that starts the step, so wherever the
        effect may exist, its undoing is recorded. Registered after the step it would be missing for one that was cut
        off after its effect, or that executed when the run was cancelled: the code never comes back from that `await`.
        So what undoes must cope with a step that did nothing. `finally` in workflow code is no substitute: a suspended
        run leaves its code without finishing it.

        Raises:
            InvalidInput: `fn` cannot be called with these arguments.
        """
        scope = self._scope("compensate")
        spec = _spec_of(fn)
        spec.check_call(args, kwargs)
        key = f"{scope.note_id()}:{spec.name}"
        undoing = StepCall(key, spec, args, kwargs)
        self._loop.ask_note(Note(j.COMPENSATION_REGISTERED, key, {"name": spec.name}, undoing))

    def skip(self, name: str, reason: str) -> None:
        """Journal that a step was left out on purpose, in the place where its call would have stood."""
        check_name(name, "step")
        _bounded(str(reason), "the reason of a skipped step", LONGEST_STATUS)
        self._scope("skip")
        key = self._loop.call_id(name)
        self._loop.ask_note(Note(j.STEP_SKIPPED, key, {"name": name, "reason": reason}))

    def wait(self, awaitable: Awaitable[T], /) -> T:
        """What `await` is in a synchronous workflow: `total = ctx.wait(fetch(url))`."""
        result: T = handler_thread.wait(awaitable)
        return result

    # ---- time

    def sleep(self, duration: Duration) -> Call[None]:
        """Sleep, for seconds or for months: the run takes no worker meanwhile, and any worker wakes it."""
        delay_ms = to_ms(duration, name="sleep")
        loop = self._loop
        return DurableSleep(sys._getframe(1), loop, self._scope("sleep").timer_id(), lambda: loop.now_ms + delay_ms)

    def sleep_until(self, at: datetime) -> Call[None]:
        """Sleep until an aware time. One in the past is due at once."""
        if at.tzinfo is None or at.utcoffset() is None:
            raise DefinitionError(
                f"sleep_until() got {at.isoformat()}, which has no time zone",
                hint="Pass an aware datetime, such as ctx.now() + timedelta(days=1).",
            )
        due_ms = -((_EPOCH - at) // _MILLISECOND)  # rounded up, never early
        return DurableSleep(sys._getframe(1), self._loop, self._scope("sleep_until").timer_id(), lambda: due_ms)

    # ---- many at once

    @overload
    def parallel(
        self,
        aws: Iterable[Awaitable[T]],
        *,
        concurrency: int | None = None,
        on_error: Literal["fail_fast"] = "fail_fast",
    ) -> Call[list[T]]: ...
    @overload
    def parallel(
        self, aws: Iterable[Awaitable[T]], *, concurrency: int | None = None, on_error: Literal["collect"]
    ) -> Call[list[T | Exception]]: ...
    def parallel(
        self,
        aws: Iterable[Awaitable[Any]],
        *,
        concurrency: int | None = None,
        on_error: Literal["fail_fast", "collect"] = "fail_fast",
    ) -> Call[list[Any]]:
        """Await all, at most `concurrency` at a time, and return the results in the order given.

        On the first error the rest is cancelled, its end awaited, and the error raised; with "collect",
        errors take the place of results.
        """
        self._scope("parallel")
        limit, collect = check_limit(concurrency), check_on_error(on_error)
        parts = list(aws)
        loop = self._loop
        return GroupCall(
            sys._getframe(1), loop, "parallel", lambda: combinators.run_all(loop, iter(parts), limit, collect), parts
        )

    @overload
    def map(
        self,
        fn: Callable[[A], Awaitable[T]],
        items: Iterable[A],
        *,
        concurrency: int | None = None,
        on_error: Literal["fail_fast"] = "fail_fast",
    ) -> Call[list[T]]: ...
    @overload
    def map(
        self,
        fn: Callable[[A], Awaitable[T]],
        items: Iterable[A],
        *,
        concurrency: int | None = None,
        on_error: Literal["collect"],
    ) -> Call[list[T | Exception]]: ...
    def map(
        self,
        fn: Callable[[A], Awaitable[Any]],
        items: Iterable[A],
        *,
        concurrency: int | None = None,
        on_error: Literal["fail_fast", "collect"] = "fail_fast",
    ) -> Call[list[Any]]:
        """`parallel` over `fn(item)`, where `fn` is called only when an item's turn has come."""
        self._scope("map")
        limit, collect = check_limit(concurrency), check_on_error(on_error)
        loop = self._loop
        source = LazyMap(fn, items)
        return GroupCall(sys._getframe(1), loop, "map", lambda: combinators.run_all(loop, source, limit, collect))

    def as_completed(self, aws: Iterable[Awaitable[T]], *, concurrency: int | None = None) -> AsyncIterator[Outcome[T]]:
        """Outcomes as they come in: `async for outcome in ctx.as_completed(calls)`.

        Leaving the loop early does not stop the rest; closing the iterator (`contextlib.aclosing`) does.
        """
        self._scope("as_completed")
        return combinators.run_as_completed(self._loop, list(aws), check_limit(concurrency))

    @overload
    def first(self, a: Awaitable[A], b: Awaitable[B], /) -> Call[tuple[Literal[0], A] | tuple[Literal[1], B]]: ...
    @overload
    def first(
        self, a: Awaitable[T], b: Awaitable[T], c: Awaitable[T], /, *more: Awaitable[T]
    ) -> Call[tuple[int, T]]: ...
    def first(self, *aws: Awaitable[Any]) -> Call[Any]:
        """Await the first to end: its index and its result, or its error. The others are cancelled."""
        self._scope("first")
        if len(aws) < 2:
            raise DefinitionError("ctx.first() needs at least two awaitables to choose from")
        parts, loop = list(aws), self._loop
        return GroupCall(sys._getframe(1), loop, "first", lambda: combinators.run_first(loop, parts), parts)

    # ---- what others see of the run

    def set_status(self, text: str) -> None:
        """Say in a few words what the run is doing; shown wherever the run is. At most 1,000 characters."""
        self._note(j.STATUS_SET, {"text": _bounded(str(text), "a status", LONGEST_STATUS)})

    def set_output(self, value: Any) -> None:
        """Publish a preliminary result, readable while the run goes on. What the workflow returns replaces it.

        It has the type of that result; progress of another type is `set_status`, or the result of a step.

        Args:
            value: what the run shows as its output for now. One that does not fit fails the run, as returning it would.
        """
        self._loop.ask_note(Note(j.OUTPUT_SET, self._scope("set_output").note_id(), {}, value=value))

    def warn(self, message: str) -> None:
        """Journal a warning, of at most 10,000 characters; a run that completes with one ends as `warning`."""
        self._note(j.WARNING, {"message": _bounded(str(message), "a warning", LONGEST_WARNING)})

    # ---- inside

    def _note(self, kind: str, payload: dict[str, Any]) -> None:
        self._loop.ask_note(Note(kind, self._scope(kind).note_id(), payload))

    def _call(self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]:
        self._scope(spec.name)
        return JournaledStep(sys._getframe(2), self._loop, spec, args, kwargs)

    def _scope(self, what: str) -> Scope:
        loop = self._loop
        if active_loops.get(get_ident()) is not loop:
            raise ForbiddenInWorkflow(
                f"{what} was asked of the context of run {self.run_id} outside its workflow code",
                hint="Keep the context to the workflow: a step gets its data as arguments, and step_info().",
            )
        return loop.current_scope()


def _bounded(text: str, what: str, longest: int) -> str:
    try:
        return check_length(text, what, longest)
    except InvalidInput as error:
        raise DefinitionError(error.message, hint="Shorten it; `ctx.set_output` publishes values.") from None


def _spec_of(fn: Callable[..., Any]) -> StepSpec:
    return fn.spec if isinstance(fn, Step) else undecorated_spec(fn, "tool")
