"""What the tests of observers make: heads, rows, locked runs, and one sample of a registry."""

from __future__ import annotations

from typing import Any

from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.capacity import LeaseRow, RunHead
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.transition import Locked
from ironflow.observe.metrics import Metrics

#: Database time in these tests, ms.
NOW = 1_700_000_000_000


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """One sample as a scraper would get it; 0 where there is none."""
    return metrics.registry.get_sample_value(name, labels) or 0.0


def head(run_id: str = "r1", seq: int = 1, workflow: str = "order") -> RunHead:
    """A run as a worker has just taken it."""
    return RunHead(run_id, workflow, "1", runs.RUNNING, workflow, run_id, NOW - 2_000, seq, 0, 1, 0, 0, 0, None, None)


def row(run_id: str = "r1", state: str = runs.RUNNING, seq: int = 1, **values: Any) -> RunRow:
    """The row of a run of `order`."""
    made = RunRow(run_id, "order", "1", state, "order", run_id, NOW - 2_000, **values)
    made.execution_seq = seq
    return made


def leased(run_id: str = "r1", seq: int = 1, *, expired_ms: int = 400, **values: Any) -> Locked:
    """A run as recovery finds it: its lease is over."""
    lease = LeaseRow(run_id, seq, "hash", "session-1", NOW - 1_500, NOW - expired_ms, 1)
    return Locked(row(run_id, seq=seq, **values), 3, None, lease, [], NOW)


def step(kind: str, step_id: str = "0:charge", payload: str | None = None) -> Event:
    """An event of a step."""
    return Event(4, kind, step_id, payload or f'{{"t":{NOW}}}', 1)


COMPLETED = step(j.STEP_COMPLETED)
