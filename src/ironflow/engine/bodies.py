"""Running step bodies: in tasks of the worker's loop or in threads, with everything allowed there.

What it promises: a body gets copies of its arguments and one `StepInfo`; its end (result encoded, or error) is
handed over exactly once; a cancelled body has really ended before its end is reported; and whatever a body raises,
SystemExit included, is the step's error and never the worker's.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from ironflow.engine import forks
from ironflow.engine.definitions import is_async_function
from ironflow.engine.outside import Outside
from ironflow.engine.plan import StepRun
from ironflow.engine.step_info import StepInfo, current
from ironflow.errors import OUTAGES, IronflowError, StepTimeout
from ironflow.model import moment
from ironflow.model.capacity import RunHead
from ironflow.model.step import TRANSACTION

if TYPE_CHECKING:
    from ironflow.store.base import OpenTransaction

#: A transactional step holds up every other writer of a SQLite file; it must be done by then, ms.
TRANSACTION_MS = 250


class Owner(Protocol):
    """Who is told of a body's end: the segment that started it, or the one that adopted it."""

    def body_ended(self, body: Body) -> None: ...

    async def enter(self, body: Body) -> None:
        """Wait until this body may keep every other writer of the database waiting."""
        ...


class Body:
    """One try of one step, executing. `owner` and `step` change hands when a later segment adopts it."""

    __slots__ = (
        "answer",
        "cancelled",
        "error",
        "head",
        "info",
        "outage",
        "owner",
        "result",
        "step",
        "task",
        "told",
        "transaction",
        "try_no",
        "value",
    )

    def __init__(self, owner: Owner | None, step: StepRun, head: RunHead) -> None:
        self.owner = owner
        self.step = step
        #: what the last heartbeat of an earlier try said
        self.told: Any = None
        self.head = head
        self.try_no = step.try_no
        #: it was asked to end: whatever it says now is not the step's result
        self.cancelled = False
        self.info: StepInfo | None = None
        self.task: asyncio.Task[None] | None = None
        #: how it ended: an encoded result, or an error; `answer` holds what a `reconcile` said
        self.result: str | None = None
        #: the result as reading its text gives it: what the workflow gets
        self.value: Any = None
        self.error: BaseException | None = None
        self.answer: Any = None
        #: its transaction could not be had, so the body was not called (to its end): that says nothing about the step
        self.outage: IronflowError | None = None
        #: the user's writes of a transactional step, waiting for the step's completion to commit with them
        self.transaction: OpenTransaction | None = None

    def cancel(self) -> None:
        """Ask the body to end, once: what waits for a thread's end must not be cancelled itself. A thread cannot be
        stopped: it sees `step_info().cancelled`.
        """
        if self.cancelled:
            return
        self.cancelled = True
        if self.info is not None:
            self.info.cancelled = True
            # A task that was cancelled before its first step would end without a word, and its end is waited for.
            if self.task is not None:
                self.task.cancel()


class Bodies:
    """Starts bodies on the running loop and in one pool of threads.

    Args:
        outside: the clock, and transactions for the steps that want one.
        threads: how many `def` bodies run at once.
        limit: the largest encoded result, bytes.
    """

    def __init__(self, outside: Outside, threads: int, limit: int) -> None:
        self._outside = outside
        self.limit = limit
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ironflow-step")
        self.loop = asyncio.get_running_loop()
        self._process = forks.process
        forks.watch(self)

    def start(
        self, owner: Owner, step: StepRun, head: RunHead, context: contextvars.Context, generation: int = 1
    ) -> Body:
        """Run a body in a copy of `context`. Its `owner` hears of the end through `body_ended`, on this loop.

        Args:
            generation: the attempt that last restarted the run.
        """
        earlier: Body | None = step.body
        body = step.body = Body(owner, step, head)
        if earlier is not None and earlier.info is not None:
            body.told = earlier.info.latest if earlier.info.latest is not None else earlier.told
        # Not by the loop's create_task: with an eager task factory (Python 3.12) the body would run at once, and end
        # before its segment has heard of it.
        body.task = asyncio.Task(self._run(body, generation), loop=self.loop, context=context.copy())
        return body

    def close(self) -> None:
        """Take no more threads. Bodies that still run in one are left behind: their results are dropped anyway."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        forks.unwatch(self)

    async def _run(self, body: Body, generation: int) -> None:
        step, spec, head = body.step, body.step.spec, body.head
        try:
            if body.cancelled:
                raise asyncio.CancelledError
            args, kwargs = step.arguments()
            info = body.info = StepInfo(
                run_id=head.run_id,
                root_run_id=head.root_run_id,
                step_id=step.id,
                name=spec.name,
                attempt=step.try_no,
                fence=head.execution_seq,
                generation=generation,
                deadline=self._deadline(spec.timeout_ms),
                last_heartbeat=body.told,
            )
            current.set(info)
            if step.reconciling:
                body.answer = await self._call(spec.reconcile, args, kwargs)
            else:
                value = await (spec.fn(*args, **kwargs) if spec.plain else self._bounded(body, args, kwargs))
                path = f"{step.id} result"
                body.result, body.value = spec.result.snapshot(value, path=path, limit=self.limit)
        except BaseException as error:
            body.error = error
        if forks.process != self._process:
            _end_fork()
        try:
            if body.transaction is not None and (body.error is not None or body.cancelled):
                # Its completion will not be journaled: either its result cannot be, or nobody wants it any more.
                transaction, body.transaction = body.transaction, None
                await transaction.rollback()
        finally:  # a body that is cancelled just now has ended all the same, and its end is waited for
            owner = body.owner
            if owner is not None:
                owner.body_ended(body)

    def _deadline(self, timeout_ms: int | None) -> datetime | None:
        return None if timeout_ms is None else moment.utc(self._outside.now() + timeout_ms)

    async def _bounded(self, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A body that is more than an `async def` without limits: a thread, a transaction, a time to keep."""
        spec = body.step.spec
        call = functools.partial(self._call, spec.fn, args, kwargs)
        if spec.kind == TRANSACTION:
            call = functools.partial(self._transact, body, args, kwargs)
        return await self._within(body, call)

    async def _call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_async_function(fn):
            return await fn(*args, **kwargs)
        context = contextvars.copy_context()
        running = self._pool.submit(context.run, _plain, fn, args, kwargs)
        ended = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            # A thread cannot be stopped. Where the body was cancelled, its end is waited for, as was promised; where
            # only its time is over, the next try must not wait for a thread that may never end.
            info = current.get(None)
            if not running.cancel() and info is not None and info.cancelled:
                await asyncio.wait({ended})
            raise

    async def _transact(self, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        spec = body.step.spec
        if self._outside.exclusive_transactions and body.owner is not None:
            await body.owner.enter(body)
        raised: list[BaseException] = []
        call = _with_connection(spec.fn, args, kwargs, raised)
        try:
            value, body.transaction = await self._outside.begin(call, deadline_ms=spec.timeout_ms or TRANSACTION_MS)
        except OUTAGES as error:
            if not any(error is one for one in raised):
                body.outage = error
            raise
        finally:
            raised.clear()  # what was raised knows this frame: together they would wait for the garbage collector
        return value

    async def _within(self, body: Body, call: Callable[[], Any]) -> Any:
        """Enforce the step's time limits: in all, and since its last heartbeat."""
        spec = body.step.spec
        if spec.timeout_ms is None and spec.heartbeat_timeout_ms is None:
            return await call()
        total = None if spec.timeout_ms is None else spec.timeout_ms / 1000
        silence = None if spec.heartbeat_timeout_ms is None else spec.heartbeat_timeout_ms / 1000
        started = self.loop.time()
        limit = asyncio.timeout(_least(total, silence))
        try:
            async with limit:
                if silence is not None:
                    self._rearm_on_heartbeat(body, limit, started, total, silence)
                return await call()
        except TimeoutError as error:
            if not limit.expired():
                raise
            if body.info is not None:
                body.info.cancelled = True
            if total is not None and self.loop.time() - started >= total:
                raise StepTimeout(f"step {body.step.id} did not end within {total:g} s") from error
            raise StepTimeout(f"step {body.step.id} sent no heartbeat for {silence:g} s") from error

    def _rearm_on_heartbeat(
        self, body: Body, limit: asyncio.Timeout, started: float, total: float | None, silence: float
    ) -> None:
        loop = self.loop

        def rearm() -> None:
            until = loop.time() + silence
            with suppress(RuntimeError):  # the body has ended, or its time is over
                limit.reschedule(until if total is None else min(until, started + total))

        def beat(details: Any) -> None:
            loop.call_soon_threadsafe(rearm)

        if body.info is not None:
            body.info.on_heartbeat = beat


class _AuthorsCode:
    """Around a call of a body: keeps what it raises, and ends the child that it forked and that comes back from it."""

    __slots__ = ("_process", "_raised")

    def __init__(self, raised: list[BaseException] | None = None) -> None:
        self._raised = raised

    def __enter__(self) -> None:
        self._process = forks.process

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if forks.process != self._process:
            _end_fork()
        if error is not None and self._raised is not None:
            self._raised.append(error)


def _end_fork() -> None:
    """A body has ended in a child that it forked: so does the child."""
    info = current.get(None)
    forks.end("a step" if info is None else f"step {info.step_id} of run {info.run_id}")


def _least(a: float | None, b: float | None) -> float | None:
    return min((x for x in (a, b) if x is not None), default=None)


def _with_connection(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], raised: list[BaseException]
) -> Callable[[Any], Any]:
    """A function of the connection alone, of the same colour and name: stores refuse one that they cannot call.

    `raised` gets what it raises: an error of the store's own is none of the function's.
    """
    if is_async_function(fn):

        @functools.wraps(fn)
        async def call(connection: Any) -> Any:
            with _AuthorsCode(raised):
                return await fn(connection, *args, **kwargs)

        return call

    @functools.wraps(fn)
    def call_plain(connection: Any) -> Any:
        with _AuthorsCode(raised):
            return fn(connection, *args, **kwargs)

    return call_plain


def _plain(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call in a thread; StopIteration cannot cross a future, so it is renamed here."""
    try:
        with _AuthorsCode():
            return fn(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError(f"the step raised {error!r}") from error
