"""The capacity scanner: reclaims what a dead party stopped renewing.

It sees sessions that were cut off and did not come back, expired reservations, dead sessions, expired leases, runs that
claim to be owned or queued and are not, and deadlines that passed while nobody executed the run. It never executes: it
frees slots and puts runs back into the queue under a raised `execution_seq`.

A scanner that slept (its host was suspended, or its clock jumped) sees every clock as expired although the others only
waited for the same database. It grants them one renewal before it acts on clocks again. Proof needs no such patience:
`session_died` acts at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ironflow.config import Settings
from ironflow.loops.driver import Report
from ironflow.model import recovery
from ironflow.model import run as runs
from ironflow.model.recovery import RecoveryPolicy
from ironflow.model.transition import Locked, Transition
from ironflow.store.base import Decide, Store

log = logging.getLogger("ironflow.recovery")

#: A gap of more intervals than this between two passes means that the scanner itself was late.
LATE_AFTER = 3


class CapacityScanner:
    """See the module's docstring.

    Args:
        store: the database that all nodes share.
        settings: intervals, batch, ceiling, grace.
        monotonic: seconds that never run backwards; the host's own view of its lateness. The database's clock alone
            would not do: a suspended laptop with its database beside it stops both.
    """

    name = "capacity-scanner"

    def __init__(self, store: Store, settings: Settings, monotonic: Callable[[], float]) -> None:
        self.store = store
        self.settings = settings
        self.policy = RecoveryPolicy(settings.recovery_ceiling, settings.recovery_grace_ms)
        self._monotonic = monotonic
        self._last: tuple[float, int] | None = None
        self._grace_until = 0
        #: where the next page of expired leases begins, so that a page of runs that fail to recover stops no others
        self._after = ""

    async def run_once(self) -> Report:
        """One bounded pass over everything the scanner reclaims."""
        report = Report()
        for reclaim in (self._suspects, self._reservations, self._sessions, self.leases, self._unowned):
            if not self._may_trust_clocks():
                break
            await reclaim(report)
        await self._overdue(report)
        await self._tell(report)
        return report

    async def session_died(
        self,
        session_id: str,
        opening: tuple[str, int] | None = None,
        recovered: Callable[[], None] | None = None,
    ) -> Report:
        """Proof of a death: remove the session and recover what it held, at once and without waiting for clocks.

        Args:
            session_id: whose process is gone. Told twice, the second time finds nothing.
            opening: the run (id, execution_seq) that the process was replaying when it died, if it was: nothing was
                leased yet, but the run may be what killed it, so it is charged.
            recovered: called as soon as runs are back in the queue; the rest of the tidying need not be waited for.
        """
        report, policy = Report(), self.policy
        held = await self.store.close_session(session_id)
        report.add("sessions", 1)

        def opened(locked: Locked) -> Transition | None:
            return recovery.died_opening(locked, policy, session_id, opening[1] if opening else -1)

        def promised(locked: Locked) -> Transition | None:
            return recovery.expired_reservation(locked, session_id)

        await self._take(held, recovery.GONE, session_id, report)
        if opening is not None:
            # Waited for: a sweep that frees its reservation this moment must not let the run get away uncharged.
            await self._recover([opening[0]], opened, report, wait=True)
        if report.run_ids and recovered is not None:
            recovered()
        freed = await self._decide(await self.store.expired_reservations(self.settings.recovery_batch), promised)
        report.add("reservations", len(freed))
        await self._tell(report)
        return report

    async def leases(self, report: Report) -> None:
        """Recover one batch of expired leases; the next call takes the next page, until all were seen."""
        batch, policy = self.settings.recovery_batch, self.policy
        expired = await self.store.expired_leases(batch, self._after)
        if not self._may_trust_clocks():
            return
        full = len(expired) >= batch
        self._after = expired[-1] if full else ""
        report.more = report.more or full
        await self._recover(expired, lambda locked: recovery.expired_lease(locked, policy), report)

    async def _take(self, held: list[str], evidence: str, session_id: str, report: Report) -> None:
        """Recover what a session held, now that it is gone."""
        policy, batch = self.policy, self.settings.recovery_batch

        def lease(locked: Locked) -> Transition | None:
            return recovery.expired_lease(locked, policy, evidence, session_id)

        for start in range(0, len(held), batch):
            await self._recover(held[start : start + batch], lease, report)

    async def _recover(self, run_ids: list[str], decide: Decide, report: Report, *, wait: bool = False) -> None:
        for run_id, change in (await self._decide(run_ids, decide, report, wait=wait)).items():
            if change.new_execution_seq is None:
                report.add("freed", 1)  # paused or ended by somebody: only the lease was left
                continue
            outcome = "failed" if change.state == runs.FAILED else "recovered"
            report.add(outcome, 1)
            report.run_ids.append(run_id)
            reason = change.events[0].data().get("reason")
            log.warning(
                "run %s lost its owner (%s): %s, execution_seq %s", run_id, reason, outcome, change.new_execution_seq
            )

    async def _decide(
        self, run_ids: list[str], decide: Decide, report: Report | None = None, *, wait: bool = False
    ) -> dict[str, Transition]:
        """What was applied. Runs that somebody else has locked are left to the next pass, or waited for; errors are
        logged.
        """
        if not run_ids:
            return {}
        applied: dict[str, Transition] = {}
        for run_id, result in (await self.store.decide(run_ids, decide, skip_locked=not wait)).items():
            if isinstance(result, Transition):
                applied[run_id] = result
            elif isinstance(result, Exception):
                log.error("run %s could not be recovered: %s", run_id, result)
                if report is not None:
                    report.add("errors", 1)
        return applied

    async def _suspects(self, report: Report) -> None:
        """Whose connection broke, and who did not come back in time. Sooner than its clocks would tell."""
        if self.settings.suspect_after_ms is None:
            return
        until = self.store.now() - self.settings.suspect_after_ms
        for session in await self.store.suspects(until, self.settings.recovery_batch):
            if not self._may_trust_clocks():
                return
            held = await self.store.expire_session(session.session_id, until)
            if held is None:
                continue  # its heartbeat came first
            report.add("suspects", 1)
            log.warning(
                "session %s of worker %s was cut off and did not come back; runs it held: %d",
                session.session_id,
                session.worker_id,
                len(held),
            )
            await self._take(held, recovery.SUSPICION, session.session_id, report)

    async def _reservations(self, report: Report) -> None:
        run_ids = await self.store.expired_reservations(self.settings.recovery_batch)
        freed = await self._decide(run_ids, recovery.expired_reservation, report)
        report.add("reservations", len(freed))
        report.more = report.more or (len(run_ids) >= self.settings.recovery_batch and bool(freed))

    async def _sessions(self, report: Report) -> None:
        for session in await self.store.expired_sessions(self.settings.recovery_batch):
            # Asked again each time: a database that did not answer for a while kept everybody from renewing.
            if not self._may_trust_clocks():
                return
            held = await self.store.expire_session(session.session_id)
            if held is None:
                continue  # its heartbeat came first
            report.add("sessions", 1)
            log.warning(
                "session %s of worker %s sent no heartbeat in time; runs it held: %d",
                session.session_id,
                session.worker_id,
                len(held),
            )

    async def _unowned(self, report: Report) -> None:
        older_than, policy = self.store.now() - self.settings.lease_ttl_ms, self.policy
        run_ids = await self.store.unowned(older_than, self.settings.recovery_batch)
        broken = await self._decide(run_ids, lambda locked: recovery.unowned(locked, policy, older_than), report)
        report.add("breaches", len(broken))
        for run_id in broken:
            log.error("invariant broken: run %s had neither lease nor queue row; it was queued again", run_id)

    async def _overdue(self, report: Report) -> None:
        # A worker that is there ends the run at its deadline by itself, with its compensations: it goes first.
        older_than = self.store.now() - self.settings.recovery_interval_ms
        run_ids = await self.store.overdue(older_than, self.settings.recovery_batch)
        ended = await self._decide(run_ids, lambda locked: recovery.overdue(locked, older_than), report)
        report.add("overdue", len(ended))
        for run_id, change in ended.items():
            if change.ended:
                log.warning("run %s passed its deadline while nobody executed it; it failed", run_id)

    async def _tell(self, report: Report) -> None:
        if report.counts.keys() & {"recovered", "reservations", "breaches", "overdue"}:
            self.store.notify("queue", await self.store.sessions())

    def _may_trust_clocks(self) -> bool:
        mono, now = self._monotonic(), self.store.now()
        last, self._last = self._last, (mono, now)
        allowed = LATE_AFTER * self.settings.recovery_interval_ms
        late = last is None or (mono - last[0]) * 1000 > allowed or now - last[1] > allowed
        if late:
            self._grace_until = now + self.settings.renewal_interval_ms
        return now >= self._grace_until
