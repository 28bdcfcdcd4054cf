"""Group commit: what many callers submit in the same moment is committed once.

Owns the way of a transition from its caller to the writer and of the answer back; knows no database. A lone
caller commits on the spot, inside its own call: a hop to another thread and back would cost more than it
saves. Otherwise items gather to the end of the loop's tick and go over together; what arrives while a
commit is under way is the next batch. Each batch is answered with one wake-up of the loop.

It promises that every future is answered: with the word of the store, or with the error that befell its own
transition. Order is kept for the items of one run, of which a batch holds at most one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Protocol, TypeVar

from ironflow.errors import StoreError
from ironflow.model.transition import Transition
from ironflow.store.gather import Backlog, Job

#: A lone commit blocks the loop while it lasts. On a disk slower than this (seconds) it goes to the
#: writer's thread.
INLINE_MEAN_S = 0.001

Answer = str | Exception
Result = TypeVar("Result")


class Backend(Protocol):
    """What a committer needs of a database. `commit` and `perform` run in the writer's thread."""

    def commit(self, batch: Sequence[Transition]) -> Sequence[Answer]:
        """Apply a batch in one transaction; one answer each, never an exception for the whole."""
        ...

    def try_commit(self, change: Transition) -> Answer | None:
        """Apply one transition if the turn is free this instant, else None. Called in the loop."""
        ...

    def perform(self, job: Callable[[], Result]) -> Result:
        """Run a job that has its own transactions."""
        ...

    def try_perform(self, job: Callable[[], Result]) -> tuple[Result] | None:
        """Run a short job if the turn is free this instant; None where it is not. Called in the loop."""
        ...


Item = tuple["Transition | Job", "asyncio.Future[Any]"]


class Committer:
    """Gathers, hands over, answers. Belongs to one event loop; its thread lives until `close`."""

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop) -> None:
        #: See `Store`; whoever uses the store keeps it up to date. 0 and 1 mean a lone caller.
        self.concurrent_writers = 0
        #: told how many transitions were committed together, and how long it took, seconds
        self.wrote: Callable[[int, float], None] | None = None
        self._backend = backend
        self._loop = loop
        self._gathered: list[Item] = []
        self._unanswered = 0
        #: a lone commit was done in this tick of the loop
        self._went = False
        self._closed = False
        #: Mean duration of a commit of one transition, in seconds: a moving average over about 8 of them.
        self._mean_s = 0.0
        self._handed: SimpleQueue[list[Item] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ironflow-writer", daemon=True)
        self._thread.start()

    # ---- in the loop
    def submit(self, change: Transition) -> str | asyncio.Future[str]:
        """See `Store.submit`.

        Raises:
            StoreError: the store is closed, or a lone commit failed; nothing was written.
        """
        if self._may_go_alone and not self._went:
            # Once in a tick: whoever comes after it in the same tick is company, or would never let the loop go.
            self._went = True
            self._loop.call_soon(self._next_tick)
            answer = self._try(change)
            if answer is not None:
                if isinstance(answer, Exception):
                    raise answer
                return answer
        return self._gather(change)

    def _try(self, change: Transition) -> Answer | None:
        started = perf_counter()
        answer = self._backend.try_commit(change)
        if answer is not None:
            took = perf_counter() - started
            self._measure(took)
            if self.wrote is not None:
                self.wrote(1, took)
        return answer

    def _next_tick(self) -> None:
        self._went = False

    async def run(self, job: Callable[[], Result], *, short: bool = False) -> Result:
        """Run a job on the writer between two batches; a `short` one on the spot for a lone caller."""
        if short and self._may_go_alone:
            done = self._backend.try_perform(job)
            if done is not None:
                return done[0]
        return await self.start(job)

    def start(self, job: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run a job on the writer between two batches, and do not wait for it here."""
        return self._gather(Job(job))

    @property
    def _may_go_alone(self) -> bool:
        return self._lone and not self._unanswered

    @property
    def _lone(self) -> bool:
        return self.concurrent_writers <= 1 and self._mean_s < INLINE_MEAN_S and not self._closed

    def _gather(self, what: Transition | Job) -> asyncio.Future[Any]:
        if self._closed:
            raise StoreError("the store is closed", hint="Open it again; nothing was written")
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append((what, future))
        self._unanswered += 1
        return future

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        if len(gathered) == 1 and self._unanswered == 1 and self._lone:
            change = gathered[0][0]
            answer = None if isinstance(change, Job) else self._try(change)
            if answer is not None:  # it turned out to be alone, and a hop would only cost
                self._answer(gathered, [answer])
                return
        self._handed.put(gathered)

    def _answer(self, items: list[Item], answers: Sequence[Any]) -> None:
        self._unanswered -= len(items)
        for (_, future), answer in zip(items, answers, strict=True):
            if future.done():
                continue  # its caller was cancelled; what it asked for stands
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _measure(self, seconds: float) -> None:
        self._mean_s += (seconds - self._mean_s) / 8

    async def close(self) -> None:
        """Commit what was submitted, answer it, and end the thread."""
        if self._closed:
            return
        self._closed = True
        self._hand_over()
        self._handed.put(None)
        while self._thread.is_alive():
            await self._loop.run_in_executor(None, self._thread.join, 1.0)

    # ---- in the writer's thread
    def _work(self) -> None:
        backlog: Backlog[Item] = Backlog()
        open_ = True
        while open_ or backlog:
            if not backlog:
                handed = self._handed.get()
                open_ = handed is not None
                backlog.extend(handed or ())
            while open_:
                try:
                    handed = self._handed.get_nowait()
                except Empty:
                    break
                open_ = handed is not None
                backlog.extend(handed or ())
            if backlog:
                self._serve(backlog.next_batch())

    def _serve(self, batch: list[Item]) -> None:
        answers: Sequence[Any]
        try:
            first = batch[0][0]
            if isinstance(first, Job):
                answers = [self._perform(first)]
            else:
                started = perf_counter()
                answers = self._backend.commit([what for what, _ in batch if isinstance(what, Transition)])
                took = perf_counter() - started
                if len(batch) == 1:
                    self._measure(took)
                if self.wrote is not None:
                    self.wrote(len(batch), took)
        except BaseException as error:
            # Outermost on purpose: whatever went wrong, nobody waits for ever.
            answers = [error] * len(batch)
        try:
            self._loop.call_soon_threadsafe(self._answer, batch, answers)
        except RuntimeError:
            pass  # the loop is closed, and with it everybody who waited

    def _perform(self, job: Job) -> Any:
        try:
            return self._backend.perform(job.call)
        except Exception as error:
            return error
