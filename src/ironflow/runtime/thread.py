"""A loop in a thread: the synchronous form of the engine runs the same engine there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import TypeVar

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

        return asyncio.run_coroutine_threadsafe(await_it(), self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
