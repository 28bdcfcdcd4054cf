"""Who waits in this process for the end of a run, and what they are told.

A waiter is answered from what was committed (the terminal record), never from the end of a coroutine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Results:
    """Waiters by run id. The answer is (state, payload of the terminal event or None)."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[tuple[str, str | None]]]] = {}

    def waiter(self, run_id: str) -> asyncio.Future[tuple[str, str | None]]:
        """A future of this run's end or pause, as far as this process sees it."""
        future: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append(future)
        return future

    def forget(self, run_id: str, future: asyncio.Future[tuple[str, str | None]]) -> None:
        """The waiter no longer cares; waiting never harms the run."""
        waiting = self._waiting.get(run_id, [])
        if future in waiting:
            waiting.remove(future)
        if future.done() and not future.cancelled():
            future.exception()  # looked at: one that was told of the close while it did something else is no news
        if not waiting:
            self._waiting.pop(run_id, None)

    def ended(self, run_id: str, state: str, payload: str | None) -> None:
        """Tell everyone who waits for this run."""
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_result((state, payload))

    def close(self, error: Callable[[str], Exception]) -> None:
        """Nobody will be told any more: everyone who waits gets an error, made for the run's id."""
        waiting, self._waiting = self._waiting, {}
        for run_id, futures in waiting.items():
            for future in futures:
                if not future.done():
                    future.set_exception(error(run_id))
