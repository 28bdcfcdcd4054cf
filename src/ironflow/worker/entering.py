"""Timers on their way in: what is due enters while the next look for what is due is already made.

To find a timer and to take its run are two trips to the database. One after the other, a timer that becomes due in the
middle waits for both, and then for its own two. What is known here is which looks must not be made meanwhile: while a
run is on its way in, its wait is still there and still due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ironflow.model.capacity import RunHead
from ironflow.tasks import begin


class Entering:
    """See the module's docstring.

    Args:
        take: takes these runs and gives how many of them entered.
    """

    def __init__(self, take: Callable[[list[RunHead]], Awaitable[int]]) -> None:
        self._take = take
        self._tasks: set[asyncio.Task[None]] = set()
        self._short = False

    def __bool__(self) -> bool:
        """Whether any run is on its way in."""
        return bool(self._tasks)

    @property
    def short(self) -> bool:
        """Whether one stayed out since it was last asked by `all_in`: somebody else's, or in the way of a limit."""
        return self._short

    def start(self, heads: list[RunHead]) -> None:
        """Let these enter, and do not wait for it."""
        self._tasks.add(begin(self._enter(heads), name="ironflow-entering"))

    async def some(self, within: float) -> None:
        """Wait until the first of them has entered, but no longer than so many seconds.

        Raises:
            whatever kept it out.
        """
        ended, _ = await asyncio.wait(self._tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        self._hear(ended)

    async def all_in(self) -> bool:
        """Wait for all of them. Returns whether each entered.

        Raises:
            whatever kept one out, if that was no answer.
        """
        if self._tasks:
            ended, _ = await asyncio.wait(self._tasks)  # kept meanwhile, for `stop` to find them
            self._hear(ended)
        short, self._short = self._short, False
        return not short

    async def stop(self, patience: float) -> None:
        """Let them enter for so many seconds, and give up what is still on its way then."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _enter(self, heads: list[RunHead]) -> None:
        if await self._take(heads) < len(heads):
            self._short = True

    def _hear(self, ended: set[asyncio.Task[None]]) -> None:
        """Raise the error of one; those of the others are looked at, so that nobody reports them as lost."""
        self._tasks -= ended
        broken_off = {task for task in ended if task.cancelled()}  # by whomever: whether they entered is not known
        self._short = self._short or bool(broken_off)
        errors = [error for task in ended - broken_off if (error := task.exception()) is not None]
        if errors:
            raise errors[0]
