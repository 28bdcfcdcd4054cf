"""The engine as programs open it: `async with ironflow.open(...)`, or `with` for scripts.

Translation only: every method is one call of a command, a read, or a wait. The synchronous form runs the same engine
on a loop in a thread (`engine.wait(coroutine)`); there are no twin classes.

A caller that is cancelled stops waiting and no more: a start or a command that has been submitted is followed by what
follows from it, and an engine that was half open, or half closed, is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from ironflow.config import Settings
from ironflow.context.workflows import Workflow
from ironflow.engine import commands, guard, starting
from ironflow.engine.registry import Registry
from ironflow.engine.starting import Start
from ironflow.engine.why import Hold, holds
from ironflow.errors import EngineClosed, RunNotFound, StoreGone
from ironflow.model.ids import tags_of
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.transition import APPLIED
from ironflow.observe.backlog import of_routes
from ironflow.observe.observation import Observation
from ironflow.runtime.bell import Bell
from ironflow.runtime.given import all_of, checked
from ironflow.runtime.handle import Run, RunView, look
from ironflow.runtime.here import start_here
from ironflow.runtime.thread import Synchronous
from ironflow.runtime.waiting import Waiting
from ironflow.store import connect
from ironflow.store.base import Store
from ironflow.store.reader import RunFilter
from ironflow.tasks import Errands, through
from ironflow.worker.evidence import living
from ironflow.worker.local import embedded
from ironflow.worker.results import Results
from ironflow.worker.worker import Worker

In = TypeVar("In")
Out = TypeVar("Out")

#: An engine whose opening is cancelled is opened first and then closed, if that takes no longer than this, seconds: a
#: file that a thread is opening cannot be let go of. And how long the parts of one that is closed may take.
OPENING_S, CLOSING_S = 1.0, 5.0
#: Commands under way when the engine is closed may end within so many seconds.
LAST_ERRANDS_S = 1.0


class Engine(Synchronous):
    """An open database, with or without a worker in this process. Use as `async with`, or `with` in scripts.

    Args:
        url, workflows, worker, concurrency, threads, settings, strict: see `ironflow.open`.
        worker_id: a stable name of the worker, shown to people; None makes one from host and pid.
        tags: what the worker offers (hardware, region, network).
        own_only: the worker serves no queue, and takes only runs that were started or taken on through this engine.
        metrics_address: `HOST:PORT` on which metrics are shown; None shows none.
        observation: by what this process is watched already; None makes its own, which the engine closes.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        workflows: Iterable[Workflow[Any, Any]] | None = None,
        worker: bool = True,
        concurrency: int | None = None,
        threads: int | None = None,
        settings: Settings | None = None,
        worker_id: str | None = None,
        tags: Sequence[str] = (),
        strict: bool = False,
        own_only: bool = False,
        metrics_address: str | None = None,
        observation: Observation | None = None,
    ) -> None:
        self.settings = settings or Settings.load(database_url=url, concurrency=concurrency, threads=threads)
        self.url = url or self.settings.database_url
        self.registry = Registry(one.spec for one in all_of(workflows or ()))
        self.results = Results()
        self._errands = Errands()
        self._is_open = False
        self._waiting = Waiting(self.results, self._executes)
        self._store: Store
        self.worker: Worker | None = None
        #: as whom this process cancels, pauses, resumes and retries
        self.actor = commands.local_user()
        self._with_worker = worker
        self._worker_id = worker_id
        self._tags = tags_of(tags, "tags")
        self._strict = strict
        self._own_only = own_only
        self._metrics_address = metrics_address
        self._given_observation = observation

    @property
    def store(self) -> Store:
        """The open database.

        Raises:
            EngineClosed: it is not open.
        """
        self._check_here()
        if not self._is_open:
            raise EngineClosed()
        return self._store

    # ---- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Engine:
        guard.install()
        try:
            await through(self._open(), OPENING_S)
        except BaseException:
            await self.close(drain_ms=0)
            raise
        return self

    async def _open(self) -> None:
        self._process = os.getpid()
        self._store = await connect(self.url)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._store.close)
            self._bell = Bell(self._store)
            self._observation = self._given_observation or self._observe()
            if self._given_observation is None:
                undo.push_async_callback(self._observation.close)
            self._store.observe(self._observation.observer)
            if self._metrics_address is not None:
                self._observation.listen(self._metrics_address)
            worker = self._new_worker() if self._with_worker else None
            if worker is not None:
                undo.push_async_callback(worker.stop, drain_ms=0)
                self._store.gone.add_done_callback(partial(_give_up, worker))
                await worker.start()
            undo.pop_all()
        self.worker, self._is_open = worker, True
        self._waiting.open()

    def _observe(self) -> Observation:
        observation = Observation(self._store.now, metrics=self._metrics_address is not None)
        if self._with_worker:
            observation.look_at_queue(of_routes(self._store.backlog, self._takes))
        return observation

    def _executes(self, run_id: str) -> bool:
        return self.worker is not None and run_id in self.worker.segments

    def _takes(self, route: str) -> bool:
        return self.worker is not None and self.worker.session.can_take(route)

    def _new_worker(self) -> Worker:
        worker = embedded(
            self._store,
            self.registry,
            self.settings,
            self.results,
            worker_id=self._worker_id,
            tags=self._tags,
            strict=self._strict,
            url=self.url,
            own_only=self._own_only,
        )
        worker.observer = self._observation.observer
        return worker

    async def close(self, *, drain_ms: int | None = None) -> None:
        """Leave: let what executes here end within the drain limit, give the rest back, close the database.

        Cancelled, it has no more patience and does all the same. Whoever waits for a run is told by `EngineClosed`. A
        second call does nothing.
        """
        if not self._is_open:
            return
        try:
            await self._stop_worker(drain_ms)
        finally:
            await through(self._close_parts(), CLOSING_S)

    async def _stop_worker(self, drain_ms: int | None) -> None:
        if self.worker is None:
            return
        try:
            await self.worker.stop(drain_ms=drain_ms)
        except asyncio.CancelledError:
            await self.worker.stop(drain_ms=0)
            raise
        finally:
            self.worker = None

    async def _close_parts(self) -> None:
        async with contextlib.AsyncExitStack() as parts:
            parts.push_async_callback(self._store.close)
            if self._given_observation is None:
                parts.push_async_callback(self._observation.close)
            parts.push_async_callback(self._bell.close)
            parts.push_async_callback(self._errands.close, LAST_ERRANDS_S)
            self._is_open = False
            self._waiting.close()

    # ---- starting ----------------------------------------------------------------------------------------------------

    @overload
    async def start(self, wf: Workflow[None, Out], input: None = None, /, **options: Unpack[Start]) -> Run[Out]: ...
    @overload
    async def start(self, wf: Workflow[In, Out], input: In, /, **options: Unpack[Start]) -> Run[Out]: ...
    async def start(self, wf: Workflow[Any, Any], input: Any = None, /, **options: Unpack[Start]) -> Run[Any]:
        """Start a run; it is durable when this returns.

        Args:
            wf: the workflow.
            input: its one input.
            options: `id`, `idempotency_key`, `concurrency_key`, `priority`, `labels`, `worker_tags`, `limits`, `at`,
                `deadline`: as for `ironflow.run`.

        Raises:
            InvalidInput, InvalidPriority, IdempotencyKeyConflict, ConcurrencyConflict: nothing was started.
        """
        self._register(wf)
        entered: str | None = None

        async def enter(row: RunRow, created: str, lanes: list[tuple[str, int]]) -> str | None:
            nonlocal entered
            self.take_on(row.run_id)
            entered = await self._start_here(row, created, lanes)
            if entered is None:
                entered = await self._enqueue(row, created, lanes)
            return entered

        limit = self.settings.max_payload_bytes
        row, new = await starting.create(self.store, wf.spec, input, options, limit, enter=enter)
        if entered != APPLIED:  # it is in the queue under an id of its own, or it was there before
            self._enqueued(row, new=new)
        return Run(self, row.run_id, wf, created=new)

    @overload
    async def run(self, wf: Workflow[None, Out], input: None = None, /, **options: Unpack[Start]) -> Out: ...
    @overload
    async def run(self, wf: Workflow[In, Out], input: In, /, **options: Unpack[Start]) -> Out: ...
    async def run(self, wf: Workflow[Any, Any], input: Any = None, /, **options: Unpack[Start]) -> Any:
        """Start a run and wait for its output."""
        return await (await self.start(wf, input, **options)).result()

    def take_on(self, run_id: str) -> None:
        """With `own_only`: execute this run here, too, once nobody else does. Otherwise there is nothing to do."""
        if self.worker is not None and self.worker.own is not None:
            self.worker.own.add(run_id)
            self.worker.dispatcher.wake()

    def _register(self, wf: Workflow[Any, Any]) -> None:
        """What is started here can be executed here, whether it was named when the engine was made or not."""
        new = checked(wf).name not in self.registry
        self.registry.add(wf.spec)  # refuses another function of a known name
        if new and self.worker is not None:
            self.worker.session.serve(wf.spec)

    async def _start_here(self, row: RunRow, created: str, lanes: list[tuple[str, int]]) -> str | None:
        return await start_here(self.worker, row, created, lanes)

    async def _enqueue(self, row: RunRow, created: str, lanes: list[tuple[str, int]]) -> str:
        """Create a run in the queue. That it is told of follows from the store's answer, whoever still waits for it."""
        answer = self.store.submit(starting.queued(row, created, lanes))
        if isinstance(answer, str):
            self._submitted(row, answer)
            return answer
        future = asyncio.ensure_future(answer)
        future.add_done_callback(partial(self._answered, row))
        return await asyncio.shield(future)

    def _answered(self, row: RunRow, answer: asyncio.Future[str]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._submitted(row, answer.result())

    def _submitted(self, row: RunRow, word: str) -> None:
        if word == APPLIED and self._is_open:
            self._enqueued(row, new=True)

    def _enqueued(self, row: RunRow, *, new: bool) -> None:
        """A run is in the queue, or was there: whoever may take it looks."""
        if new and self._observation.observer is not None:
            self._observation.observer.created(row)
        self.take_on(row.run_id)
        worker = self.worker
        if worker is not None:
            if row.scheduled_at is not None:
                worker.dispatcher.expect(row.scheduled_at)
            if worker.session.can_take(row.route):
                worker.dispatcher.wake()
                if worker.free > 0 or not worker.session.peers:
                    return
            self.store.notify("queue", worker.session.peers)
        else:
            self._bell.ring()

    # ---- reading and commanding --------------------------------------------------------------------------------------

    def handle(self, run_id: str, wf: Workflow[Any, Out] | None = None) -> Run[Out]:
        """The handle of a run that exists."""
        return Run(self, run_id, wf)

    async def get(self, run_id: str) -> RunView:
        """A run as it stands.

        Raises:
            RunNotFound: no such run.
        """
        row = await self.store.run(run_id)
        if row is None:
            raise RunNotFound(f"no run has the id {run_id!r}")
        return await look(self.store, row)

    async def why(self, run_id: str) -> list[Hold]:
        """Every reason why a run is not executing, with the earliest time at which it can lift.

        Raises:
            RunNotFound: no such run.
        """
        return await holds(self.store, run_id, living)

    async def journal(self, run_id: str, after: int = 0) -> list[Event]:
        """The events of a run so far, in order; `after`: only those with a higher seq."""
        return await self.store.journal(run_id, after)

    async def list(self, filter: RunFilter | None = None) -> list[RunRow]:
        """Runs, newest first."""
        return await self.store.runs(filter or RunFilter())

    async def cancel(self, run_id: str, *, force: bool = False) -> bool:
        """End a run; `force` skips its compensations. Returns whether anything changed: not if it is cancelled already.

        Raises:
            RunNotFound, InvalidTransition: there is no such run; it has ended otherwise.
        """
        return await self._carried_out(run_id, commands.cancel(self.store, run_id, self.actor, force=force))

    async def pause(self, run_id: str) -> bool:
        """Hold a run where it is. Returns whether anything changed: not if it is paused already.

        Raises:
            RunNotFound, InvalidTransition: there is no such run; it has ended, or is being cancelled.
        """
        return await self._carried_out(run_id, commands.pause(self.store, run_id, self.actor))

    async def resume(self, run_id: str) -> bool:
        """Let a paused run go on. Returns True: one that is not paused is refused.

        Raises:
            RunNotFound, InvalidTransition: there is no such run; it is not paused.
        """
        return await self._carried_out(run_id, commands.resume(self.store, run_id, self.actor))

    async def retry(self, run_id: str, *, restart: bool = False) -> bool:
        """Reopen a failed or cancelled run: finished steps are kept, or with `restart` executed again. Returns True.

        Raises:
            RunNotFound, InvalidTransition: there is no such run; it is live, ended well, or can only be restarted.
        """
        return await self._carried_out(run_id, commands.retry(self.store, run_id, self.actor, restart=restart))

    async def _carried_out(self, run_id: str, command: Coroutine[Any, Any, bool]) -> bool:
        """Whether a command changed a run. Whoever executes it is told, also where nobody waits for this any more."""
        return await self._errands.run(self._carry_out(run_id, command))

    async def _carry_out(self, run_id: str, command: Coroutine[Any, Any, bool]) -> bool:
        """Do it; a worker of this process, which no notification reaches, looks at once."""
        changed = await command
        if self.worker is not None:
            await self.worker.check(run_id)
            self.worker.dispatcher.expect(0)
        return changed

    async def wait_end(self, run_id: str) -> tuple[str, str | None]:
        """Wait until a run has ended or is paused; by being told if it ends here, else by looking.

        Returns:
            the state it ended in, and the payload of its terminal event as JSON text: what `Run.result` is made of.

        Raises:
            RunNotFound: no such run.
            EngineClosed: the engine was closed meanwhile. The run is not harmed by that.
        """
        return await self._waiting.end(self.store, run_id)


def _give_up(worker: Worker, gone: asyncio.Future[StoreGone]) -> None:
    """The database is gone for good: what executes here cannot be recorded, and stops."""
    worker.refuse(gone.result())
    worker.cut_off()
