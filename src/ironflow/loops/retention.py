"""Retention: deletes what ended longer ago than `run_retention` says, with its journal. Off, there is no such loop.

Whole trees only, each in one transaction that asks again on the locked runs: a run that was opened again meanwhile
stays. Every node sweeps; a tree that one of them has in hand is no tree for the others. A tree that cannot be deleted
is told of and passed over.

**How the old ones are found.** By a walk along the index of the lists (scope, time of creation), the oldest first: what
was created after a time has not ended before it, so the walk ends there, and what has been deleted is in nobody's way.
What it passes over are runs that were created so long ago and have not ended so long ago; few and cheap, and a pass
looks at `PAGE` of them in vain at most and goes on from there at the next. An index on `ended_at` would find the old
ones without that. But every ended run would have a place in it, also of those who keep everything, and making it would
keep every writer of a large table waiting. A run that is deleted some minutes late harms nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import monotonic
from typing import Final

from ironflow.duration import format_ms
from ironflow.errors import OUTAGES
from ironflow.loops.driver import Report
from ironflow.model.scope import Scope
from ironflow.store.base import Store

log = logging.getLogger("ironflow.retention")

#: How often to look. Retention is meant in hours and days, so that a minute more is nothing; and a look costs a few
#: statements at least, on each node.
INTERVAL_MS: Final = 60_000
#: Runs that one pass looks at without a find: a look must stay short for whoever shares the database.
PAGE: Final = 10_000
#: Trees that one pass finds, and that one transaction deletes at most.
BATCH: Final = 50
#: Events that one transaction deletes at most, unless a single tree has more: on SQLite every other writer waits.
EVENTS: Final = 1_000

#: Before every run.
_START: Final = (0, "")


class Retention:
    """See the module's docstring.

    Args:
        store: the database that all nodes share.
        keep_ms: how long ended runs are kept.
        rest: waits for so many seconds after each deletion, as long as it took, so that a sweep through years of runs
            leaves half of the time to those that are alive.
    """

    name = "retention"

    def __init__(self, store: Store, keep_ms: int, rest: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.store = store
        self.keep_ms = keep_ms
        self._rest = rest
        #: where the walk stands; None: the next pass begins anew
        self._scope: Scope | None = None
        self._after = _START
        #: runs that this walk deleted
        self._deleted = 0

    async def run_once(self) -> Report:
        """Delete one batch of the oldest trees. `more` asks for the next where this one deleted something."""
        report = Report()
        ended_before = self.store.now() - self.keep_ms
        scope, roots = await self._find(ended_before)
        if scope is not None:
            for some in _batches(roots):
                await self._delete(some, ended_before, scope, report)
        self._deleted += report.counts.get("runs", 0)
        # A page without a find, or of trees that others have in hand, is no reason to look again at once.
        report.more = self._scope is not None and "trees" in report.counts
        if self._deleted and not report.more:
            log.info("runs deleted because they ended more than %s ago: %d", format_ms(self.keep_ms), self._deleted)
            self._deleted = 0
        return report

    async def _find(self, ended_before: int) -> tuple[Scope | None, list[tuple[str, int]]]:
        """Walk on to the next page with old trees or without any: its scope, and its roots with their events."""
        for scope in sorted(await self.store.scopes()):
            if self._scope is not None and scope < self._scope:
                continue
            after = self._after if scope == self._scope else _START
            page = await self.store.expired_trees(scope, ended_before, after, PAGE, BATCH)
            # The end of a scope is a place, too: the next look finds nothing behind it, and goes on to the next scope.
            self._scope, self._after = scope, page.after or (ended_before + 1, "")
            if page.roots or page.after is not None:
                return scope, page.roots
        self._scope, self._after = None, _START
        return None, []

    async def _delete(self, roots: Sequence[str], ended_before: int, scope: Scope, report: Report) -> None:
        """Delete these trees; where that fails, each by itself, so that one bad tree stops no other."""
        began = monotonic()
        try:
            gone = await self.store.delete_expired(roots, ended_before, scope)
        except OUTAGES:
            raise
        except Exception:
            if len(roots) == 1:
                log.exception("run %s, which is old enough, cannot be deleted; the others are", roots[0])
                report.add("failed", 1)
                return
            for root in roots:
                await self._delete([root], ended_before, scope, report)
            return
        report.add("trees", gone.trees)
        report.add("runs", gone.runs)
        if gone.trees:
            await self._rest(monotonic() - began)


def _batches(roots: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    """Roots in their order, as many at a time as one transaction deletes."""
    batch: list[str] = []
    size = 0
    for root, events in roots:
        if batch and size + events > EVENTS:
            yield batch
            batch, size = [], 0
        batch.append(root)
        size += events
    if batch:
        yield batch
