"""A loop in a thread: the synchronous form of an engine or a client runs the same one there, so there are no twins.

Promises that Ctrl-C, which comes to the script's thread alone, leaves nothing behind: what it cuts short is cancelled
on the loop, and is waited for until it has undone what it had begun. A second Ctrl-C ends that patience.

Threads and loops do not survive a fork. A child process that has inherited what its parent opened is told so where it
uses it, and leaves its `with` without touching anything: what is open is the parent's to close.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

#: How long what was cut short may take to undo what it had begun, seconds.
UNWINDING_S: Final = 10.0
#: How long what nobody waits for any more is waited for when a loop is stopped, seconds.
LEFT_OVER_S: Final = 1.0


class LoopThread:
    """Runs coroutines of a script, one call at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ironflow-loop", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._end()
            raise

    def run(self, aw: Awaitable[T]) -> T:
        """The result of a coroutine.

        Raises:
            RuntimeError: the `with` block has ended.
        """

        async def await_it() -> T:
            return await aw

        if self._loop.is_closed():
            _discard(aw)
            raise RuntimeError("the `with` block that this was opened in has ended; open it again")
        awaiting = await_it()
        try:
            return asyncio.run_coroutine_threadsafe(awaiting, self._loop).result()
        except BaseException:  # Ctrl-C comes to the script's thread only, and nobody waits for the result any more
            asyncio.run_coroutine_threadsafe(_cut_short(awaiting), self._loop).result()
            _discard(aw)
            raise

    def check_here(self) -> None:
        """Refuse to be used by another loop than the one in this thread.

        Raises:
            RuntimeError: the caller runs on another one.
        """
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:  # not in asynchronous code at all
            return
        if here is not self._loop:
            raise RuntimeError(
                "this was opened with `with`, which is for scripts, and is awaited in asynchronous code: open it with "
                "`async with`, or call `wait(...)` from code that is not asynchronous"
            )

    def stop(self) -> None:
        """End what is left on the loop, and the loop."""
        try:
            asyncio.run_coroutine_threadsafe(_nothing_left(), self._loop).result()
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread.is_alive():
            self._thread.join()
        self._loop.close()


async def _cut_short(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Cancel the task of a coroutine, if it is still executed, and wait for its end."""
    for task in [task for task in asyncio.all_tasks() if task.get_coro() is coroutine]:
        task.cancel()
        await asyncio.wait({task}, timeout=UNWINDING_S)
    _discard(coroutine)


async def _nothing_left() -> None:
    """End whatever is left on this loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=LEFT_OVER_S)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _discard(aw: Awaitable[Any]) -> None:
    """What has not begun will not: nobody needs to be told that it was never awaited."""
    if inspect.iscoroutine(aw) and inspect.getcoroutinestate(aw) == inspect.CORO_CREATED:
        aw.close()


class Synchronous(ABC):
    """What makes an asynchronous context manager usable with `with` in a script, its coroutines with `wait`."""

    _thread: LoopThread | None = None
    #: the process that has opened it
    _process: int | None = None

    def _check_here(self) -> None:
        """Refuse to be used where it does not work: in a forked child, and on another loop than it was opened on.

        Raises:
            RuntimeError: see above; the message says what to do.
        """
        self._check_process()
        if self._thread is not None:
            self._thread.check_here()

    def _check_process(self) -> None:
        if self._is_inherited():
            raise RuntimeError(
                f"this was opened by process {self._process}, of which this one (process {os.getpid()}) is a fork: its "
                "threads and connections do not work here; open one of its own in this process"
            )

    def _is_inherited(self) -> bool:
        return self._process is not None and self._process != os.getpid()

    @abstractmethod
    async def __aenter__(self) -> Any:
        """Open."""

    @abstractmethod
    async def close(self) -> None:
        """Give everything back; does nothing where nothing is open."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_inherited():
            await self.close()

    def __enter__(self) -> Self:
        self._process = os.getpid()
        thread = self._thread = LoopThread()
        try:
            thread.run(self.__aenter__())
            return self
        except BaseException:
            self._leave(thread)  # Ctrl-C may have come when it was open already
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        if not self._is_inherited():
            self._leave(self._thread)

    def _leave(self, thread: LoopThread) -> None:
        try:
            thread.run(self.close())
        finally:
            thread.stop()

    def wait(self, aw: Awaitable[T]) -> T:
        """Run a coroutine of this object from a script: `engine.wait(engine.run(order, o))`."""
        try:
            self._check_process()
            if self._thread is None:
                raise RuntimeError(
                    "this is not open yet: wait(...) works inside its `with` block"
                    if self._process is None
                    else "wait(...) is for `with`; inside `async with`, await the coroutine instead"
                )
        except RuntimeError:
            _discard(aw)
            raise
        return self._thread.run(aw)
