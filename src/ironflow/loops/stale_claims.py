"""The stale-claim sweep: puts a wake-up back whose node died between claim and hand-off.

Such a run holds neither lease nor queue row, so the capacity scanner cannot see it; a run that holds either belongs to
the scanner and is left alone. The two loops are disjoint by what they look at, not by their timing.

A node that listens no more is taken for dead at once; where that cannot be told, a claim's age has to do.
"""

from __future__ import annotations

from typing import Final

from ironflow.config import Settings
from ironflow.loops.driver import Report, applied
from ironflow.model import claim
from ironflow.model.transition import Locked, Transition
from ironflow.store.base import Store

#: Later than any time at which a claim was made.
_WHENEVER: Final = 1 << 62


class StaleClaims:
    """See the module's docstring. Claims of the dead, and those older than the threshold, go back as they were."""

    name = "stale-claims"

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings

    async def run_once(self) -> Report:
        """Put one batch of stale claims back."""
        report = Report()
        older_than = self.store.now() - self.settings.stale_claim_threshold_ms
        gone = await self.store.gone_claimers()
        run_ids = await self.store.stale_claims(_WHENEVER if gone else older_than, self.settings.recovery_batch)
        if not run_ids:
            return report

        def decide(locked: Locked) -> Transition | None:
            return claim.stale(locked, older_than, gone)

        reset = len(applied(await self.store.decide(run_ids, decide, skip_locked=True), report))
        report.add("reset", reset)
        # A page of claims that are being handed off right now is no reason to look again at once.
        report.more = bool(reset) and len(run_ids) >= self.settings.recovery_batch
        return report
