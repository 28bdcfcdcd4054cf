"""What is counted when a worker, recovery and the store tell of what they did."""

from __future__ import annotations

import contextvars
import logging
from typing import Any

import pytest
from tests.observe.build import COMPLETED, NOW, head, leased, row, step, value

from ironflow.errors import InvalidSettings
from ironflow.model import journal as j
from ironflow.model import operator, recovery
from ironflow.model import run as runs
from ironflow.model.transition import Locked, Transition
from ironflow.observe import metrics as module
from ironflow.observe.counting import Counting
from ironflow.observe.metrics import INSTRUMENTS, OTHER, Metrics
from ironflow.observe.seam import Looking, Observer, Several

POLICY = recovery.RecoveryPolicy()
HERE = contextvars.copy_context()


@pytest.fixture
def counting(metrics: Metrics) -> Counting:
    return Counting(metrics, lambda: NOW)


def test_a_second_registry_in_one_process_is_an_error_until_the_first_is_closed(metrics: Metrics) -> None:
    with pytest.raises(InvalidSettings, match="installed already"):
        Metrics()
    metrics.close()
    Metrics().close()


def test_the_registry_holds_what_the_table_names_and_nothing_of_the_program_around_it(metrics: Metrics) -> None:
    text, kind = metrics.text()
    found = {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")}
    named = {one.name for one in INSTRUMENTS}
    assert named <= found
    assert {name.removesuffix("_created") for name in found - named} <= {n.removesuffix("_total") for n in named}
    assert kind.startswith("text/plain")
    assert metrics.text("application/openmetrics-text; version=1.0.0")[0].endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (j.STEP_COMPLETED, "completed"),
        (j.STEP_FAILED, "failed"),
        (j.STEP_RETRYING, "retrying"),
        (j.STEP_CANCELLED, "cancelled"),
    ],
)
def test_a_try_counts_once_its_end_is_committed(counting: Counting, kind: str, outcome: str) -> None:
    watch = counting.entered(head(), "worker-1")
    labels = {"workflow": "order", "step": "charge", "outcome": outcome}
    watch.starting("0:charge", "charge", 1, HERE)
    watch.ended("0:charge")
    assert value(counting.metrics, "ironflow_step_seconds_count", **labels) == 0
    watch.committed([step(kind)], None)
    watch.committed([step(kind)], None)  # a second end of one try would be a mistake of the engine's, not a count
    assert value(counting.metrics, "ironflow_step_seconds_count", **labels) == 1
    assert value(counting.metrics, "ironflow_claims_total") == 1


def test_a_run_counts_where_its_end_is_committed_with_the_time_since_its_creation(counting: Counting) -> None:
    watch = counting.entered(head(), "worker-1")
    watch.committed([], None)
    watch.committed([], runs.SLEEPING)
    assert value(counting.metrics, "ironflow_runs_total", workflow="order", status="sleeping") == 0
    counting.entered(head(seq=2), "worker-1").committed([], runs.COMPLETED)
    assert value(counting.metrics, "ironflow_runs_total", workflow="order", status="completed") == 1
    assert value(counting.metrics, "ironflow_run_seconds_sum", workflow="order") == 2.0
    assert value(counting.metrics, "ironflow_claims_total") == 2


def test_runs_that_were_deleted_count_by_number(counting: Counting) -> None:
    counting.deleted(50)
    counting.deleted(2)
    assert value(counting.metrics, "ironflow_runs_deleted_total") == 52


def test_a_lost_segment_counts_unless_its_worker_gave_it_back(counting: Counting) -> None:
    counting.entered(head(), "worker-1").lost(given_back=True)
    assert value(counting.metrics, "ironflow_leases_lost_total") == 0
    counting.entered(head(), "worker-1").lost(given_back=False)
    assert value(counting.metrics, "ironflow_leases_lost_total") == 1


@pytest.mark.parametrize(
    ("reason", "evidence"),
    [
        (recovery.EXPIRED, "expiry"),
        (recovery.GONE, "proof"),
        (recovery.SUSPICION, "suspicion"),
        (recovery.GONE_OPENING, "opening"),
        ("something new", "invariant"),
    ],
)
def test_a_recovery_counts_by_its_evidence(counting: Counting, reason: str, evidence: str) -> None:
    locked = leased(expired_ms=400)
    counting.decided(locked, recovery.requeue(locked, POLICY, charged=True, reason=reason))
    assert value(counting.metrics, "ironflow_recoveries_total", evidence=evidence, outcome="requeued") == 1
    assert value(counting.metrics, "ironflow_recovery_seconds_sum") == 0.4


def test_the_recovery_that_fails_a_run_counts_the_end_of_the_run_too(counting: Counting) -> None:
    locked = leased(consecutive_recoveries=POLICY.ceiling)
    change = recovery.expired_lease(locked, POLICY)
    assert change is not None
    counting.decided(locked, change)
    assert value(counting.metrics, "ironflow_recoveries_total", evidence="expiry", outcome="failed") == 1
    assert value(counting.metrics, "ironflow_runs_total", workflow="order", status="failed") == 1


def test_a_cancelled_run_counts_and_a_paused_one_does_not(counting: Counting) -> None:
    locked = Locked(row(state=runs.RUNNING), 3, None, None, [], NOW)
    counting.decided(locked, _some(operator.pause(locked, "ann")))
    assert value(counting.metrics, "ironflow_run_seconds_count", workflow="order") == 0
    counting.decided(locked, _some(operator.cancel(locked, "ann")))
    assert value(counting.metrics, "ironflow_runs_total", workflow="order", status="cancelled") == 1


def test_what_was_decided_is_told_only_when_it_was_applied(counting: Counting) -> None:
    locked, skipped = leased("r1"), leased("r2")
    looking = Looking(lambda seen: recovery.expired_lease(seen, POLICY), counting)
    change = looking(locked)
    looking(skipped)
    assert value(counting.metrics, "ironflow_recoveries_total", evidence="expiry", outcome="requeued") == 0
    looking.applied({"r1": change, "r2": OSError("the database went away"), "r3": None})
    assert value(counting.metrics, "ironflow_recoveries_total", evidence="expiry", outcome="requeued") == 1


def test_commits_are_counted_by_size_and_time(counting: Counting) -> None:
    counting.wrote(3, 0.002)
    counting.wrote(1, 0.001)
    assert value(counting.metrics, "ironflow_commit_batch_size_sum") == 4
    assert value(counting.metrics, "ironflow_commit_seconds_count") == 2


def test_a_label_that_grows_without_end_keeps_its_first_names(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_NAMES", 3)
    for n in range(10):
        metrics.of("ironflow_runs_total", f"workflow-{n}", "completed").inc()
    assert value(metrics, "ironflow_runs_total", workflow="workflow-2", status="completed") == 1
    assert value(metrics, "ironflow_runs_total", workflow="workflow-3", status="completed") == 0
    assert value(metrics, "ironflow_runs_total", workflow=OTHER, status="completed") == 7
    assert len(metrics._children) < 10


def test_groups_beyond_the_largest_are_one_and_an_emptied_group_is_gone(metrics: Metrics) -> None:
    metrics.blocked({f"group:{n}": n for n in range(1, 26)})
    assert value(metrics, "ironflow_worker_queue_blocked_runs", group="group:25") == 25
    assert value(metrics, "ironflow_worker_queue_blocked_runs", group=OTHER) == 1 + 2 + 3 + 4 + 5
    metrics.blocked({"group:7": 2})
    assert value(metrics, "ironflow_worker_queue_blocked_runs", group="group:25") == 0
    assert metrics.text()[0].count(b"blocked_runs{") == 1


def test_an_observer_that_fails_is_named_once_and_stops_neither_the_others_nor_the_run(
    counting: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    several: Observer = Several([Broken(), counting])
    with caplog.at_level(logging.ERROR, "ironflow.observe"):
        for _ in range(3):
            watch = several.entered(head(), "worker-1")
            context = watch.starting("0:charge", "charge", 1, HERE)
            watch.ended("0:charge")
            watch.committed([COMPLETED], runs.COMPLETED)
            several.decided(leased(), recovery.requeue(leased(), POLICY, charged=True, reason=recovery.GONE))
    assert context is HERE
    assert value(counting.metrics, "ironflow_runs_total", workflow="order", status="completed") == 3
    assert [record.getMessage().split(" failed")[0] for record in caplog.records] == [
        "BrokenWatch.starting",
        "BrokenWatch.ended",
        "BrokenWatch.committed",
        "Broken.decided",
    ]


class BrokenWatch:
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def starting(self, *args: Any) -> Any:
        raise RuntimeError("starting")

    def ended(self, step_id: str) -> None:
        raise RuntimeError("ended")

    def committed(self, *args: Any) -> None:
        raise RuntimeError("committed")

    def lost(self, *, given_back: bool) -> None:
        raise RuntimeError("lost")


class Broken:
    def created(self, *args: Any) -> None:
        raise RuntimeError("created")

    def entered(self, *args: Any) -> BrokenWatch:
        return BrokenWatch()

    def decided(self, *args: Any) -> None:
        raise RuntimeError("decided")

    def wrote(self, *args: Any) -> None:
        raise RuntimeError("wrote")

    def deleted(self, *args: Any) -> None:
        raise RuntimeError("deleted")


def _some(change: Transition | None) -> Transition:
    assert change is not None
    return change
