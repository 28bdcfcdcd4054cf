"""Everything by which one engine in this process is watched: made when it opens, closed when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ironflow.observe.backlog import Backlog, Count
from ironflow.observe.counting import Counting
from ironflow.observe.exporting import Exporting, exporting
from ironflow.observe.metrics import Metrics
from ironflow.observe.seam import Observer, Several

if TYPE_CHECKING:
    from ironflow.observe.listener import Listener


class Observation:
    """See the module's docstring. `observer` is None where nobody watches: then nothing is to be told.

    Args:
        now: database time, ms.
        metrics: whether to count. Traces follow from the environment.

    Raises:
        InvalidSettings: the metrics of this process exist already, or their library is missing.
    """

    def __init__(self, now: Callable[[], int], *, metrics: bool = False) -> None:
        self.metrics: Metrics | None = Metrics() if metrics else None
        self.backlog: Backlog | None = None
        self._listener: Listener | None = None
        self._exporting: Exporting | None = exporting()
        observers: list[Observer] = []
        if self.metrics is not None:
            observers.append(Counting(self.metrics, now))
        if self._exporting is not None:
            observers.append(self._exporting.tracing)
        self.observer: Observer | None = Several(observers) if observers else None

    def look_at_queue(self, count: Count) -> None:
        """Fill the gauges of the queue by this look, whenever somebody reads the metrics."""
        if self.metrics is not None:
            self.backlog = Backlog(self.metrics, count)

    def listen(self, address: str) -> int:
        """Serve the metrics on an address of their own; returns the port.

        Raises:
            InvalidSettings: it is no address, or cannot be listened on.
        """
        from ironflow.observe.listener import Listener, address_of  # here: an HTTP server is slow to import

        assert self.metrics is not None
        self._listener = Listener(address_of(address), self.metrics, self.backlog)
        return self._listener.port

    async def close(self) -> None:
        """Stop listening, hand over the last spans, make room for the next. Waits a second or so at most."""
        if self._listener is not None:
            await asyncio.to_thread(self._listener.close)
        if self.backlog is not None:
            self.backlog.close()
        if self._exporting is not None:
            await asyncio.to_thread(self._exporting.close)
        if self.metrics is not None:
            self.metrics.close()
