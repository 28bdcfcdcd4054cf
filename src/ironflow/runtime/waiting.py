"""Waiting for the ends of runs: by being told where a run ends in this process, else by looking.

Promises that an end is not missed, that waiting costs little however many wait, and that whoever waits when the engine
is closed is told so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from ironflow.errors import EngineClosed, RunNotFound
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.store.base import Store
from ironflow.worker.results import Results

#: How long a wait for a run of another process pauses between two looks, seconds: from, to.
LOOK: Final = (0.01, 0.5)
#: All waits of a process together look no more often than once in so many seconds: thousands that wait for runs which
#: sleep for a week must not keep the loop busy. An end in this process is told at once, however many there are.
LOOK_EACH_S: Final = 0.0005

#: The state a run ended in, and the payload of its terminal event as JSON text.
End = tuple[str, str | None]


class Waiting:
    """See the module's docstring.

    Args:
        results: who is told of ends in this process.
        executes_here: whether a run's end will be told.
    """

    def __init__(self, results: Results, executes_here: Callable[[str], bool]) -> None:
        self._results = results
        self._executes_here = executes_here
        #: how many wait
        self._count = 0
        self._closed = False

    def open(self) -> None:
        """Waiting makes sense from now on."""
        self._closed = False

    def close(self) -> None:
        """Nobody waits any more: the engine is closed."""
        self._closed = True
        self._results.close(_closed)

    async def end(self, store: Store, run_id: str) -> End:
        """Wait until a run has ended or is paused.

        Raises:
            RunNotFound: no such run.
            EngineClosed: the engine was closed meanwhile.
        """
        self._count += 1
        try:
            return await self._end(store, run_id)
        except Exception as error:
            if not self._closed or isinstance(error, EngineClosed | RunNotFound):
                raise
            raise _closed(run_id) from error  # it was just looking
        finally:
            self._count -= 1

    async def _end(self, store: Store, run_id: str) -> End:
        pause, longest = LOOK
        while True:
            most = max(longest, self._count * LOOK_EACH_S)
            waiter = self._results.waiter(run_id)  # before the look: an end in between must not be missed
            try:
                local = self._executes_here(run_id)
                if not local:
                    found = await _outcome(store, run_id)
                    if found is not None:
                        return found
                # By chance, so that those which began together do not all look in one moment for ever.
                async with asyncio.timeout(most if local else pause * random.uniform(0.5, 1.0)):
                    return await waiter
            except TimeoutError:
                if waiter.done() and not waiter.cancelled():
                    return waiter.result()
                pause = min(pause * 2, most)
            finally:
                self._results.forget(run_id, waiter)


async def _outcome(store: Store, run_id: str) -> End | None:
    row = await store.run(run_id)
    if row is None:
        raise RunNotFound(f"no run has the id {run_id!r}")
    if row.state == runs.PAUSED:
        return row.state, None
    if not row.ended:
        return None
    last = await store.last_event(run_id)
    # Anything else than a record of its end: it was opened again since, and ends anew; or it is gone.
    return (row.state, last.payload) if last is not None and last.kind in j.TERMINAL_KINDS else None


def _closed(run_id: str) -> EngineClosed:
    return EngineClosed(f"the engine was closed while run {run_id} was waited for")
