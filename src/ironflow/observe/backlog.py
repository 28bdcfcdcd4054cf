"""The two gauges of the queue: read from the database when somebody asks for the metrics, and not before.

A database that is away, or slow, costs a scrape half a second and the gauges their freshness, never the scrape: the
other figures are wanted most just then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping

from ironflow.observe.metrics import Metrics
from ironflow.tasks import begin

log = logging.getLogger("ironflow.observe")

#: How long a scrape waits for the database, seconds.
PATIENCE_S = 0.5
#: Several scrapers share one look, seconds.
FRESH_S = 1.0

#: How many queued runs wait for a place in which group; "" holds those that wait for a worker only.
Count = Callable[[], Awaitable[Mapping[str, int]]]


def of_routes(
    read: Callable[[], Awaitable[Iterable[tuple[str, str, int]]]], can_take: Callable[[str], bool] | None = None
) -> Count:
    """What `Store.backlog` reads, counted for whoever takes these routes; None: for all of them."""

    async def count() -> Mapping[str, int]:
        found: dict[str, int] = defaultdict(int)
        for route, group, segments in await read():
            if can_take is None or can_take(route):
                found[group] += segments
        return found

    return count


class Backlog:
    """See the module's docstring. Belongs to one event loop.

    Args:
        metrics: where the gauges are.
        count: what reads them.
    """

    def __init__(self, metrics: Metrics, count: Count) -> None:
        self._metrics = metrics
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._looked = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Look, unless somebody just did. Returns after half a second at the latest; a look that is late goes on."""
        if self._task is None:
            if self._loop.time() - self._looked < FRESH_S:
                return
            self._task = begin(self._look())
        await asyncio.wait({self._task}, timeout=PATIENCE_S)

    def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        try:
            found = await self._count()
        except Exception as error:
            log.debug("the queue could not be counted: %s", error)
            return
        finally:
            self._looked, self._task = self._loop.time(), None
        self._metrics.of("ironflow_worker_queue_depth").set(sum(found.values()))
        self._metrics.blocked({group: count for group, count in found.items() if group})
