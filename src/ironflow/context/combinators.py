"""Many awaitables at once: what stands behind `ctx.parallel`, `map`, `first` and `as_completed`.

asyncio has these too, and they work; these add what long runs need: a limit on how many are under way,
laziness (a list of a hundred thousand items starts only what may run), errors as values, and structure: when
a group ends early, what is left is cancelled and its end awaited before the group's own error goes on.
"""

from __future__ import annotations

import asyncio
import inspect
import reprlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from ironflow.context.call import Call, give_up
from ironflow.engine.closing import CLOSING
from ironflow.engine.workflow_loop import WorkflowLoop
from ironflow.errors import DefinitionError

T = TypeVar("T")


class Outcome(Generic[T]):
    """How one of several awaitables ended: `index` is its place in what was given, `error` is None if it went well."""

    __slots__ = ("_value", "error", "index")

    def __init__(self, index: int, value: T | None, error: BaseException | None) -> None:
        self.index = index
        self._value = value
        self.error = error

    @property
    def ok(self) -> bool:
        """Whether it went well."""
        return self.error is None

    @property
    def value(self) -> T:
        """The result; raises the error when there is one, so that it cannot be overlooked."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]  # None only where T is

    def __repr__(self) -> str:
        shown = f"value={self._value!r}" if self.error is None else f"error={self.error!r}"
        return f"Outcome({self.index}, {shown})"


_NO_MORE: Any = object()


class _Group:
    """Awaitables under way, at most `limit` at a time, handed back in the order in which they end."""

    def __init__(self, loop: WorkflowLoop, source: Iterator[Awaitable[Any]], limit: int | None) -> None:
        self._loop = loop
        self._source = source
        self._limit = limit
        self._running: dict[int, asyncio.Future[Any]] = {}
        self._ended: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._begun = 0
        self._exhausted = False

    async def next(self) -> tuple[int, asyncio.Future[Any]] | None:
        """The next that ends, with its index; None when all have been handed back."""
        self.fill()
        while not self._ended:
            if not self._running:
                return None
            await self._something_ends()
        return self._ended.popleft()

    async def stop(self) -> None:
        """Begin nothing more, cancel what runs, and wait until it has ended."""
        self._exhausted = True
        for future in list(self._running.values()):
            future.cancel()
        while self._running:
            await self._something_ends()
        for _, future in self._ended:
            if not future.cancelled():
                future.exception()  # looked at: an error on the way out is not worth a report of its own

    def fill(self) -> None:
        """Begin as many as there is room for. To be called in the task whose scope the new ones count in."""
        while not self._exhausted and (self._limit is None or len(self._running) < self._limit):
            awaitable = next(self._source, _NO_MORE)
            if awaitable is _NO_MORE:
                self._exhausted = True
                return
            future = _future_of(self._loop, awaitable)
            index = self._begun
            self._begun += 1
            self._running[index] = future
            future.add_done_callback(partial(self._note_end, index))

    def _note_end(self, index: int, future: asyncio.Future[Any]) -> None:
        del self._running[index]
        self._ended.append((index, future))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _something_ends(self) -> None:
        self._waiter = self._loop.create_future()
        await self._waiter


def _future_of(loop: WorkflowLoop, awaitable: Awaitable[Any]) -> asyncio.Future[Any]:
    # A step's own future will do: a task around it would only cost time and make longer ids.
    if isinstance(awaitable, Call):
        return awaitable.future()
    if not inspect.isawaitable(awaitable):
        raise DefinitionError(
            f"{reprlib.repr(awaitable)} is no call of a step, and cannot be awaited",
            hint="Give calls: ctx.parallel([charge(a), charge(b)]), or the step and the items: ctx.map(charge, items).",
        )
    return asyncio.ensure_future(awaitable, loop=loop)


async def run_all(loop: WorkflowLoop, source: Iterator[Awaitable[Any]], limit: int | None, collect: bool) -> list[Any]:
    """All results in the order given. The first error ends the group, unless `collect` makes it a result."""
    group = _Group(loop, source, limit)
    results: dict[int, Any] = {}
    try:
        while (ended := await group.next()) is not None:
            index, future = ended
            try:
                results[index] = future.result()
            except Exception as error:
                if not collect:
                    raise
                results[index] = error
    except CLOSING:
        raise
    except BaseException:
        await _abandon(group, source)
        raise
    return [results[index] for index in range(len(results))]


async def run_first(loop: WorkflowLoop, awaitables: list[Awaitable[Any]]) -> tuple[int, Any]:
    """Index and result of the first to end; its error, if that is how it ended. The others are cancelled."""
    group = _Group(loop, iter(awaitables), None)
    try:
        ended = await group.next()
    except CLOSING:
        raise
    except BaseException:
        await group.stop()
        raise
    assert ended is not None  # there are at least two
    await group.stop()
    index, future = ended
    return index, future.result()


async def run_as_completed(
    loop: WorkflowLoop, awaitables: list[Awaitable[T]], limit: int | None
) -> AsyncIterator[Outcome[T]]:
    """An outcome for each, as they end. Closing the iterator cancels what is left."""
    source = iter(awaitables)
    group = _Group(loop, source, limit)
    try:
        while (ended := await group.next()) is not None:
            index, future = ended
            try:
                outcome = Outcome[T](index, future.result(), None)
            except (Exception, asyncio.CancelledError) as error:
                outcome = Outcome[T](index, None, error)
            group.fill()  # the freed place is taken while the caller looks at this outcome
            yield outcome
    finally:
        if not loop.is_closed():
            await _abandon(group, source)


async def _abandon(group: _Group, source: Iterator[Awaitable[Any]]) -> None:
    if not isinstance(source, LazyMap):  # whose remaining items are no awaitables yet
        for awaitable in source:
            give_up(awaitable)
    await group.stop()


class LazyMap(Iterator[Awaitable[T]]):
    """`fn` applied to each item only when there is room for one more."""

    __slots__ = ("_fn", "_items")

    def __init__(self, fn: Callable[[Any], Awaitable[T]], items: Iterable[Any]) -> None:
        self._fn = fn
        self._items = iter(items)

    def __next__(self) -> Awaitable[T]:
        made = self._fn(next(self._items))
        if not inspect.isawaitable(made):
            raise DefinitionError(
                f"ctx.map() needs a step, and {getattr(self._fn, '__name__', self._fn)} returned {reprlib.repr(made)}",
                hint="Give it a step, or a function that calls one; what only computes needs no ctx.map.",
            )
        return made


def check_limit(concurrency: Any) -> int | None:
    """How many may be under way at a time; None for any number.

    Raises:
        DefinitionError: it is no whole number from 1.
    """
    if concurrency is None:
        return None
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise DefinitionError(f"concurrency must be a whole number from 1, or None for no limit, not {concurrency!r}")
    return concurrency


def check_on_error(on_error: str) -> bool:
    """Whether errors are collected.

    Raises:
        DefinitionError: it is none of the two words.
    """
    if on_error not in ("fail_fast", "collect"):
        raise DefinitionError(f'on_error must be "fail_fast" or "collect", not {on_error!r}')
    return on_error == "collect"
