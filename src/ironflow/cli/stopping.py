"""Signals, counted: the first SIGINT or SIGTERM asks a process to leave in order, the second to leave now."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from ironflow.worker.embedded import Worker

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Counts the signals while it is entered. Enter it in a running loop, in the main thread."""

    def __init__(self) -> None:
        self.count = 0
        self._came = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Signals:
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self.add)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)

    def add(self) -> None:
        """Count one; a supervisor that is gone counts like a signal."""
        self.count += 1
        task = self._loop.create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, count: int) -> None:
        """Return once so many have come."""
        async with self._came:
            await self._came.wait_for(lambda: self.count >= count)

    async def _tell(self) -> None:
        async with self._came:
            self._came.notify_all()


async def drain(worker: Worker, signals: Signals) -> bool:
    """Stop a worker in order; the next signal ends the patience.

    Returns:
        True if everything that executed ended or was given back in time, False if a signal cut it short. Even
        then the runs are released, so that another worker need not first find out that this one is gone.
    """
    stopping = asyncio.ensure_future(worker.stop())
    enough = asyncio.ensure_future(signals.wait(signals.count + 1))
    await asyncio.wait({stopping, enough}, return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        enough.cancel()
        await stopping
        return True
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    await worker.stop(drain_ms=0)
    return False


def leave(code: int) -> None:
    """End the process at once if a step still runs in a thread: Python would wait for it, for as long as it takes.

    Its result is dropped anyway, and the step executes again where the run goes on.
    """
    if any(thread.name.startswith("ironflow-step") for thread in threading.enumerate()):
        _end(code)


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
