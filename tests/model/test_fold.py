"""`fold`: a journal tells its run, and a journal that claims the impossible is found out without raising."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ironflow.model import journal as j
from ironflow.model.fold import Folded, Folder, fold
from ironflow.model.journal import KINDS, Event, name_of


def journal(*entries: tuple[Any, ...], seq: int = 1) -> list[Event]:
    """(kind, step id, payload) each."""
    return [
        Event(n, kind, *(rest[:1] or (None,)), json.dumps(rest[1]) if len(rest) > 1 else None, seq, 100 + n)
        for n, (kind, *rest) in enumerate(entries, 1)
    ]


S = "main/1:pay"
BEGIN = [(j.RUN_CREATED, None, {"input": 7}), (j.RUN_STARTED, None, {"t": 1})]


def told(*entries: tuple[Any, ...]) -> Folded:
    view = fold(journal(*BEGIN, *entries))
    assert view.breaches == []
    return view


def test_a_run_is_read_back_with_its_input_output_and_steps() -> None:
    view = told((j.STEP_STARTED, S, {}), (j.STEP_COMPLETED, S, {"result": 1}), (j.RUN_SUCCEEDED, None, {"output": 2}))
    assert (view.state, view.input, view.output, view.last_seq) == ("completed", 7, 2, 5)
    assert (view.created_at, view.ended_at, view.ended_in_epoch) == (101, 105, True)
    step = view.steps[S]
    assert (step.name, step.state, step.result, step.try_no) == ("pay", "completed", 1, 1)
    assert (step.tries[0].started_at, step.tries[0].ended_at) == (103, 104)


def test_a_lost_lease_shows_the_try_as_interrupted_and_the_next_at_the_same_number() -> None:
    view = told((j.STEP_STARTED, S, {}), (j.RUN_RECOVERED,), (j.RUN_RESUMED,), (j.STEP_INTERRUPTED, S),
                (j.STEP_STARTED, S, {}), (j.STEP_COMPLETED, S, {}))  # fmt: skip
    assert [(one.number, one.state) for one in view.steps[S].tries] == [(1, "interrupted"), (1, "completed")]
    assert view.steps[S].tries[0].error == {"message": "interrupted: worker lease lost"}
    assert (view.lease_recoveries, view.consecutive_recoveries) == (1, 0)


def test_a_body_that_ran_on_while_its_run_was_paused_was_not_cut_off() -> None:
    held = [(j.STEP_STARTED, S, {}), (j.RUN_PAUSED, None, {"reason": "WHY"}),
            (j.RUN_UNPAUSED, None, {"state": "pending"}), (j.RUN_RESUMED,)]  # fmt: skip
    failed = {"error": {"type": "builtins.ValueError", "message": "x"}, "due": 900}
    for kind, payload, state in (
        (j.STEP_COMPLETED, {"result": 1}, "completed"),
        (j.STEP_RETRYING, failed, "retrying"),
        (j.STEP_FAILED, failed, "failed"),
    ):
        [one] = told(*held, (kind, S, payload)).steps[S].tries
        assert (one.state, one.started_at, one.ended_at, one.error) == (state, 103, 107, payload.get("error"))
    cut_off = {"error": {"type": "ironflow.errors.StepInterrupted", "message": "x"}}
    for kind, payload in ((j.STEP_FAILED, cut_off), (j.STEP_INTERRUPTED, {}), (j.STEP_CANCELLED, {})):
        [one] = told(*held, (kind, S, payload)).steps[S].tries
        assert (one.state, one.ended_at) == ("interrupted", 104)
    again = told(*held, (j.STEP_INTERRUPTED, S), (j.STEP_STARTED, S, {}), (j.STEP_COMPLETED, S, {})).steps[S]
    assert [(one.number, one.state) for one in again.tries] == [(1, "interrupted"), (1, "completed")]


def test_a_lost_lease_changes_nothing_of_a_step_that_had_ended() -> None:
    view = told((j.STEP_STARTED, S, {}), (j.STEP_COMPLETED, S, {}), (j.RUN_RECOVERED,))
    assert view.steps[S].state == "completed"


def test_losses_are_counted_and_charged_ones_in_a_row_until_a_step_completes() -> None:
    lost = [(j.RUN_RECOVERED, None, {"charged": charged}) for charged in (True, False, True)]
    view = told(*lost)
    assert (view.state, view.lease_recoveries, view.consecutive_recoveries) == ("pending", 3, 2)
    view = told(*lost, (j.RUN_RESUMED,), (j.STEP_STARTED, S, {}), (j.STEP_COMPLETED, S, {}))
    assert (view.lease_recoveries, view.consecutive_recoveries) == (3, 0)


def test_tries_follow_one_another_with_their_errors_and_due_times() -> None:
    retrying = (j.STEP_RETRYING, S, {"due": 900, "error": {"message": "x"}})
    view = told((j.STEP_STARTED, S, {}), retrying)
    assert (view.steps[S].state, view.steps[S].due_at, view.steps[S].error) == ("retrying", 900, {"message": "x"})
    view = told((j.STEP_STARTED, S, {}), retrying, (j.STEP_STARTED, S, {"try": 2}), (j.STEP_FAILED, S, {"error": {}}))
    assert [(one.number, one.state) for one in view.steps[S].tries] == [(1, "retrying"), (2, "failed")]
    assert view.steps[S].due_at is None


def test_a_step_that_was_refused_at_its_call_failed_without_a_try() -> None:
    view = told((j.STEP_FAILED, S, {"error": {"message": "lock"}}))
    assert (view.steps[S].state, view.steps[S].tries, view.steps[S].try_no) == ("failed", [], 0)


def test_suspension_pause_and_their_ends_are_seen_in_the_state() -> None:
    asleep = (j.RUN_SUSPENDED, None, {"state": "sleeping"})
    assert told(asleep).state == "sleeping"
    assert told(asleep, (j.RUN_RESUMED,)).state == "running"
    paused = told(asleep, (j.RUN_PAUSED, None, {"reason": "WHY"}))
    assert (paused.state, paused.reason) == ("paused", "WHY")
    lifted = told(asleep, (j.RUN_PAUSED,), (j.RUN_UNPAUSED, None, {"state": "sleeping"}))
    assert (lifted.state, lifted.reason) == ("sleeping", None)
    assert told((j.RUN_RELEASED,)).state == "pending"


def test_attempts_and_epochs_are_counted_apart() -> None:
    view = told((j.RUN_RETRYING, None, {}))
    assert (view.state, view.attempt, view.retry_count, view.epoch) == ("retrying", 2, 1, 1)
    view = told((j.RUN_RETRYING, None, {}), (j.RUN_RESUMED,), (j.RUN_FAILED, None, {"error": {}}), (j.RUN_REOPENED,))
    assert (view.state, view.attempt, view.retry_count, view.epoch) == ("pending", 3, 0, 2)
    assert (view.ended_at, view.error, view.ended_in_epoch) == (None, None, False)


def test_a_restart_forgets_warnings_and_compensations_and_a_resumed_attempt_keeps_them() -> None:
    noted = [(j.WARNING,), (j.COMPENSATION_REGISTERED, "main/n1:undo", {})]
    for mode, count in (("resume", 1), ("restart", 0)):
        view = told(*noted, (j.RUN_RETRYING, None, {"mode": mode}))
        assert (view.warnings, view.compensations) == (count, count)


def test_cancelling_lasts_over_a_change_of_owner() -> None:
    asked = (j.CANCEL_REQUESTED, None, {"compensate": True})
    for owner in ((j.RUN_RECOVERED,), (j.RUN_RELEASED,), (j.RUN_RESUMED, None, {"cancelling": True})):
        assert told(asked, owner).state == "cancelling"
    assert told((j.CANCEL_REQUESTED, None, {}), (j.RUN_CANCELLED,)).state == "cancelled"
    assert told((j.RUN_COMPENSATING, None, {"error": {}})).state == "cancelling"


def test_what_is_open_when_a_run_ends_ends_with_it() -> None:
    other = "main/2:other"
    view = told((j.STEP_STARTED, S, {}), (j.STEP_STARTED, other, {}), (j.STEP_COMPLETED, other, {}),
                (j.RUN_FAILED, None, {"error": {"message": "lease"}}))  # fmt: skip
    assert (view.steps[S].state, view.steps[S].error) == ("cancelled", {"message": "lease"})
    assert view.steps[other].state == "completed"
    assert (view.state, view.error) == ("failed", {"message": "lease"})


def test_notes_show_in_the_view() -> None:
    view = told((j.STATUS_SET, None, {"text": "half"}), (j.WARNING,), (j.STEP_SKIPPED, S, {}),
                (j.VALUE_RECORDED, "main/n1:x", {}), (j.RUN_SUCCEEDED, None, {}))  # fmt: skip
    assert (view.status_text, view.warnings, view.state) == ("half", 1, "warning")
    assert view.steps[S].state == "skipped"


# ---- breaches


def breaches(*entries: tuple[Any, ...]) -> str:
    return "\n".join(text for _, text in fold(journal(*BEGIN, *entries)).breaches)


def test_a_gap_and_a_repeat_are_breaches() -> None:
    events = journal(*BEGIN, (j.WARNING,))
    del events[1]
    [(rule, text)] = fold(events).breaches
    assert (rule, "seq 3 follows 1" in text) == (j.DENSE, True)
    assert fold([events[0], events[0]]).breaches


def test_a_write_by_an_older_owner_is_a_breach() -> None:
    events = journal(*BEGIN, (j.WARNING,))
    events[1].execution_seq = 5
    [(rule, text)] = fold(events).breaches
    assert (rule, "written by execution_seq 1, after 5" in text) == (j.OWNERS_FOLLOW, True)
    assert fold(events).execution_seq == 5


def test_anything_after_the_end_but_a_reopening_is_a_breach() -> None:
    assert "follows the terminal event" in breaches((j.RUN_FAILED, None, {}), (j.RUN_FAILED, None, {}))
    assert breaches((j.RUN_FAILED, None, {}), (j.RUN_REOPENED,), (j.RUN_SUCCEEDED, None, {})) == ""


def test_a_second_end_and_an_impossible_step_break_the_same_rule() -> None:
    for twice in ((j.RUN_FAILED, None, {}), (j.STEP_STARTED, S, {})):
        assert [rule for rule, _ in fold(journal(*BEGIN, twice, twice)).breaches] == [j.FOLDS]
    [(rule, _)] = fold([*journal(*BEGIN), Event(3, j.STATUS_SET, None, "{", 1)]).breaches
    assert rule == j.READABLE


def test_an_impossible_step_is_a_breach() -> None:
    assert "which never started" in breaches((j.STEP_COMPLETED, S, {}))
    twice = breaches((j.STEP_STARTED, S, {}), (j.STEP_STARTED, S, {}))
    assert f"step {S} is running and cannot become running" in twice
    assert breaches((j.STEP_STARTED, S, {}), (j.STEP_COMPLETED, S, {}), (j.STEP_FAILED, S, {}))
    never = ((j.STEP_FAILED, S, {}), (j.STEP_INTERRUPTED, S, {}), (j.STEP_COMPLETED, S, {}))
    assert "failed and cannot become interrupted" in breaches(*never)


def test_of_results_of_one_step_the_oldest_stands_until_a_restart() -> None:
    first = [(j.STEP_STARTED, S, {}), (j.STEP_COMPLETED, S, {"result": 1})]
    later: list[list[tuple[Any, ...]]] = [
        [(j.STEP_COMPLETED, S, {"result": 2})],
        [(j.STEP_STARTED, S, {}), (j.STEP_COMPLETED, S, {"result": 2})],
        [(j.RUN_RETRYING, None, {"mode": "resume"}), (j.RUN_RESUMED,), (j.STEP_COMPLETED, S, {"result": 2})],
        [(j.RUN_RETRYING, None, {"mode": "resume", "failed_steps": [S]}), (j.STEP_STARTED, S, {})],
        [(j.STEP_FAILED, S, {"error": {"message": "x"}})],
        [(j.STEP_INTERRUPTED, S, {})],
    ]
    for more in later:
        view = fold(journal(*BEGIN, *first, *more))
        step = view.steps[S]
        assert (step.state, step.result, step.error, len(step.tries)) == ("completed", 1, None, 1)
        assert {rule for rule, _ in view.breaches} == {j.RESULTS_STAND}
        assert all(f"{S} completed at seq 4 and" in text for _, text in view.breaches)
    for again in ((j.RUN_RETRYING, None, {"mode": "restart"}), (j.RUN_REOPENED, None, {"mode": "restart"})):
        end = [] if again[0] == j.RUN_RETRYING else [(j.RUN_FAILED, None, {"error": {}})]
        view = told(*first, *end, again, (j.STEP_STARTED, S, {}), (j.STEP_COMPLETED, S, {"result": 2}))
        assert (view.steps[S].result, len(view.steps[S].tries)) == (2, 2)


def test_an_unknown_kind_is_passed_over() -> None:
    assert told(("of_a_newer_release", None, {})).last_seq == 3


IDS = st.sampled_from([None, S, "main/2:b"])
DATA = st.fixed_dictionaries({"state": st.sampled_from(["sleeping", "pending"])}, optional={
    "error": st.just({}), "compensate": st.booleans(), "mode": st.just("restart"), "due": st.integers(0, 9),
})  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), IDS, DATA), max_size=30))
def test_no_journal_makes_fold_raise(entries: list[tuple[Any, ...]]) -> None:
    view = fold(journal(*entries))
    assert view.last_seq == len(entries)


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), IDS, DATA), max_size=30))
def test_what_is_open_and_what_is_counted_follow_from_the_steps(entries: list[tuple[Any, ...]]) -> None:
    folder = Folder()
    for event in journal(*entries):
        folder.add(event)
        steps = folder.view.steps.values()
        assert +folder.view.tally == Counter(step.state for step in steps)
        begun = {s.step_id: s for s in steps if s.state in ("running", "retrying", "interrupted")}
        assert folder.view.open == begun
    assert folder.view == fold(journal(*entries))


def test_what_a_run_waits_for_is_known_until_it_moves() -> None:
    asleep = (j.RUN_SUSPENDED, None, {"state": "sleeping", "due": 900})
    assert told(asleep).due_at == 900
    assert told(asleep, (j.RUN_PAUSED,), (j.RUN_UNPAUSED, None, {"state": "sleeping"})).due_at == 900
    assert told((j.RUN_RETRYING, None, {"due": 700})).due_at == 700
    for move in ((j.RUN_RESUMED,), (j.RUN_CANCELLED,), (j.CANCEL_REQUESTED, None, {"compensate": True})):
        assert told(asleep, move).due_at is None


def test_an_open_try_is_told_what_interrupted_it() -> None:
    begun = ((j.RUN_STARTED,), (j.STEP_STARTED, S))
    for move, why in (
        ((j.RUN_RECOVERED,), "worker lease lost"),
        ((j.RUN_RELEASED,), "the worker left"),
        ((j.RUN_PAUSED,), "the run was paused"),
        ((j.CANCEL_REQUESTED, None, {"compensate": True}), "the run was cancelled"),
    ):
        assert told(*begun, move).steps[S].error == {"message": f"interrupted: {why}"}


def test_a_step_s_name_is_what_follows_its_place() -> None:
    assert (name_of("main.1/2:pay:now"), name_of("main/t1")) == ("pay:now", "main/t1")


def test_an_event_shows_what_it_is() -> None:
    assert repr(Event(1, "k", S, "{}", 2)) == f"Event(1, 'k', {S!r}, '{{}}', 2)"
    assert (Event(1, "k").data(), Event(1, "k", None, '{"a": 1}').data()) == ({}, {"a": 1})


def test_every_kind_is_explained_and_terminal_ones_are_kinds() -> None:
    assert set(KINDS) >= j.TERMINAL_KINDS
    assert all(KINDS.values())
