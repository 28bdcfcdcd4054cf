"""Turns in a node's loop, in which all organisations' requests are served by one thread.

What a request is checked for may take long, and is written by whoever asks: a schema, and an input that is held against
it. So it is done in pieces, and between two of them others have their turn. Promises that what one organisation has
checked, in however many requests at once, takes half of the loop's time at most in the long run, and that its requests
go on in the order in which they came to wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

#: How long an organisation may work ahead of its share, seconds: about the longest that others wait for their turn.
PIECE_S: Final = 0.01
#: How long an organisation rests for each second of work, seconds: the loop is the others' meanwhile.
REST: Final = 1
#: Organisations that are remembered at most; beyond that all are forgotten, and begin anew.
_MOST: Final = 1_000


class Turn:
    """An organisation's turns. `async with turn:` waits for one, and holds a piece of work that awaits nothing."""

    __slots__ = ("_began", "_clock", "_ended", "_owed", "_queue", "_worked")

    def __init__(self, clock: Callable[[], float], worked: Callable[[], float]) -> None:
        self._clock = clock
        self._worked = worked
        #: rest that was owed when its last piece of work ended, and when that was
        self._owed, self._ended = 0.0, clock()
        self._began = 0.0
        self._queue = asyncio.Lock()

    async def come(self) -> None:
        """Return when this organisation may work: at once, where it has not had more than its share."""
        if self._left() <= PIECE_S * REST:
            return
        async with self._queue:
            # Once for each who waits: those who came later, and did not have to, do not keep it here.
            await asyncio.sleep(self._left())

    async def __aenter__(self) -> None:
        await self.come()
        self._owed = self._left()
        self._began = self._worked()

    async def __aexit__(self, *_: object) -> None:
        self._owed += REST * (self._worked() - self._began)
        self._ended = self._clock()

    def _left(self) -> float:
        """Of the rest that is owed: what has passed since it last worked, it has rested."""
        return max(0.0, self._owed - (self._clock() - self._ended))


class Turns:
    """The turns of all organisations at a node.

    Args:
        clock: seconds that only grow.
        worked: seconds that this thread has had a processor: that somebody else had it is nobody's work here.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, worked: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._worked = worked
        self._turns: dict[str, Turn] = {}

    def of(self, org: str) -> Turn:
        """The turns of one organisation, all of its environments together."""
        found = self._turns.get(org)
        if found is None:
            if len(self._turns) >= _MOST:
                self._turns.clear()
            found = self._turns[org] = Turn(self._clock, self._worked)
        return found
