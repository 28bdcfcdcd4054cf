"""Recovery decisions: fenced, counted, limited; and what is left alone."""

from __future__ import annotations

import pytest
from tests.model.build import NOW, a_lease, a_place, a_run, locked

from ironflow.codec.exceptions import decode_error
from ironflow.errors import ExecutionRecoveryExhausted, LeaseExpired, RunTimeout
from ironflow.model import journal as j
from ironflow.model import recovery
from ironflow.model import run as runs
from ironflow.model.capacity import READY, RESERVED
from ironflow.model.recovery import RecoveryPolicy
from ironflow.model.transition import Transition
from ironflow.model.wait import SLEEPING, TIMER, WaitRow

POLICY = RecoveryPolicy(ceiling=10, grace_ms=250)


def changes(change: Transition | None) -> dict[str, int]:
    assert change is not None
    return change.changes or {}


def test_an_expired_lease_is_released_fenced_and_queued_again_after_the_grace() -> None:
    change = recovery.expired_lease(locked(a_run(), lease=a_lease()), POLICY)
    assert change is not None
    assert (change.release, change.state, change.new_execution_seq) == (True, runs.PENDING, 4)
    assert change.enqueue is not None
    assert (change.enqueue.execution_seq, change.enqueue.eligible_at) == (4, NOW + 250)
    assert change.enqueue.enqueued_at == NOW - 50_000  # its age counts from its creation
    assert [event.kind for event in change.events] == [j.RUN_RECOVERED]
    assert [entry.action for entry in change.audit] == ["capacity.lease.expired", "capacity.segment.recovered"]


def test_a_lease_that_was_renewed_meanwhile_wins() -> None:
    assert recovery.expired_lease(locked(a_run(), lease=a_lease(expires_at=NOW + 1)), POLICY) is None
    assert recovery.expired_lease(locked(a_run()), POLICY) is None


def test_only_the_session_in_question_loses_its_lease() -> None:
    view = locked(a_run(), lease=a_lease())
    assert recovery.expired_lease(view, POLICY, session="s2") is None
    assert recovery.expired_lease(view, POLICY, session="s1") is not None


@pytest.mark.parametrize("state", sorted(runs.STATES - runs.OWNED))
def test_a_lease_left_behind_by_a_paused_or_ended_run_is_only_freed(state: str) -> None:
    change = recovery.expired_lease(locked(a_run(state), lease=a_lease()), POLICY)
    assert change is not None
    assert (change.release, change.state, change.events, change.enqueue) == (True, None, [], None)


def test_a_run_that_is_undone_stays_cancelling_when_its_owner_is_lost() -> None:
    change = recovery.expired_lease(locked(a_run(runs.CANCELLING), lease=a_lease()), POLICY)
    assert change is not None
    assert (change.state, change.new_execution_seq) == (None, 4)
    assert change.enqueue is not None


@pytest.mark.parametrize(("executing", "charged"), [(None, 1), (0, 0), (3, 1)])
def test_a_loss_is_charged_where_something_executed_or_nobody_knows(executing: int | None, charged: int) -> None:
    row = a_run(lease_recoveries=5, consecutive_recoveries=2, charged_recoveries=2)
    change = recovery.expired_lease(locked(row, lease=a_lease(executing=executing)), POLICY)
    assert changes(change) == {
        "lease_recoveries": 6,
        "consecutive_recoveries": 2 + charged,
        "charged_recoveries": 2 + charged,
    }


def test_ten_losses_in_a_row_are_allowed_and_the_eleventh_fails_the_run() -> None:
    tenth = recovery.expired_lease(locked(a_run(consecutive_recoveries=9), lease=a_lease()), POLICY)
    assert tenth is not None
    assert tenth.state == runs.PENDING
    last = recovery.expired_lease(locked(a_run(consecutive_recoveries=10), lease=a_lease()), POLICY)
    assert last is not None
    assert (last.state, last.ended, last.enqueue) == (runs.FAILED, True, None)
    assert last.changes is not None
    assert last.changes["reason"] == "EXECUTION_RECOVERY_EXHAUSTED"
    assert [event.kind for event in last.events] == [j.RUN_RECOVERED, j.RUN_FAILED]
    assert isinstance(decode_error(last.events[1].data()["error"]), ExecutionRecoveryExhausted)


def test_a_loss_that_is_not_charged_never_exhausts_the_run() -> None:
    view = locked(a_run(consecutive_recoveries=10), lease=a_lease(executing=0))
    change = recovery.expired_lease(view, POLICY)
    assert change is not None
    assert change.state == runs.PENDING


@pytest.mark.parametrize(("limit", "before", "fails"), [(0, 0, True), (2, 1, False), (2, 2, True), (None, 9, False)])
def test_a_workflow_may_limit_the_losses_in_all(limit: int | None, before: int, fails: bool) -> None:
    row = a_run(max_recoveries=limit, lease_recoveries=before)
    change = recovery.expired_lease(locked(row, lease=a_lease()), POLICY)
    assert change is not None
    assert (change.state == runs.FAILED) is fails
    if fails:
        error = decode_error(change.events[1].data()["error"])
        assert isinstance(error, LeaseExpired)
        assert "worker lease expired" in str(error)


def test_an_expired_reservation_goes_back_to_its_place_and_uses_no_attempt() -> None:
    held = a_place(status=RESERVED, reserved_by="s1", reserved_until=NOW, reservation_token="t", priority=4)
    change = recovery.expired_reservation(locked(a_run(runs.PENDING), queue=held))
    assert change is not None
    assert (change.dequeue, change.changes, change.events, change.new_execution_seq) == (True, None, [], None)
    assert change.enqueue is not None
    assert (change.enqueue.status, change.enqueue.priority, change.enqueue.reserved_by) == (READY, 4, None)
    assert change.enqueue.enqueued_at == held.enqueued_at


def test_a_reservation_that_holds_or_is_another_s_is_left_alone() -> None:
    held = a_place(status=RESERVED, reserved_by="s1", reserved_until=NOW + 1)
    row = a_run(runs.PENDING)
    assert recovery.expired_reservation(locked(row, queue=held)) is None
    assert recovery.expired_reservation(locked(row, queue=a_place())) is None
    assert recovery.expired_reservation(locked(row)) is None
    held.reserved_until = NOW
    assert recovery.expired_reservation(locked(row, queue=held), "s2") is None
    assert recovery.expired_reservation(locked(row, queue=held), "s1") is not None


@pytest.mark.parametrize("state", sorted(runs.STATES))
def test_a_run_that_says_it_is_owned_or_queued_and_is_not_is_put_back_uncharged(state: str) -> None:
    change = recovery.unowned(locked(a_run(state)), POLICY, NOW)
    if state in runs.OWNED | runs.QUEUED:
        assert change is not None
        assert changes(change)["consecutive_recoveries"] == 0
        assert change.release is False, "there is no lease to be taken away, and none is told to have run out"
        assert [one.action for one in change.audit] == ["capacity.segment.recovered", "invariant.unowned_run"]
    else:
        assert change is None


def test_a_run_that_is_owned_or_young_is_not_taken_for_lost() -> None:
    assert recovery.unowned(locked(a_run(), lease=a_lease()), POLICY, NOW) is None
    assert recovery.unowned(locked(a_run(runs.PENDING), queue=a_place()), POLICY, NOW) is None
    assert recovery.unowned(locked(a_run(started_at=NOW)), POLICY, NOW - 1) is None
    assert recovery.unowned(locked(a_run(started_at=NOW)), POLICY, NOW) is not None


def test_a_death_while_a_run_was_opened_is_charged_although_no_lease_was_lost() -> None:
    held = a_place(status=RESERVED, reserved_by="s1")
    change = recovery.died_opening(locked(a_run(runs.PENDING), queue=held), POLICY, "s1", 3)
    assert change is not None
    assert (changes(change)["consecutive_recoveries"], change.release, change.dequeue) == (1, False, True)
    assert [entry.action for entry in change.audit] == ["capacity.segment.recovered"]
    asleep = recovery.died_opening(locked(a_run(runs.SLEEPING)), POLICY, "s1", 3)
    assert asleep is not None
    assert (asleep.clear_waits, asleep.dequeue, asleep.state) == (True, False, runs.PENDING)


def test_a_run_that_has_moved_since_is_not_charged_for_a_death() -> None:
    row = a_run(runs.PENDING)
    assert recovery.died_opening(locked(row, queue=a_place()), POLICY, "s1", 2) is None
    assert recovery.died_opening(locked(a_run(), lease=a_lease()), POLICY, "s1", 3) is None
    assert recovery.died_opening(locked(a_run(runs.PAUSED)), POLICY, "s1", 3) is None
    assert recovery.died_opening(locked(a_run(runs.PAUSED), queue=a_place()), POLICY, "s1", 3) is None


def test_a_deadline_that_nobody_was_there_to_keep_ends_the_run() -> None:
    for state, queue in ((runs.PENDING, a_place()), (runs.SLEEPING, None)):
        change = recovery.overdue(locked(a_run(state, deadline_at=NOW - 10), queue=queue), NOW)
        assert change is not None
        assert (change.state, change.ended, change.new_execution_seq) == (runs.FAILED, True, 4)
        assert change.dequeue is (queue is not None)
        assert isinstance(decode_error(change.events[0].data()["error"]), RunTimeout)


def test_a_run_that_must_be_undone_is_woken_instead_of_ended() -> None:
    wait = WaitRow("r", "main/t1", TIMER, SLEEPING, NOW)
    row = a_run(runs.SLEEPING, deadline_at=NOW - 10, compensations=1)
    change = recovery.overdue(locked(row, waits=[wait]), NOW)
    assert change is not None
    assert (change.state, change.ended) == (runs.PENDING, False)


def test_a_deadline_is_left_to_whoever_owns_the_run() -> None:
    assert recovery.overdue(locked(a_run(runs.PENDING)), NOW) is None
    assert recovery.overdue(locked(a_run(runs.PENDING, deadline_at=NOW + 1)), NOW) is None
    assert recovery.overdue(locked(a_run(deadline_at=NOW - 10), lease=a_lease()), NOW) is None
    assert recovery.overdue(locked(a_run(runs.PAUSED, deadline_at=NOW - 10)), NOW) is None
