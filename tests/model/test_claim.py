"""Claims: two wake-ups make one segment, and a claim whose node died goes back to where it came from."""

from __future__ import annotations

import pytest
from tests.model.build import NOW, a_lease, a_place, a_run, locked

from ironflow.model import claim
from ironflow.model import run as runs
from ironflow.model import wait as waits
from ironflow.model.capacity import RESERVED
from ironflow.model.wait import WaitRow


def claimed(by: str = "n1", at: int = NOW - 100, before: str = waits.SLEEPING, kind: str = waits.TIMER) -> WaitRow:
    return WaitRow("r", f"main/{before}", kind, waits.WAKING, NOW, before, by, at)


@pytest.mark.parametrize("state", sorted(runs.SUSPENDED))
def test_a_hand_off_queues_a_suspended_run_and_clears_its_waits(state: str) -> None:
    change = claim.hand_off(locked(a_run(state), waits=[claimed()]), "n1")
    assert change is not None
    assert (change.state, change.clear_waits) == (runs.PENDING, True)
    assert change.enqueue is not None


def test_a_second_hand_off_finds_nothing_to_do() -> None:
    wait = claimed()
    assert claim.hand_off(locked(a_run(runs.PENDING), queue=a_place(), waits=[wait])) is None
    assert claim.hand_off(locked(a_run(runs.SLEEPING), queue=a_place(), waits=[wait])) is None
    assert claim.hand_off(locked(a_run(runs.SLEEPING), lease=a_lease(), waits=[wait])) is None


def test_a_node_hands_off_only_what_it_holds_the_claim_of() -> None:
    view = locked(a_run(runs.SLEEPING), waits=[claimed("n1")])
    assert claim.hand_off(view, "n2") is None
    assert claim.hand_off(locked(a_run(runs.SLEEPING), waits=[]), "n1") is None
    assert claim.hand_off(view) is not None


def test_a_run_paused_between_claim_and_hand_off_gets_its_wait_back_at_once() -> None:
    change = claim.hand_off(locked(a_run(runs.PAUSED), waits=[claimed("n1")]), "n1")
    assert change is not None
    assert (change.state, change.enqueue, change.clear_waits) == (None, None, True)
    assert [(wait.status, wait.claimed_by, wait.due_at) for wait in change.waits] == [(waits.SLEEPING, None, NOW)]
    assert claim.hand_off(locked(a_run(runs.PAUSED), waits=[claimed("n2")]), "n1") is None


def test_a_stale_claim_returns_to_the_status_it_was_claimed_from() -> None:
    waiting = WaitRow("r", "main/e", "event", waits.WAITING)
    kept = [claimed(before=status) for status in (waits.SLEEPING, waits.WAITING, waits.RETRY_BACKOFF)]
    change = claim.stale(locked(a_run(runs.SLEEPING), waits=[*kept, waiting]), NOW - 100)
    assert change is not None
    assert [row.status for row in change.waits] == [
        waits.SLEEPING, waits.WAITING, waits.RETRY_BACKOFF, waits.WAITING,
    ]  # fmt: skip
    assert all(row.claimed_by is None and row.claimed_at is None for row in change.waits)
    assert change.clear_waits


def test_a_young_claim_and_a_run_of_the_other_loop_are_left_alone() -> None:
    row = a_run(runs.SLEEPING)
    assert claim.stale(locked(row, waits=[claimed(at=NOW)]), NOW - 1) is None
    assert claim.stale(locked(row, waits=[claimed()], lease=a_lease()), NOW) is None
    assert claim.stale(locked(row, waits=[claimed()], queue=a_place()), NOW) is None


def test_a_reservation_is_prolonged_for_who_holds_it_only() -> None:
    held = a_place(status=RESERVED, reservation_token="t", reserved_until=NOW, reserved_by="s1")
    change = claim.keep(locked(a_run(runs.PENDING), queue=held), "t", 9)
    assert change is not None
    assert change.enqueue is not None
    assert (change.enqueue.reserved_until, change.enqueue.reserved_by) == (NOW + 9, "s1")
    assert held.reserved_until == NOW
    assert claim.keep(locked(a_run(runs.PENDING), queue=held), "other", 9) is None
    assert claim.keep(locked(a_run(runs.PENDING), queue=a_place()), "t", 9) is None
    assert claim.keep(locked(a_run(runs.RUNNING)), "t", 9) is None
