"""A loop in a thread: the synchronous form of an engine or a client runs the same one there, so there are no twins."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of a script, one call at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ironflow-loop", daemon=True)
        self._thread.start()

    def run(self, aw: Awaitable[T]) -> T:
        async def await_it() -> T:
            return await aw

        future = asyncio.run_coroutine_threadsafe(await_it(), self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C comes to the script's thread only, and nobody waits for the result any more
            future.cancel()
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
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Synchronous(ABC):
    """What makes an asynchronous context manager usable with `with` in a script, its coroutines with `wait`."""

    _thread: LoopThread | None = None

    def _check_loop(self) -> None:
        """Refuse to be awaited on another loop than the one it was opened on; see `LoopThread.check_here`."""
        if self._thread is not None:
            self._thread.check_here()

    @abstractmethod
    async def __aenter__(self) -> Any:
        """Open."""

    @abstractmethod
    async def close(self) -> None:
        """Give everything back."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
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
        """Run a coroutine of this object from a script: `engine.wait(engine.run(order, o))`."""
        if self._thread is None:
            raise RuntimeError("wait(...) is for `with`; inside `async with`, await the coroutine instead")
        return self._thread.run(aw)
