"""Database time of a store on this host: milliseconds since 1970 that small steps of its clock do not turn back.

Every store gives one of these to whoever asks `now()`. The floor is the last time seen; while the clock behind it
stands a little before that, time stands still rather than repeat itself, so that what was judged once (a lease, a due
time) stays judged, and a journal's times do not run backwards. The processes on one file share one clock, so little is
all that such a step is: NTP, or two processors that differ.

A clock that was wrong and is right again is another thing. To wait for its old time would hold up every timer for as
long as it was ahead; so that is said, and the clock is followed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

#: How far time is waited for, ms. What is further ahead was told by a clock that was wrong.
CREDIBLE_MS = 5_000

log = logging.getLogger("ironflow.store")

#: The function itself: the guard (`ironflow.engine.guard`) may have put a watched one there, which costs each call.
_time_ns = getattr(time.time_ns, "__wrapped__", time.time_ns)


def host_clock() -> int:
    """The clock of this machine."""
    return int(_time_ns()) // 1_000_000


class Floored:
    """A clock with a floor. Safe to call from any thread."""

    __slots__ = ("_clock", "_doubted", "_floor", "_lock")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._floor = 0
        #: the latest stored time that was too far ahead, and was told of
        self._doubted = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            now = self._clock()
            if now > self._floor:
                self._floor = now
            elif self._floor - now > CREDIBLE_MS:
                log.warning(
                    "the clock of this host was set back from %s to %s; what was timed by it before keeps that time",
                    *map(_shown, (self._floor, now)),
                )
                self._floor = now
            return self._floor

    def ahead(self) -> int:
        """How long time has yet to stand still, ms."""
        return max(0, self() - self._clock())

    def saw(self, stored: int | None) -> None:
        """Learn a time found in the database: another process may have read a clock that was a little ahead."""
        if stored is None:
            return
        now = self._clock()
        with self._lock:
            if stored - now <= CREDIBLE_MS:
                self._floor = max(self._floor, stored)
            elif stored > self._doubted:
                self._doubted = stored
                log.warning(
                    "the database knows of %s, and the clock of this host says %s: it was wrong then, or is wrong now",
                    *map(_shown, (stored, now)),
                )


def _shown(ms: int) -> str:
    """A time as people write it; of one beyond the calendar its milliseconds."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
