"""Tasks of the engine's own: how they begin, how they stay, and how a caller's impatience does not end them.

They begin in the next pass of the loop whatever task factory the program has set. With an eager factory (Python 3.12) a
task runs before whoever made it can keep it: a loop that asks whether it is still wanted would find that it is not, and
a body could end before its segment knows of it.

The loop is shared with a program that may cancel what it did not make: `for task in asyncio.all_tasks(): task.cancel()`
is how many of them shut down. What is to stand until its owner stops it is a `Standing`; what has been begun and is to
be seen through is one of `Errands`, or goes `through`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

#: How soon what somebody else cancelled goes on, seconds. Not at once: whoever ends a loop cancels everything on it
#: first, and a task that is new then is destroyed with the loop.
GOES_ON_S: Final = 0.2
#: The end of what is said of it.
NOT_OURS: Final = "by other code of this process (does it cancel all tasks of the loop?)"


def begin(coroutine: Coroutine[Any, Any, Result], name: str | None = None) -> asyncio.Task[Result]:
    """Run a coroutine in a task of the running loop. The caller keeps it: a loop holds its tasks weakly."""
    return asyncio.Task(coroutine, loop=asyncio.get_running_loop(), name=name)


class Standing:
    """A task that stands until its owner stops it: when anybody else cancels it, that is said, and it begins again.

    Args:
        run: makes the coroutine; that it returns is its own end.
        name: of the task, for people.
        log: where to say it.
    """

    __slots__ = ("_log", "_name", "_run", "_task", "_timer", "wanted")

    def __init__(self, run: Callable[[], Coroutine[Any, Any, None]], name: str, log: logging.Logger) -> None:
        self._run = run
        self._name = name
        self._log = log
        #: it was started, and not stopped
        self.wanted = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, in a task of the running loop."""
        self.wanted = True
        self._task = begin(self._run(), self._name)
        self._task.add_done_callback(self._ended)

    def dismiss(self) -> None:
        """It is not wanted any more, and may find that out by itself."""
        self.wanted = False
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self, patience: float = 0) -> None:
        """End it; it may end by itself within so many seconds, unless this is cancelled. A second call does nothing."""
        self.dismiss()
        task, self._task = self._task, None
        if task is None:
            return
        try:
            if patience > 0:
                await asyncio.wait({task}, timeout=patience)
        finally:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self.wanted and task is self._task and task.cancelled():
            self._log.error("%s was cancelled %s; it begins again", self._name, NOT_OURS)
            self._timer = task.get_loop().call_later(GOES_ON_S, self.start)


async def or_again(run: Callable[[], Coroutine[Any, Any, None]], again: Callable[[], None]) -> None:
    """Run something; if it is cancelled, by its owner or by somebody whose affair it is not, `again` decides later."""
    try:
        await run()
    except asyncio.CancelledError:
        asyncio.get_running_loop().call_later(GOES_ON_S, again)
        raise


class Errands:
    """What callers have begun and is seen through, whether or not they go on waiting for it."""

    __slots__ = ("_under_way",)

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    async def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine. A caller that is cancelled stops waiting, and it goes on."""
        task = begin(coroutine)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def close(self, patience: float) -> None:
        """Let what is under way end, within so many seconds."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=patience)


async def through(coroutine: Coroutine[Any, Any, Result], patience: float) -> Result:
    """The result of a coroutine that is not to be cut short: a caller that is cancelled waits for its end first.

    Only for so many seconds, or until the caller is cancelled again: then it is cancelled as well, and waited for.
    """
    task = begin(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=patience)
        finally:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
