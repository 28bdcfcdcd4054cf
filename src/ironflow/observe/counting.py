"""What happens, counted: the observer behind the metrics of runs, steps, claims, recoveries and commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from time import perf_counter
from typing import Final

from ironflow.model import journal as j
from ironflow.model import recovery
from ironflow.model import run as runs
from ironflow.model.capacity import RunHead
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.transition import Locked, Transition
from ironflow.observe.metrics import Metrics

#: What the end of a try is called, by the event that tells of it.
OUTCOMES: Final = {
    j.STEP_COMPLETED: "completed",
    j.STEP_FAILED: "failed",
    j.STEP_RETRYING: "retrying",
    j.STEP_CANCELLED: "cancelled",
}
#: What a recovery is called, by the evidence in its journal event.
EVIDENCE: Final = {
    recovery.GONE: "proof",
    recovery.GONE_OPENING: "opening",
    recovery.EXPIRED: "expiry",
    recovery.SUSPICION: "suspicion",
}

#: Any other: a run was neither owned nor queued.
INVARIANT: Final = "invariant"


class Counting:
    """See the module's docstring.

    Args:
        metrics: where to count.
        now: database time, ms.
    """

    def __init__(self, metrics: Metrics, now: Callable[[], int]) -> None:
        self.metrics = metrics
        self.now = now
        self._claims = metrics.of("ironflow_claims_total")
        self._batch_size = metrics.of("ironflow_commit_batch_size")
        self._commit_seconds = metrics.of("ironflow_commit_seconds")
        for evidence in (*EVIDENCE.values(), INVARIANT):
            for outcome in ("requeued", "failed"):
                # There from the start, at 0: of a series that begins with its first event, that event is no increase.
                metrics.of("ironflow_recoveries_total", evidence, outcome)

    def created(self, row: RunRow, traceparent: str | None = None) -> None:
        """See `Observer.created`. A run counts when it ends."""

    def entered(self, head: RunHead, worker: str) -> _Segment:
        """See `Observer.entered`."""
        self._claims.inc()
        return _Segment(self, head)

    def decided(self, locked: Locked, change: Transition) -> None:
        """See `Observer.decided`."""
        row = locked.row
        recovered = next((event for event in change.events if event.kind == j.RUN_RECOVERED), None)
        if recovered is not None:
            evidence = EVIDENCE.get(str(recovered.told().get("reason")), INVARIANT)
            outcome = "failed" if change.ended else "requeued"
            self.metrics.of("ironflow_recoveries_total", evidence, outcome).inc()
            if locked.lease is not None:
                late = max(0, locked.now - locked.lease.expires_at)
                self.metrics.of("ironflow_recovery_seconds").observe(late / 1000)
        if change.ended and change.state is not None:
            self.run_ended(row.workflow, change.state, locked.now - row.created_at)

    def wrote(self, transitions: int, seconds: float) -> None:
        """See `Observer.wrote`."""
        self._batch_size.observe(transitions)
        self._commit_seconds.observe(seconds)

    def deleted(self, runs: int) -> None:
        """See `Observer.deleted`."""
        self.metrics.of("ironflow_runs_deleted_total").inc(runs)

    def run_ended(self, workflow: str, state: str, took_ms: int) -> None:
        """A run reached its end."""
        self.metrics.of("ironflow_runs_total", workflow, state).inc()
        self.metrics.of("ironflow_run_seconds", workflow).observe(max(0, took_ms) / 1000)


class _Segment:
    """Times the bodies of one segment; see `Watch`."""

    __slots__ = ("_counting", "_head", "_tries")

    def __init__(self, counting: Counting, head: RunHead) -> None:
        self._counting = counting
        self._head = head
        #: by step id: the step's name, when its body began, and how long it took once it has ended
        self._tries: dict[str, tuple[str, float, float | None]] = {}

    def starting(self, step_id: str, name: str, try_no: int, context: Context) -> Context:
        self._tries[step_id] = name, perf_counter(), None
        return context

    def ended(self, step_id: str) -> None:
        known = self._tries.get(step_id)
        if known is not None:
            self._tries[step_id] = known[0], known[1], perf_counter() - known[1]

    def committed(self, events: Sequence[Event], left: str | None) -> None:
        for event in events:
            outcome = OUTCOMES.get(event.kind)
            known = self._tries.pop(event.step_id or "", None) if outcome is not None else None
            if known is None or outcome is None:
                continue  # it never began here: refused, or cut off before this segment
            name, began, took = known
            seconds = perf_counter() - began if took is None else took
            of = self._counting.metrics.of
            of("ironflow_step_seconds", self._head.workflow, name, outcome).observe(seconds)
        if left is not None and left in runs.TERMINAL:
            self._counting.run_ended(self._head.workflow, left, self._counting.now() - self._head.created_at)

    def lost(self, *, given_back: bool) -> None:
        if not given_back:
            self._counting.metrics.of("ironflow_leases_lost_total").inc()
