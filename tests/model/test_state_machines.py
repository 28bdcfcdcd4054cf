"""The tables of states: every pair of them, legal and illegal."""

from __future__ import annotations

import itertools

import pytest

from ironflow.errors import InvalidTransition
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model import wait as waits
from ironflow.model.run import OWNED, QUEUED, SUSPENDED, RunRow, check, may_become, resumed_state

# Written out once more, so that a change of a table is a change of two places.
RUNS = {
    "pending": "running paused cancelling cancelled failed",
    "running": "pending retrying sleeping waiting awaiting_approval paused cancelling "
    "completed warning failed cancelled",
    "retrying": "pending running paused cancelling failed cancelled",
    "sleeping": "pending paused cancelling failed cancelled",
    "waiting": "pending paused cancelling failed cancelled",
    "awaiting_approval": "pending paused cancelling failed cancelled",
    "paused": "pending retrying sleeping waiting awaiting_approval cancelling failed cancelled",
    "cancelling": "cancelled failed",
    "failed": "pending",
    "cancelled": "pending",
    "completed": "",
    "warning": "",
}
STEPS = {
    "scheduled": "running waiting skipped cancelled failed",
    "running": "completed failed retrying interrupted cancelled timed_out",
    "waiting": "completed failed cancelled timed_out",
    "retrying": "running cancelled failed",
    "interrupted": "running completed failed retrying cancelled timed_out",
    "failed": "running",
    "timed_out": "running",
    "cancelled": "running interrupted",
    "completed": "running",
    "skipped": "running",
}
WAITS = {
    "sleeping": "waking resolved",
    "waiting": "waking resolved",
    "awaiting_approval": "waking resolved",
    "retry_backoff": "waking resolved",
    "waking": "sleeping waiting awaiting_approval retry_backoff resolved",
    "resolved": "",
}


@pytest.mark.parametrize(("current", "target"), list(itertools.product(RUNS, RUNS)))
def test_a_run_moves_only_as_its_table_says(current: str, target: str) -> None:
    if target in RUNS[current].split():
        check("r", current, target)
    else:
        with pytest.raises(InvalidTransition, match=f"run r is {current} and cannot become {target}"):
            check("r", current, target)


@pytest.mark.parametrize(("current", "target"), list(itertools.product(sorted(OWNED | QUEUED | SUSPENDED), RUNS)))
def test_a_worker_moves_a_run_only_as_the_table_says(current: str, target: str) -> None:
    # Whoever takes a run makes it running, and may go on from there in the same commit.
    begun = current if current in OWNED else "running"
    legal = target == begun or target in RUNS[begun].split()
    assert may_become(current, target, 1 if target == "warning" else 0) == legal
    assert may_become(current, None, 0)


def test_a_run_ends_well_as_warning_if_and_only_if_it_was_warned_of() -> None:
    assert not may_become("running", "completed", 1)
    assert not may_become("running", "warning", 0)
    assert may_become("running", "failed", 1)


@pytest.mark.parametrize(("table", "machine"), [(STEPS, steps), (WAITS, waits), (RUNS, runs)])
def test_a_table_holds_every_move_and_no_other(table: dict[str, str], machine: object) -> None:
    moves = machine.TRANSITIONS  # type: ignore[attr-defined]
    assert set(table) == machine.STATES  # type: ignore[attr-defined]
    for current, target in itertools.product(table, table):
        assert (target in moves[current]) is (target in table[current].split()), (current, target)


def test_a_run_that_has_ended_well_goes_nowhere() -> None:
    assert {state for state, moves in runs.TRANSITIONS.items() if not moves} == {"completed", "warning"}


def test_every_live_run_can_be_cancelled_and_can_fail() -> None:
    for state in runs.STATES - runs.TERMINAL:
        assert {runs.CANCELLED, runs.FAILED} <= runs.TRANSITIONS[state], state


def test_a_paused_run_goes_back_to_where_it_waited_or_replays_from_the_queue() -> None:
    for state in ("retrying", "sleeping", "waiting", "awaiting_approval"):
        assert resumed_state(state) == state
    for state in ("running", "pending", None):
        assert resumed_state(state) == "pending"


def test_a_row_knows_whether_its_run_has_ended() -> None:
    for state in runs.STATES:
        assert RunRow("r", "w", "1", state, "w", "r", 0).ended is (state in runs.TERMINAL)
