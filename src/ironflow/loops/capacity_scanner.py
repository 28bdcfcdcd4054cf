"""The capacity scanner: reclaims what a dead party stopped renewing.

It sees sessions that were cut off and did not come back, expired reservations, dead sessions, expired leases, runs that
claim to be owned or queued and are not, and deadlines that passed while nobody executed the run. It never executes: it
frees slots and puts runs back into the queue under a raised `execution_seq`.

A scanner that slept (its host was suspended, or its clock jumped) sees every clock as expired although the others only
waited for the same database. It grants them one renewal before it acts on clocks again, and less to those who were cut
off: a worker that lives comes back and beats at once. One that has just begun does the same, unless another node shows
that it has watched all the time. And many workers that are cut off at once are one break and not many deaths: they are
left to their clocks (`model.suspicion`). Proof needs no such patience: `session_died` acts at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ironflow.config import Settings
from ironflow.errors import OUTAGES
from ironflow.loops.driver import Report, applied
from ironflow.model import recovery
from ironflow.model import run as runs
from ironflow.model.recovery import RecoveryPolicy
from ironflow.model.suspicion import Mass, Suspicion
from ironflow.model.transition import Decide, Locked, Transition
from ironflow.store.base import Store

log = logging.getLogger("ironflow.recovery")

#: A gap of more intervals than this between two passes means that the scanner itself was late.
LATE_AFTER = 3
#: A worker that lost its connection and lives has found another one by then, and has beaten, ms.
BACK_WITHIN_MS = 3_000
#: Time that is so far ahead of the database's, ms, is no matter of rounding or of a slow network.
AHEAD_MS = 1_000


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
        #: what another node has shown within so many ms counts: one that stands still must not speak for anybody
        self._fresh_ms = min(LATE_AFTER * settings.recovery_interval_ms, settings.renewal_interval_ms)
        self._monotonic = monotonic
        self._last: tuple[float, int] | None = None
        #: from then on clocks count; and suspicions, and promises that nobody took up
        self._grace_until = self._patient_until = 0
        #: whether time stands still here, which has been told
        self._stands = False
        #: when this scanner could last not see the database (from, to)
        self._blind = recovery.NEVER
        #: whether suspects are too many at once, which has been told
        self._holds_back = False
        #: where the next page of expired leases begins, so that a page of runs that fail to recover stops no others
        self._after = ""
        #: where the next page of live runs begins, of which some may have no place anywhere
        self._walked = ""

    async def run_once(self) -> Report:
        """One bounded pass over everything the scanner reclaims."""
        seen = self._last
        try:
            await self._compare_clocks()
            if seen is None and await self.store.watched(self._fresh_ms):
                self._last = self._monotonic(), self.store.now()
            report = await self._pass()
            await self.store.watch(self._may_trust_clocks())
            return report
        except OUTAGES:
            # Not seen since then, however often it was looked for; who could not renew meanwhile is granted time.
            self._last = seen
            raise

    async def _pass(self) -> Report:
        report = Report()
        for reclaim in (self._suspects, self._reservations):
            if self._may_trust_silence():
                await reclaim(report)
        for reclaim in (self._sessions, self.leases, self._unowned):
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
        left = await self.store.expired_reservations(self.settings.recovery_batch)
        freed = await self._decide(left, promised, report)
        report.add("reservations", len(freed))
        await self._tell(report)
        return report

    async def leases(self, report: Report) -> None:
        """Recover one batch of expired leases; the next call takes the next page, until all were seen."""
        batch, policy, blind = self.settings.recovery_batch, self.policy, self._blind
        expired = await self.store.expired_leases(batch, self._after)
        if not self._may_trust_clocks():
            return
        full = len(expired) >= batch
        self._after = expired[-1] if full else ""
        report.more = report.more or full
        await self._recover(expired, lambda locked: recovery.expired_lease(locked, policy, blind=blind), report)

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
        self, run_ids: list[str], decide: Decide, report: Report, *, wait: bool = False
    ) -> dict[str, Transition]:
        """What was applied. Runs that somebody else has locked are left to the next pass, or waited for."""
        return applied(await self.store.decide(run_ids, decide, skip_locked=not wait), report) if run_ids else {}

    async def _suspects(self, report: Report) -> None:
        """Whose connection broke, and who did not come back in time. Sooner than its clocks would tell."""
        after = self.settings.suspect_after_ms
        if after is None:
            return
        now = self.store.now()
        suspicion = Suspicion(now - after, after)
        due, mass = await self.store.suspects(suspicion, self.settings.recovery_batch)
        self._tell_of(mass)
        if mass is not None:
            await self.store.hold_back(after, now - self.settings.recovery_interval_ms)
        for session in due:
            if not self._may_trust_silence():
                return
            held = await self.store.expire_session(session.session_id, suspicion)
            if held is None:
                continue  # its heartbeat came first, or it belongs to a mass by now
            report.add("suspects", 1)
            log.warning(
                "session %s of worker %s was cut off and did not come back; runs it held: %d",
                session.session_id,
                session.worker_id,
                len(held),
            )
            await self._take(held, recovery.SUSPICION, session.session_id, report)

    def _tell_of(self, mass: Mass | None) -> None:
        """Say it once when suspects are held back because they are too many at once, and once when that is over."""
        if mass is not None and not self._holds_back:
            log.warning(
                "%d of %d live sessions are cut off at once: that is taken for one break and not for deaths, so only "
                "proof and their own clocks (session_ttl) count until enough of them are back",
                mass.suspects,
                mass.live,
            )
        elif mass is None and self._holds_back:
            log.info("enough of those who were cut off at once are back or gone: suspects count one by one again")
        self._holds_back = mass is not None

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
        run_ids, self._walked = await self.store.unowned(older_than, self.settings.recovery_batch, self._walked)
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
        return self._watched() >= self._grace_until

    def _may_trust_silence(self) -> bool:
        """Whether who was cut off has had the time to come back, as far as this scanner can tell."""
        return self._watched() >= self._patient_until

    def suspect_at(self, suspect_since: int) -> int | None:
        """When this scanner will act on a suspicion from that time (ms); None where it never does."""
        after = self.settings.suspect_after_ms
        return None if after is None else max(suspect_since + after, self._patient_until)

    async def _compare_clocks(self) -> None:
        """While time stands still here, others' times are in order, and prove nothing against them."""
        ahead = await self.store.ahead()
        was, self._stands = self._stands, ahead >= AHEAD_MS
        if not self._stands:
            return
        if not was:
            log.warning(
                "the clock of the database stands %.1f s before times that it has told: it was set back, or this is "
                "another server; time stands still here until then, and nobody is taken for dead by a clock",
                ahead / 1000,
            )
        now = self.store.now()
        self._grace_until = now + self.settings.renewal_interval_ms
        self._patient_until = now + min(self.settings.renewal_interval_ms, BACK_WITHIN_MS)

    def _watched(self) -> int:
        """The time now. Where nobody watched for a while, both patiences begin."""
        mono, now = self._monotonic(), self.store.now()
        last, self._last = self._last, (mono, now)
        if last is not None and now < last[1]:
            last = None  # a host's clock that was wrong was set back: until its old time there is nothing to wait for
        gap = None if last is None else max((mono - last[0]) * 1000, now - last[1])
        if gap is None or gap > LATE_AFTER * self.settings.recovery_interval_ms:
            self._grace_until = now + self.settings.renewal_interval_ms
            if last is not None and gap is not None:
                self._was_blind(last[1], gap)
            self._patient_until = now + min(self.settings.renewal_interval_ms, BACK_WITHIN_MS)
        return now

    def _was_blind(self, since: int, gap: float) -> None:
        """Remember a time in which nobody may have been able to renew, if it was long enough to cost somebody a lease.

        Of a scanner that went through it: one that has just begun knows nothing of the time before, and what may have
        killed its predecessor is not to be excused.
        """
        same = self._blind[1] >= since  # a second gap inside the grace of the first
        if same or 2 * gap >= self.settings.lease_ttl_ms:
            self._blind = self._blind[0] if same else since, self._grace_until
