"""The engine as programs open it: `async with ironflow.open(...)`, or `with` for scripts.

Translation only: every method is one call of a command, a read, or a wait. The synchronous form runs the same engine
on a loop in a thread (`engine.wait(coroutine)`); there are no twin classes.
"""

from __future__ import annotations

import asyncio
import getpass
import os
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack, overload

from ironflow.codec.values import parse
from ironflow.config import Settings
from ironflow.context.workflows import Workflow
from ironflow.engine import commands, guard
from ironflow.engine.commands import Start
from ironflow.engine.history import History
from ironflow.engine.registry import Registry
from ironflow.errors import RunNotFound
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.fold import fold
from ironflow.model.ids import tags_of
from ironflow.model.run import RunRow
from ironflow.model.transition import EXISTS, LOST
from ironflow.runtime.bell import Bell
from ironflow.runtime.handle import Run, RunView
from ironflow.runtime.thread import LoopThread
from ironflow.store import connect
from ironflow.store.base import RunFilter, Store
from ironflow.worker.embedded import Worker
from ironflow.worker.results import Results

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")

#: How long a wait for a run of another process pauses between two looks, seconds: from, to.
LOOK = (0.01, 0.5)


class Engine:
    """An open database, with or without a worker in this process. Use as `async with`, or `with` in scripts."""

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
    ) -> None:
        self.settings = settings or Settings.load(database_url=url, concurrency=concurrency, threads=threads)
        self.url = url or self.settings.database_url
        self.registry = Registry(w.spec for w in workflows or ())
        self.workflows = {w.name: w for w in workflows or ()}
        self.results = Results()
        self.store: Store
        self.worker: Worker | None = None
        self._with_worker, self._worker_id, self._tags, self._strict = worker, worker_id, tags_of(tags, "tags"), strict
        self._own_only = own_only
        self._thread: LoopThread | None = None
        self.actor = _actor()

    # ---- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Engine:
        guard.install()
        self.store = await connect(self.url, settings=self.settings)
        self._bell = Bell(self.store)
        if self._with_worker:
            self.worker = Worker(
                self.store,
                self.registry,
                self.settings,
                self.results,
                worker_id=self._worker_id,
                tags=self._tags,
                strict=self._strict,
                url=self.url,
                own_only=self._own_only,
            )
            try:
                await self.worker.start()
            except BaseException:
                await self.store.close()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, drain_ms: int | None = None) -> None:
        """Leave: let what executes here end within the drain limit, give the rest back, close the database."""
        if self.worker is not None:
            await self.worker.stop(drain_ms=drain_ms)
            self.worker = None
        await self._bell.close()
        await self.store.close()

    def __enter__(self) -> Engine:
        self._thread = LoopThread()
        try:
            self._thread.run(self.__aenter__())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        try:
            self._thread.run(self.close())
        finally:
            self._thread.stop()

    def wait(self, aw: Awaitable[T]) -> T:
        """Run a coroutine of this engine from a script: `engine.wait(engine.run(order, o))`."""
        if self._thread is None:
            raise RuntimeError("engine.wait is for `with ironflow.open(...)`; inside `async with`, await it instead")
        return self._thread.run(aw)

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
        self._know(wf)
        store = self.store
        row, created, lanes = commands.new_run(wf.spec, input, options, store.now(), self.settings.max_payload_bytes)
        answer = None
        self.take_on(row.run_id)
        if self._fits_here(row, lanes):
            assert self.worker is not None
            history = History()
            history.input, history.started_at = parse(created)["input"], row.created_at
            answer = await self.worker.start_here(row, created, history)
            if answer == LOST:  # the workflow is paused: the run is created all the same, and waits in the queue
                row, created, lanes = commands.new_run(
                    wf.spec, input, options, store.now(), self.settings.max_payload_bytes
                )
                answer = None
        if answer is None:
            submitted = store.submit(commands.queued(row, created, lanes))
            answer = submitted if isinstance(submitted, str) else await submitted
            self._enqueued(row)
        if answer == EXISTS:
            held = await commands.taken_by(store, row, row.input_hash)
            self.take_on(held.run_id)
            return Run(self, held.run_id, wf, created=False)
        return Run(self, row.run_id, wf)

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

    def _know(self, wf: Workflow[Any, Any]) -> None:
        if wf.name not in self.registry:
            self.registry.add(wf.spec)
            self.workflows[wf.name] = wf
            if self.worker is not None:
                self.worker.session.serve(wf.spec)

    def _fits_here(self, row: RunRow, lanes: list[tuple[str, int]]) -> bool:
        """Whether the run may skip the queue: a slot is free here, nobody waits for it, and no lane must be asked."""
        worker = self.worker
        return (
            worker is not None
            and worker.free > 0
            and not worker.dispatcher.backlog
            and not lanes
            and row.scheduled_at is None
            and worker.session.can_take(row.route)
        )

    def _enqueued(self, row: RunRow) -> None:
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
        folded = fold(await self.store.journal(run_id))
        return RunView(row, folded.steps, folded.input, folded.output, folded.error)

    async def list(self, filter: RunFilter | None = None) -> list[RunRow]:
        """Runs, newest first."""
        return await self.store.runs(filter or RunFilter())

    async def cancel(self, run_id: str, *, force: bool = False) -> bool:
        """End a run. Returns whether anything changed."""
        return await self._told(run_id, commands.cancel(self.store, run_id, self.actor, force=force))

    async def pause(self, run_id: str) -> bool:
        """Hold a run."""
        return await self._told(run_id, commands.pause(self.store, run_id, self.actor))

    async def resume(self, run_id: str) -> bool:
        """Let a paused run go on."""
        return await self._told(run_id, commands.resume(self.store, run_id, self.actor))

    async def retry(self, run_id: str, *, restart: bool = False) -> bool:
        """Reopen a failed or cancelled run: finished steps are kept, or with `restart` executed again.

        Raises:
            InvalidTransition: it is live or ended well, or its compensations ran and it is not to be restarted.
        """
        return await self._told(run_id, commands.retry(self.store, run_id, self.actor, restart=restart))

    async def _told(self, run_id: str, command: Coroutine[Any, Any, bool]) -> bool:
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
        """
        pause, most = LOOK
        while True:
            waiter = self.results.waiter(run_id)  # before the look: an end in between must not be missed
            try:
                local = self.worker is not None and run_id in self.worker.segments
                if not local:
                    found = await self._outcome(run_id)
                    if found is not None:
                        return found
                async with asyncio.timeout(most if local else pause):
                    return await waiter
            except TimeoutError:
                if waiter.done() and not waiter.cancelled():
                    return waiter.result()
                pause = min(pause * 2, most)
            finally:
                self.results.forget(run_id, waiter)

    async def _outcome(self, run_id: str) -> tuple[str, str | None] | None:
        row = await self.store.run(run_id)
        if row is None:
            raise RunNotFound(f"no run has the id {run_id!r}")
        if row.state == runs.PAUSED:
            return row.state, None
        if not row.ended:
            return None
        for event in reversed(await self.store.journal(run_id)):
            if event.kind in j.TERMINAL_KINDS:
                return row.state, event.payload
        return row.state, None


def _actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
