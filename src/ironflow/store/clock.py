"""Database time of a store: milliseconds since 1970 that never run backwards.

Every store gives one of these to whoever asks `now()`. The floor is the last time seen; while the clock
behind it stands before that (somebody set it back), time stands still rather than repeat itself: a lease or
a due time that was judged once stays judged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: A stored time further ahead than this was written by a clock that was wrong. Waiting for it would stop
#: every timer.
_CREDIBLE_MS = 60 * 60 * 1000


#: The function itself: the guard (`ironflow.engine.guard`) may have put a watched one there, which costs each call.
_time_ns = getattr(time.time_ns, "__wrapped__", time.time_ns)


def host_clock() -> int:
    """The clock of this machine."""
    return int(_time_ns()) // 1_000_000


class Floored:
    """A clock with a floor. Safe to call from any thread."""

    __slots__ = ("_clock", "_floor", "_lock")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._floor = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            now = self._clock()
            if now > self._floor:
                self._floor = now
            return self._floor

    def saw(self, stored: int | None) -> None:
        """Learn a time found in the database: another process may have had a clock that was ahead."""
        if stored is not None and stored <= self._clock() + _CREDIBLE_MS:
            with self._lock:
                self._floor = max(self._floor, stored)
