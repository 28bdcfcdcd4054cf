"""The waker: claims due waits and hands their runs to the queue.

Only for runs with neither lease nor queue row: a running run's timers are fired by its owner. Claim first (`waking`,
exactly one node gets each), then hand off under the run's lock; a node that dies between the two leaves a claim that
the stale-claim sweep puts back.
"""

from __future__ import annotations

from collections.abc import Callable

from ironflow.loops.driver import Report, applied
from ironflow.model import claim
from ironflow.model.transition import Locked, Transition
from ironflow.store.base import PROMOTED, Store

#: Bounded, in due order: ten thousand timers due at once must not keep new runs from starting.
BATCH = 200


class Waker:
    """See the module's docstring.

    Args:
        node: names the claims of this engine node.
        draining: whether a worker beside this loop takes page after page of what is due. It needs two commits a run for
            what costs four by way of the queue, so a pass then claims one batch (of what that worker cannot take, if it
            has been due for longer) and leaves the rest to it.
    """

    name = "waker"

    def __init__(self, store: Store, node: str, draining: Callable[[], bool] = lambda: False) -> None:
        self.store = store
        self.node = node
        self.draining = draining

    async def run_once(self) -> Report:
        """Wake one batch of due waits, and make one page of delayed segments ready whose time has come."""
        report = Report()
        promoted = await self.store.promote(PROMOTED)
        report.add("promoted", promoted)
        claimed = await self.store.claim_waits(self.node, BATCH)
        report.more = (promoted >= PROMOTED or len(claimed) >= BATCH) and not self.draining()
        if claimed:
            run_ids = sorted({wait.run_id for wait in claimed})

            def decide(locked: Locked) -> Transition | None:
                return claim.hand_off(locked, self.node)

            report.run_ids = list(applied(await self.store.decide(run_ids, decide), report))
            report.add("woken", len(report.run_ids))
        if report.counts:
            self.store.notify("queue", await self.store.sessions())
        return report
