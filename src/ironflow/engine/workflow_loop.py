"""A small deterministic asyncio event loop for workflow code, one per run.

It owns no sockets, no clock and no threads. It runs what is ready until nothing is, and collects what the
code asked for; time stands still at the last fact. Because live execution and replay are then one and the
same computation over the same facts, plain asyncio becomes durable: gather, TaskGroup, timeout, Queue and the
rest work unchanged, and `asyncio.sleep(3600)` is a timer that outlives the process.

Promises: the same facts in the same order give the same requests with the same ids, in every process and on
every supported Python. Nothing of the caller leaks in (context variables, running loop, current task,
generator hooks), and nothing of the workflow leaks out. Whatever is not deterministic is refused with a
sentence that says what to do.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, copy_context
from itertools import repeat
from threading import current_thread, get_ident
from typing import Any, NoReturn, cast

from ironflow.engine import forks
from ironflow.engine.closing import CLOSE_TRIES, WorkflowClosed, close_generator, close_task
from ironflow.engine.loop_base import WAKES_SLEEPER, LoopBase, Ready, describe, due_ms, note, task_of, text_of
from ironflow.engine.requests import CancelStep, CancelTimer, Opened, Request, StartTimer, StepCall
from ironflow.engine.task_origin import TaskOrigins
from ironflow.engine.task_register import FIRST_PRUNE, TaskRegister
from ironflow.engine.workflow_task import RequestFuture, Scope, WorkflowFuture, WorkflowTask, WorkflowTimer
from ironflow.errors import ForbiddenInWorkflow, WorkflowStuck

#: The workflow loop each thread (by its ident) is executing code of. Asking asyncio for the running loop
#: would do, but costs a system call on 3.11, and every step asks several times.
active_loops: dict[int, WorkflowLoop] = {}
# A child that such code has forked executes none; where the entry is missed, the child has come back.
os.register_at_fork(after_in_child=active_loops.clear)

_running_loop = events._get_running_loop
_set_running_loop = events._set_running_loop
# On 3.11 asyncio.current_task is a Python function around this look-up; every call of a step makes it.
_current_task: Callable[[Any], Any] = (
    asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]
    if sys.version_info < (3, 12)
    else asyncio.current_task
)
_enter_task = asyncio.tasks._enter_task
_leave_task = asyncio.tasks._leave_task

#: One activation may run this many callbacks; only code that spins (`while True: await sleep(0)`) needs more.
CALLBACK_LIMIT = 1_000_000
_HASH_BITS = 59


class WorkflowLoop(LoopBase):
    """The loop of one run.

    Parameters:
        run_id: named in errors.
        seed: the run's seed; it only spreads the hashes of this run's tasks, so that a thousand instances do
            not all collide in asyncio's process-wide set of tasks. Equal seeds give equal hashes, hence equal
            set orders.
        strict: whether the guard raises (development, tests) or warns once (production).

    Attributes:
        open: requests made and neither answered nor withdrawn, in the order they were made.
        requests: what this activation has asked so far.
        unstarted: context calls made and not yet awaited, by object identity.
        withdrawn: ids that were cancelled; late facts for them are ignored.
        fault: an error that belongs to no task (a callback's), which fails the run.
        unreported: failures that nobody looked at, as sentences.
        stopped: whether main has ended or a fault has ended the run; from then on nothing runs any more.
    """

    def __init__(self, run_id: str, seed: int = 0, *, strict: bool = False) -> None:
        self.run_id = run_id
        self.strict = strict
        self.now_ms = 0
        self.replaying = False
        self.open: dict[str, Opened] = {}
        self.requests: list[Request] = []
        self.unstarted: dict[int, Any] = {}
        self.withdrawn: set[str] = set()
        self.fault: BaseException | None = None
        self.unreported: list[str] = []
        self.stopped = False
        self.root_scope = Scope("main")
        # Callbacks that run in no task count here. A synchronous handler's thread is main in all but name, so
        # its bridge points this at the root scope.
        self.fallback_scope = Scope("callbacks")
        self.tasks = TaskRegister()
        self._ready: deque[Any] = deque()
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._prune_generators_at = FIRST_PRUNE
        self._origins = TaskOrigins()
        self._number = (seed * 0x9E3779B97F4A7C15) & ((1 << _HASH_BITS) - 1)
        self._closed = False
        self._refusals = 0

    # ---- activation

    def activation(self, act: Callable[[Any], object], argument: Any) -> None:
        """Call `act(argument)` inside this loop, then run everything that became ready.

        The caller may itself be a task of the worker's loop: that task is left for the while and entered
        again, since a Python that keeps the current task per thread refuses to run one inside another.
        """
        thread = get_ident()
        if thread in active_loops:
            raise RuntimeError("workflow code cannot drive an instance, its own or another: an executor does that")
        active_loops[thread] = self
        outer = _running_loop()
        outer_task = _current_task(outer) if outer is not None else None
        if outer is not None and outer_task is not None:
            _leave_task(outer, outer_task)
        hooks = sys.get_asyncgen_hooks()
        _set_running_loop(self)
        sys.set_asyncgen_hooks(self._generator_started, _generator_dropped)
        try:
            act(argument)
            self._drain()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(outer)
            if active_loops.pop(thread, None) is None:
                forks.end(f"the code of run {self.run_id}")
            if outer is not None and outer_task is not None:
                _enter_task(outer, outer_task)

    def _drain(self) -> None:
        ready = self._ready
        for _ in repeat(None, CALLBACK_LIMIT):
            if not ready:
                return
            handle = ready.popleft()
            callback = handle._callback
            if callback is None:  # cancelled
                continue
            try:
                handle._context.run(callback, *handle._args)
            except BaseException as error:
                self._callback_raised(callback, error)
        self._fail(
            WorkflowStuck(
                f"workflow code of run {self.run_id} ran {CALLBACK_LIMIT} callbacks and waited for nothing",
                hint="Look for a loop around asyncio.sleep(0); wait for an event, a step or a timer instead.",
            )
        )

    def _callback_raised(self, callback: Callable[..., object], error: BaseException) -> None:
        # A task that raises SystemExit or KeyboardInterrupt keeps it as its result and raises it here once
        # more, meant for the loop's caller. That caller is a worker with other runs to care for.
        task = task_of(callback)
        if task is not None and getattr(task, "_exception", None) is error:
            return
        self.call_exception_handler({"message": f"error in callback {describe(callback)}", "exception": error})

    def halt(self) -> None:
        """Nothing runs any more: what is ready is dropped, and what becomes ready goes nowhere."""
        self.stopped = True
        self._ready.clear()
        self._ready = deque()

    def _fail(self, error: BaseException) -> None:
        if self.fault is None:
            self.fault = error
        self.halt()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        message = str(context.get("message", "unhandled error"))
        error = context.get("exception")
        if "never retrieved" in message:  # from a finaliser, at the collector's whim: worth telling, not failing
            self.unreported.append(f"{message}: {text_of(error, repr)}")
            return
        if isinstance(error, BaseException):
            note(error, f"{message}, in run {self.run_id}; no task could take this error, so the run fails")
            self._fail(error)
        else:
            self._fail(RuntimeError(f"{message}, in run {self.run_id}"))

    # ---- callbacks and timers

    def call_soon(  # type: ignore[override]  # typeshed ties args to the callback's signature
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if active_loops.get(get_ident()) is not self:
            self._refuse_outsider(f"{describe(callback)} was scheduled")
        handle = Ready(callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if active_loops.get(get_ident()) is not self:
            self._refuse_outsider(f"{describe(callback)} was scheduled")
        handle = WorkflowTimer(when, callback, args, self, context)
        handle.id = ""
        if when <= self.time():
            self._ready.append(handle)
        elif not self._closed:
            scope, limit = self.current_scope(), callback is not WAKES_SLEEPER
            handle.id = scope.limit_id() if limit else scope.timer_id()
            self.open[handle.id] = request = StartTimer(handle.id, due_ms(when), handle, limit=limit)
            self.requests.append(request)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        request = self.open.get(cast(WorkflowTimer, handle).id)
        if request is not None and request.waiter is handle:
            self.withdraw(request)

    def time(self) -> float:
        """The time of the last fact, in seconds since the epoch."""
        return self.now_ms / 1000

    def check_inside(self, method: str) -> None:
        """Refuse a call of a future's method by any code but this run's: no journal would know of it."""
        if active_loops.get(get_ident()) is not self:
            self._refuse_outsider(f"{method}() of a future was called")

    def _refuse_outsider(self, what: str) -> NoReturn:
        where = "from another run" if get_ident() in active_loops else "outside an activation"
        error = ForbiddenInWorkflow(
            f"{what} on the loop of run {self.run_id} {where}, in thread {current_thread().name}; "
            f"a workflow's futures, events and queues belong to its own code",
            hint="Return a value from the step, or send the run a signal; make primitives in the workflow.",
        )
        # Whoever did it may never tell, and what the code waits for may never come: the run can't go on from here.
        if not self._closed and not self.stopped:
            self.fault = self.fault or error
        raise error

    # ---- tasks, futures, generators

    def create_future(self) -> WorkflowFuture:
        return WorkflowFuture(loop=self)

    def next_number(self) -> int:
        """A number for the hash of a task or future of this run."""
        self._number += 1
        return self._number

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **options: Any
    ) -> WorkflowTask:
        if active_loops.get(get_ident()) is not self:
            self._refuse_outsider(f"{describe(coro)} was scheduled")
        if self._closed:
            coro.close()
            self._refuse_closed()
            return cast(WorkflowTask, self.create_future())
        if options.get("eager_start"):
            raise ForbiddenInWorkflow(
                "eager tasks start in an order that differs between Pythons", hint="Leave eager_start out."
            )
        kind, frame = self._origins.of(sys._getframe(1))
        if kind == "as_completed":
            sibling = self._origins.sibling(coro, frame, lambda each: self._spawn(each, None, None, False))
            return cast(WorkflowTask, sibling)
        return self._spawn(coro, name, context, kind == "wait_for")

    def _spawn(self, coro: Any, name: object, context: Context | None, in_caller_scope: bool) -> WorkflowTask:
        scope = self.current_scope()
        if not in_caller_scope:
            scope = scope.child()
        return self.start_task(coro, scope, copy_context() if context is None else context, name)

    def start_task(
        self, coro: Coroutine[Any, Any, Any], scope: Scope, context: Context, name: object = None
    ) -> WorkflowTask:
        """Make a task in a given scope (what `create_task` does with a child of its caller's)."""
        self.unstarted.pop(id(coro), None)
        shown = scope.path if name is None else str(name)
        task = WorkflowTask(coro, self, scope, self.next_number(), context, shown)
        self.tasks.add(task)
        return task

    def current_scope(self) -> Scope:
        try:
            scope: Scope = _current_task(self).scope
        except AttributeError:  # no task, or one that was made around the loop
            return self.fallback_scope
        return scope

    def _generator_started(self, generator: AsyncGenerator[Any, Any]) -> None:
        # A strong reference: the collector would close an abandoned generator, running user code at its own
        # time.
        self._generators.append(generator)
        if len(self._generators) >= self._prune_generators_at:
            self._generators = [g for g in self._generators if g.ag_frame is not None]  # type: ignore[attr-defined]
            self._prune_generators_at = max(FIRST_PRUNE, 2 * len(self._generators))

    # ---- requests

    def call_id(self, name: str) -> str:
        """The id of a context call made here and now."""
        try:
            scope = _current_task(self).scope
        except AttributeError:
            scope = self.fallback_scope
        scope.calls = index = scope.calls + 1
        return f"{scope.path}/{index}:{name}"

    def request(self, request: Opened) -> RequestFuture:
        """Ask for a step or a timer. The future gets the answer; cancelling it withdraws the request."""
        if self._closed:
            self._refuse_closed()
            return RequestFuture(loop=self)
        future = RequestFuture(loop=self)
        future.request = request
        request.waiter = future
        self.open[request.id] = request
        self.requests.append(request)
        return future

    def ask_note(self, note: Request) -> None:
        """Add a note to this activation's requests."""
        if self._closed:
            self._refuse_closed()
        self.requests.append(note)

    def withdraw(self, request: Opened) -> None:
        """Take a request back: it is no longer open, and a fact that answers it all the same is ignored."""
        request.waiter = None
        if self.open.pop(request.id, None) is None or self._closed:
            return
        self.withdrawn.add(request.id)
        self.requests.append(CancelStep(request.id) if request.__class__ is StepCall else CancelTimer(request.id))

    def fire(self, handle: WorkflowTimer) -> None:
        """Put a due timer's callback into the ready queue."""
        self._ready.append(handle)

    # ---- the end

    def end(self) -> None:
        """End what has not ended: tasks in creation order, then generators, here and now, requests refused.

        Left to the collector, the same `finally` blocks would run at a moment nobody chose, on the worker's
        own loop.
        """
        if self._closed:
            return
        self._closed = True
        self.halt()
        if any(not task.done() for task in self.tasks) or self._generators:
            self.activation(self._close_all, None)
        self.tasks.clear()
        self._generators = []
        self.open.clear()
        self.unstarted.clear()
        self.requests = []
        self._ready.clear()

    def _refuse_closed(self) -> None:
        """Refuse a request of code that is being closed. What catches that for ever is given something to wait for: it
        would never give the thread back.
        """
        self._refusals += 1
        if self._refusals <= CLOSE_TRIES:
            raise WorkflowClosed

    def _close_all(self, _: None) -> None:
        for task in self.tasks:
            if not task.done():
                close_task(self, task)
        for generator in self._generators:
            close_generator(generator)

    # ---- what asyncio asks of any loop

    def is_running(self) -> bool:
        return active_loops.get(get_ident()) is self

    def is_closed(self) -> bool:
        return self._closed


def _generator_dropped(generator: AsyncGenerator[Any, Any]) -> None:
    """Nothing: a generator is collected only after its loop has closed it."""
