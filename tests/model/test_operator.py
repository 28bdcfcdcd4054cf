"""What a person may do to a run, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.model.build import NOW, a_lease, a_place, a_run, locked

from ironflow.errors import InvalidTransition
from ironflow.model import journal as j
from ironflow.model import operator, recovery
from ironflow.model import run as runs
from ironflow.model.capacity import DELAYED
from ironflow.model.recovery import RecoveryPolicy
from ironflow.model.transition import Locked
from ironflow.model.wait import SLEEPING, TIMER, WaitRow

LIVE = sorted(runs.STATES - runs.TERMINAL)


@pytest.mark.parametrize("state", [state for state in LIVE if state != runs.CANCELLING])
def test_cancel_ends_any_live_run_and_fences_its_owner_off(state: str) -> None:
    lease = a_lease() if state == runs.RUNNING else None
    queue = a_place() if state in runs.QUEUED else None
    change = operator.cancel(locked(a_run(state), lease=lease, queue=queue), "ann")
    assert change is not None
    assert (change.state, change.ended, change.new_execution_seq) == (runs.CANCELLED, True, 4)
    assert [event.kind for event in change.events] == [j.CANCEL_REQUESTED, j.RUN_CANCELLED]
    assert (change.release, change.dequeue, change.clear_waits) == (lease is not None, queue is not None, True)
    assert [entry.action for entry in change.audit] == ["run.cancel"]


def test_g35_cancel_lets_a_run_with_compensations_undo_them_first() -> None:
    change = operator.cancel(locked(a_run(compensations=2), lease=a_lease()), "ann")
    assert change is not None
    assert (change.state, change.ended) == (runs.CANCELLING, False)
    assert [event.kind for event in change.events] == [j.CANCEL_REQUESTED]
    assert change.enqueue is not None
    assert change.enqueue.execution_seq == change.new_execution_seq
    assert change.changes == {"compensating_for": runs.CANCELLED, "resume_state": None, "reason": None}


def test_force_skips_the_compensations_also_of_a_run_that_runs_them() -> None:
    for state in (runs.RUNNING, runs.CANCELLING):
        change = operator.cancel(locked(a_run(state, compensations=2)), "ann", force=True)
        assert change is not None
        assert change.state == runs.CANCELLED


def test_cancelling_twice_changes_nothing() -> None:
    for state in (runs.CANCELLED, runs.CANCELLING):
        assert operator.cancel(locked(a_run(state)), "ann") is None


@pytest.mark.parametrize("state", [runs.COMPLETED, runs.WARNING, runs.FAILED])
def test_a_run_that_has_ended_cannot_be_cancelled(state: str) -> None:
    with pytest.raises(InvalidTransition, match=f"has ended as {state}"):
        operator.cancel(locked(a_run(state)), "ann")


@pytest.mark.parametrize("state", LIVE)
def test_pause_holds_a_live_run_and_remembers_where_it_was(state: str) -> None:
    view = locked(a_run(state), lease=a_lease() if state == runs.RUNNING else None)
    if state == runs.PAUSED:
        assert operator.pause(view, "ann") is None
    elif state == runs.CANCELLING:
        with pytest.raises(InvalidTransition):
            operator.pause(view, "ann")
    else:
        change = operator.pause(view, "ann")
        assert change is not None
        back = runs.PENDING if state == runs.RUNNING else state
        assert change.changes == {"resume_state": back, "reason": "PAUSED_BY_OPERATOR"}
        assert (change.state, change.new_execution_seq, change.clear_waits) == (runs.PAUSED, 4, False)


@pytest.mark.parametrize("state", sorted(runs.TERMINAL))
def test_a_run_that_has_ended_cannot_be_paused_or_resumed(state: str) -> None:
    with pytest.raises(InvalidTransition):
        operator.pause(locked(a_run(state)), "ann")
    with pytest.raises(InvalidTransition, match="only a paused run"):
        operator.resume(locked(a_run(state)), "ann")


def test_a_child_is_paused_and_resumed_by_its_root_only() -> None:
    for act, state in ((operator.pause, runs.RUNNING), (operator.resume, runs.PAUSED)):
        with pytest.raises(InvalidTransition, match="root r"):
            act(locked(a_run(state, parent_run_id="p")), "ann")


def test_resume_queues_what_executed_and_leaves_asleep_what_slept() -> None:
    wait = WaitRow("r", "main/t1", TIMER, SLEEPING, NOW + 5)
    asleep = operator.resume(locked(a_run(runs.PAUSED, resume_state=runs.SLEEPING), waits=[wait]), "ann")
    assert (asleep.state, asleep.enqueue) == (runs.SLEEPING, None)
    queued = operator.resume(locked(a_run(runs.PAUSED, resume_state=runs.PENDING)), "ann")
    assert queued.state == runs.PENDING
    assert queued.enqueue is not None
    assert queued.enqueue.eligible_at == NOW


@pytest.mark.parametrize("state", sorted(runs.QUEUED))
def test_what_was_not_due_yet_is_due_at_the_same_time_behind_a_pause(state: str) -> None:
    held = operator.pause(locked(a_run(state), queue=a_place(status=DELAYED, eligible_at=NOW + 7)), "ann")
    assert held is not None
    assert [wait.due_at for wait in held.waits] == [NOW + 7]
    paused = locked(a_run(runs.PAUSED, resume_state=state), waits=list(held.waits))
    change = operator.resume(paused, "ann")
    assert (change.state, change.clear_waits) == (state, True)
    assert change.enqueue is not None
    assert change.enqueue.eligible_at == NOW + 7
    paused.now = NOW + 9
    late = operator.resume(paused, "ann")
    assert late.enqueue is not None
    assert late.enqueue.eligible_at == NOW + 9


def test_what_was_due_leaves_nothing_behind_for_its_pause() -> None:
    change = operator.pause(locked(a_run(runs.RETRYING), queue=a_place(eligible_at=NOW)), "ann")
    assert change is not None
    assert change.waits == ()


def test_resume_queues_a_sleeper_whose_waits_are_gone() -> None:
    change = operator.resume(locked(a_run(runs.PAUSED, resume_state=runs.SLEEPING)), "ann")
    assert change.state == runs.PENDING
    assert change.enqueue is not None


@pytest.mark.parametrize("state", [runs.FAILED, runs.CANCELLED])
def test_reopen_begins_the_next_epoch_with_the_failed_steps_named(state: str) -> None:
    change = operator.reopen(locked(a_run(state, epoch=2, attempt=3)), "ann", ["main/1:pay"])
    assert change.state == runs.PENDING
    assert change.changes is not None
    assert (change.changes["epoch"], change.changes["attempt"]) == (3, 4)
    assert change.events[0].data() == {"by": "ann", "mode": "resume", "failed_steps": ["main/1:pay"]}
    assert change.enqueue is not None


def test_a_run_that_undid_its_work_can_only_be_restarted() -> None:
    undone = a_run(runs.FAILED, compensating_for=runs.FAILED)
    with pytest.raises(InvalidTransition, match="undone"):
        operator.reopen(locked(undone), "ann", ["main/1:ship"])
    change = operator.reopen(locked(undone), "ann", ["main/1:ship"], restart=True)
    assert change.events[0].data() == {"by": "ann", "mode": "restart"}


def test_a_reopened_run_gets_as_much_time_as_it_had() -> None:
    begun = a_run(runs.FAILED)
    change = operator.reopen(locked(a_run(runs.FAILED, deadline_at=begun.created_at + 7_000)), "ann", [])
    assert change.changes is not None
    assert change.changes["deadline_at"] == NOW + 7_000
    unlimited = operator.reopen(locked(a_run(runs.FAILED)), "ann", [])
    assert unlimited.changes is not None
    assert unlimited.changes["deadline_at"] is None


@pytest.mark.parametrize("state", sorted(runs.STATES - {runs.FAILED, runs.CANCELLED}))
def test_only_a_failed_or_cancelled_run_can_be_reopened(state: str) -> None:
    with pytest.raises(InvalidTransition):
        operator.reopen(locked(a_run(state)), "ann", [])


#: How a worker knows a run that it has: its fence, and the hash of its token.
HELD = (3, "hash")


def owned(state: str = runs.RUNNING, **lease: Any) -> Locked:
    """A run whose lease is alive, unless `lease` says otherwise."""
    return locked(a_run(state, lease_token_hash="hash"), lease=a_lease(**{"expires_at": NOW + 1, **lease}))


def test_release_gives_a_run_back_at_once_and_counts_no_recovery() -> None:
    change = operator.release(owned(), "s1", HELD)
    assert change is not None
    assert (change.state, change.new_execution_seq, change.release, change.changes) == ("pending", 4, True, None)
    assert [event.kind for event in change.events] == [j.RUN_RELEASED]
    cancelling = operator.release(owned(runs.CANCELLING), "s1", HELD)
    assert cancelling is not None
    assert cancelling.state is None


def test_release_touches_only_what_the_session_holds() -> None:
    assert operator.release(owned(), "s2", HELD) is None
    assert operator.release(locked(a_run(lease_token_hash="hash")), "s1", HELD) is None
    assert operator.release(owned(runs.PAUSED), "s1", HELD) is None


@pytest.mark.parametrize("held", [None, (2, "hash"), (3, "other")])
def test_release_touches_only_what_is_held_under_the_same_fence(held: tuple[int, str] | None) -> None:
    assert operator.release(owned(), "s1", held) is None


def test_a_lease_that_ran_out_is_released_by_nobody_but_the_parent_of_a_process_that_has_ended() -> None:
    late = owned(expires_at=NOW)
    assert operator.release(late, "s1", HELD) is None
    assert operator.give_back(late, "s2") is None
    change = operator.give_back(late, "s1")
    assert change is not None
    assert (change.state, change.release, change.changes) == ("pending", True, None)


def test_whatever_takes_a_run_away_begins_with_what_the_reference_calls_a_change_of_owner() -> None:
    held, policy = locked(a_run(), lease=a_lease()), RecoveryPolicy()
    for change in (
        operator.cancel(held, "ann"), operator.pause(held, "ann"), operator.give_back(held, "s1"),
        operator.reopen(locked(a_run(runs.FAILED)), "ann", []), recovery.expired_lease(held, policy),
    ):  # fmt: skip
        assert change is not None
        assert (change.new_execution_seq, change.events[0].kind in j.OWNER_KINDS) == (4, True), change
