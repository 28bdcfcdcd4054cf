"""Database time as a worker without a database knows it: what a server said last, plus the time since.

Never backwards. An answer is late by its way, so the time is behind the database's by some milliseconds and never
ahead: a timer fires late rather than early.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

#: So much later than the quickest answer another one may be without anything being wrong, ms.
JITTER_MS: Final = 50


class Clock:
    """See the module's docstring. For any thread."""

    __slots__ = ("_ahead", "_last", "_lock")

    def __init__(self) -> None:
        #: the database's clock less this process's monotonic one, ms; None before the first answer
        self._ahead: int | None = None
        self._last = 0
        self._lock = threading.Lock()

    def saw(self, at: Any) -> None:
        """A server said what time it is. Of two words the one that took the shorter way counts; it drifts slowly."""
        if not isinstance(at, int):
            return
        ahead = at - time.monotonic_ns() // 1_000_000
        with self._lock:
            # A clock that was set, or drifts apart, is followed; the jitter of the network is not.
            if self._ahead is None or ahead > self._ahead or self._ahead - ahead > JITTER_MS:
                self._ahead = ahead

    def now(self) -> int:
        """Milliseconds since 1970."""
        now = time.monotonic_ns() // 1_000_000 + (self._ahead or 0)
        if now < self._last:
            return self._last
        self._last = now
        return now
