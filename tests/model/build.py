"""Runs, leases, queue rows and locked views for the tests of pure decisions."""

from __future__ import annotations

from typing import Any

from ironflow.model import run as runs
from ironflow.model import wire
from ironflow.model.capacity import LeaseRow, QueueRow
from ironflow.model.run import RunRow
from ironflow.model.transition import Locked, Transition
from ironflow.model.wait import WaitRow

NOW = 1_000_000
LEASE_TTL_MS = 20_000


def a_run(state: str = runs.RUNNING, **columns: Any) -> RunRow:
    row = RunRow("r", "flow", "1", state, "flow", "r", NOW - 50_000)
    row.execution_seq = 3
    for name, value in columns.items():
        setattr(row, name, value)
    return row


def a_lease(**columns: Any) -> LeaseRow:
    row = LeaseRow("r", 3, "hash", "s1", NOW - 30_000, NOW - 1, 1)
    for name, value in columns.items():
        setattr(row, name, value)
    return row


def a_place(**columns: Any) -> QueueRow:
    row = QueueRow("r", "flow", 0, NOW - 10, NOW - 10, 3)
    for name, value in columns.items():
        setattr(row, name, value)
    return row


def locked(
    row: RunRow,
    *,
    lease: LeaseRow | None = None,
    queue: QueueRow | None = None,
    waits: list[WaitRow] | None = None,
) -> Locked:
    return Locked(row, 9, queue, lease, waits or [], NOW)


def change_of(item: object) -> Transition:
    """The change that an item of a worker's message asks for, read in one go."""
    *_, change = wire.reading(item, "s", LEASE_TTL_MS)
    assert change is not None
    return change
