"""Synchronous workflow handlers: `def` instead of `async def`, with `ctx.wait(...)` in place of `await`.

The handler runs in a thread of its own, but never beside the workflow loop: the two hand control to and fro.
While the handler computes, the activation waits for it; while it waits for a call, the thread stands still.
So a synchronous handler is as deterministic as an asynchronous one, at the price of one thread for as long as
its instance lives.
"""

from __future__ import annotations

import threading
from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from ironflow.engine import forks
from ironflow.engine.closing import CLOSE_TRIES, CLOSING, WorkflowClosed
from ironflow.engine.workflow_loop import WorkflowLoop, active_loops
from ironflow.errors import ForbiddenInWorkflow

if TYPE_CHECKING:
    from ironflow.engine.instance import Instance

_bridges = threading.local()


class HandlerThread:
    """The hand-over between one handler's thread and its instance's main task.

    Two binary locks pass the turn. Neither side touches the shared fields unless it is its turn.
    """

    def __init__(self, loop: WorkflowLoop, body: Callable[[], Any]) -> None:
        self._loop = loop
        self._body = body
        self._handler_turn = threading.Semaphore(0)
        self._loop_turn = threading.Semaphore(0)
        self._awaited: Awaitable[Any] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._closing = False
        self._ended = False
        self._refusals = 0
        self._thread = threading.Thread(target=self._run, name=f"ironflow {loop.run_id}", daemon=True)

    async def main(self) -> Any:
        """The main task's coroutine: start the thread, await what it wants awaited, until it ends."""
        self._loop.fallback_scope = self._loop.root_scope
        self._thread.start()
        try:
            while True:
                self._loop_turn.acquire()
                awaited, self._awaited = self._awaited, None
                if awaited is None:
                    break
                try:
                    self._value = await awaited
                except CLOSING:
                    raise
                except BaseException as error:
                    self._error = error
                self._handler_turn.release()
        finally:
            self._close()
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, awaited: Awaitable[Any]) -> Any:
        """Called in the handler's thread: have `awaited` awaited by the main task, and return what comes of
        it.
        """
        if self._closing:
            self._refuse()
        if threading.get_ident() not in active_loops:  # the loop's thread is not in this process: it would never answer
            forks.end(f"the code of run {self._loop.run_id}")
        self._awaited = awaited
        self._loop_turn.release()
        self._handler_turn.acquire()
        if self._closing:
            self._refuse()
        error, self._error = self._error, None
        value, self._value = self._value, None
        if error is not None:
            raise error
        return value

    def _refuse(self) -> None:
        self._refusals += 1
        if self._refusals > CLOSE_TRIES:
            # It catches its own closing for ever. Its thread stands still from here on; nothing else can be
            # done to it.
            self._loop_turn.release()
            threading.Event().wait()
        raise WorkflowClosed

    def _run(self) -> None:
        _bridges.current = self
        events._set_running_loop(self._loop)
        active_loops[threading.get_ident()] = self._loop
        try:
            self._value = Context().run(self._body)
        except BaseException as error:
            self._error = error
        finally:
            events._set_running_loop(None)
            if active_loops.pop(threading.get_ident(), None) is None:
                forks.end(f"the code of run {self._loop.run_id}")
            self._awaited = None
            self._ended = True
            self._loop_turn.release()

    def _close(self) -> None:
        """Make the thread end, unless it has: its wait raises, and whatever it asks on its way out is
        refused.
        """
        if self._closing or self._ended:
            return
        self._closing = True
        self._handler_turn.release()
        self._loop_turn.acquire()


def run_in_thread(instance: Instance, body: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
    """The coroutine that runs `body` as the synchronous handler of `instance`."""
    return HandlerThread(instance.loop, body).main()


def in_handler_thread() -> bool:
    """Whether this is the thread of a synchronous handler."""
    return getattr(_bridges, "current", None) is not None


def wait(awaited: Awaitable[Any]) -> Any:
    """`ctx.wait`: only in the thread of a synchronous handler."""
    bridge: HandlerThread | None = getattr(_bridges, "current", None)
    if bridge is None:
        raise ForbiddenInWorkflow(
            "ctx.wait() was called in an async workflow",
            hint="Write `await` instead; ctx.wait() is for workflows defined with `def`.",
        )
    return bridge.wait(awaited)
