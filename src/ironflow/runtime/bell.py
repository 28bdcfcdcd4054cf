"""Telling the workers of other processes that a run was started, from a process that has no worker of its own.

Owns who is told. Promises that a start waits for none of it: whom to tell is read at most once a second, by one task at
a time, and a start that comes while it is known rings at once. It is best effort. What is lost (a worker that came
within that second, a database that is away) is found by the workers' own polling.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from ironflow.model.capacity import SessionRow
from ironflow.store.base import Store
from ironflow.tasks import begin

#: How long the list of workers is taken for true, in seconds. Reading it is a round trip, and a client that starts
#: hundreds of runs a second would otherwise read it for each.
KNOWN_S = 1.0
#: The same while there is no worker: the first one to come should not have to poll for what starts beside it.
NOBODY_S = 0.1


class Bell:
    """See the module's docstring.

    Args:
        store: the database whose workers are told.
        clock: seconds that only grow.
    """

    __slots__ = ("_clock", "_read_at", "_sessions", "_store", "_task")

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._sessions: Sequence[SessionRow] = ()
        self._read_at: float | None = None
        #: Kept: a loop holds its tasks weakly, and one that nobody keeps may vanish before it has rung.
        self._task: asyncio.Task[None] | None = None

    def ring(self) -> None:
        """Say that the queue has grown; call it after the commit, so that who wakes finds the run."""
        known_s = KNOWN_S if self._sessions else NOBODY_S
        if self._read_at is not None and self._clock() - self._read_at < known_s:
            self._tell()
        elif self._task is None:
            # One is enough: a reading that is under way rings after it, and so for every start until then.
            # Not by the loop's create_task: an eager one could end before it is kept here, and would be kept for ever.
            self._task = begin(self._read())

    def _tell(self) -> None:
        # A notification costs a start on PostgreSQL a third of its time, so it is made only where somebody can hear it.
        if self._sessions:
            self._store.notify("queue", self._sessions)

    async def _read(self) -> None:
        try:
            sessions = await self._store.sessions()
            self._sessions, self._read_at = sessions, self._clock()
            self._tell()
        except Exception:
            self._read_at = None  # the start has succeeded; that nobody could be told is made good by polling
        finally:
            self._task = None

    async def close(self) -> None:
        """Let what is under way end, before the store is closed."""
        if self._task is not None:
            await asyncio.wait([self._task])
