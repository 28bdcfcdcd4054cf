"""The alarm: kicks the waker when something becomes due, instead of every so often.

It knows the earliest due time that the database has, and hears of earlier ones from whoever writes them in this
process. What other processes put to sleep it finds by asking again, at the latest after `ASK_AGAIN_MS`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ironflow.errors import OUTAGES
from ironflow.loops.driver import Driver, Outage
from ironflow.loops.next_due import NextDue
from ironflow.store.base import Store
from ironflow.tasks import begin

log = logging.getLogger("ironflow.loops")

#: The longest time between two questions for the earliest due time, ms.
ASK_AGAIN_MS: Final = 2_000
#: What is due and stays so (its workflow is paused, or another node has claimed it): asked for again after so long, at
#: first and at most, ms. The first is short because the database's clock may be that much behind our view of it.
STILL_DUE_MS: Final = (2, 200)


class Alarm:
    """See the module's docstring.

    Args:
        store: whose due times they are.
        waker: what is kicked.
        most_ms: the longest time between two kicks.
    """

    def __init__(self, store: Store, waker: Driver, most_ms: int) -> None:
        self._store = store
        self._waker = waker
        self._most_ms = min(most_ms, ASK_AGAIN_MS)
        self._next = NextDue()
        self._sooner = asyncio.Event()
        self._outage = Outage(log, "the look for what is due next")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in a task of the running loop."""
        self._task = begin(self._run(), name="ironflow-alarm")

    async def stop(self) -> None:
        """End it; what becomes due later is found by another node, or at the next start."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def expect(self, due: int) -> None:
        """Something will be due at this time, ms."""
        if self._next.told(due):
            self._sooner.set()

    async def _run(self) -> None:
        still, most = STILL_DUE_MS
        while True:
            self._sooner.clear()
            await self._ask()
            if self._due_now:
                self._waker.kick()
                await self._pause(still)
                still = min(2 * still, most)
                continue
            still = STILL_DUE_MS[0]
            await self._until_due()

    async def _ask(self) -> None:
        due: int | None = None
        self._next.asks()
        try:
            due = await self._store.next_due()
            self._outage.over()
        except OUTAGES as error:
            self._outage.met(error)
        except Exception:
            log.exception("the next due time could not be read")
        self._next.answered(due)

    @property
    def _due_now(self) -> bool:
        return self._next.at is not None and self._next.at <= self._store.now()

    async def _until_due(self) -> None:
        """Sleep to the due time, which may be moved forward meanwhile; kick there. Or ask again after a while."""
        ask_again = self._store.now() + self._most_ms
        while True:
            now = self._store.now()
            until = ask_again if self._next.at is None else min(self._next.at, ask_again)
            if now >= until:
                break
            await self._pause(until - now)
        if self._due_now:
            self._waker.kick()
            await self._pause(STILL_DUE_MS[0])

    async def _pause(self, ms: int) -> None:
        self._sooner.clear()
        try:
            async with asyncio.timeout(ms / 1000):
                await self._sooner.wait()
        except TimeoutError:
            return
