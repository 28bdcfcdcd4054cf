"""The capacity scanner: reclaims what a dead party stopped renewing.

It sees expired reservations, dead sessions, expired leases, and runs that claim to be owned or queued and are not. It
never executes: it frees slots and puts runs back into the queue under a raised `execution_seq`.

A scanner that slept (its host was suspended, or its clock jumped) sees every clock as expired although the others only
waited for the same database. It grants them one renewal before it acts on clocks again.
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
from ironflow.store.base import Store

log = logging.getLogger("ironflow.recovery")

#: A gap of more intervals than this between two passes means that the scanner itself was late.
LATE_AFTER = 3


class CapacityScanner:
    """See the module's docstring.

    Args:
        store: the database that all nodes share.
        settings: intervals, batch, ceiling, grace.
        monotonic: seconds that never run backwards; the host's own view of its lateness.
    """

    name = "capacity-scanner"

    def __init__(self, store: Store, settings: Settings, monotonic: Callable[[], float]) -> None:
        self.store = store
        self.settings = settings
        self.policy = RecoveryPolicy(settings.recovery_ceiling, settings.recovery_grace_ms)
        self._monotonic = monotonic
        self._last: tuple[float, int] | None = None
        self._grace_until = 0

    async def run_once(self) -> Report:
        """One bounded pass over everything the scanner reclaims."""
        report = Report()
        await self._reservations(report)
        if self._may_trust_clocks():
            await self._sessions(report)
            await self.leases(report)
            await self._unowned(report)
        return report

    async def session_died(self, session_id: str) -> Report:
        """Proof of a death: remove the session and recover what it held, at once and without waiting for clocks."""
        report = Report()
        held = await self.store.close_session(session_id)
        report.add("sessions", 1)
        await self._recover(held, report)
        return report

    async def leases(self, report: Report) -> None:
        """Recover one batch of expired leases."""
        batch = self.settings.recovery_batch
        expired = await self.store.expired_leases(batch)
        report.more = report.more or len(expired) >= batch
        await self._recover(expired, report)

    async def _recover(self, run_ids: list[str], report: Report) -> None:
        if not run_ids:
            return
        policy = self.policy

        def decide(locked: Locked) -> Transition | None:
            return recovery.expired_lease(locked, policy)

        done = await self.store.decide(run_ids, decide, skip_locked=True)
        for run_id, result in done.items():
            if isinstance(result, Exception):
                report.add("errors", 1)
                log.error("run %s could not be recovered: %s", run_id, result)
            elif isinstance(result, Transition):
                outcome = "failed" if result.state == runs.FAILED else "recovered"
                report.add(outcome, 1)
                report.run_ids.append(run_id)
                log.warning(
                    "run %s lost its owner: %s, execution_seq %s", run_id, outcome, result.new_execution_seq
                )
        if report.run_ids:
            self.store.notify("queue", await self.store.sessions())

    async def _reservations(self, report: Report) -> None:
        run_ids = await self.store.expired_reservations(self.settings.recovery_batch)
        if run_ids:
            done = await self.store.decide(run_ids, recovery.expired_reservation, skip_locked=True)
            report.add("reservations", sum(isinstance(r, Transition) for r in done.values()))
            report.more = report.more or len(run_ids) >= self.settings.recovery_batch
            self.store.notify("queue", await self.store.sessions())

    async def _sessions(self, report: Report) -> None:
        for session in await self.store.expired_sessions(self.settings.recovery_batch):
            held = await self.store.close_session(session.session_id)
            report.add("sessions", 1)
            log.warning(
                "session %s of worker %s sent no heartbeat in time; it held %d runs",
                session.session_id,
                session.worker_id,
                len(held),
            )

    async def _unowned(self, report: Report) -> None:
        older_than = self.store.now() - self.settings.lease_ttl_ms
        run_ids = await self.store.unowned(older_than, self.settings.recovery_batch)
        if not run_ids:
            return
        policy = self.policy

        def decide(locked: Locked) -> Transition | None:
            return recovery.unowned(locked, policy, older_than)

        done = await self.store.decide(run_ids, decide, skip_locked=True)
        for run_id, result in done.items():
            if isinstance(result, Transition):
                report.add("breaches", 1)
                log.error(
                    "invariant broken: run %s had neither lease nor queue row; it was queued again", run_id
                )

    def _may_trust_clocks(self) -> bool:
        mono, now = self._monotonic(), self.store.now()
        last, self._last = self._last, (mono, now)
        allowed = LATE_AFTER * self.settings.recovery_interval_ms
        late = last is None or (mono - last[0]) * 1000 > allowed or now - last[1] > allowed
        if late:
            self._grace_until = now + self.settings.renewal_interval_ms
        return now >= self._grace_until
