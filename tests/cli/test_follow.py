"""What is shown while a run is under way is what its journal says, also where it takes a turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ironflow.cli.follow import Progress
from ironflow.model import journal as j
from ironflow.model.fold import fold
from ironflow.model.journal import Event

PAY = "main/1:pay"
BEGIN: list[tuple[Any, ...]] = [(j.RUN_CREATED, None, {}), (j.RUN_STARTED, None, {})]
STARTED, DONE = (j.STEP_STARTED, PAY, {}), (j.STEP_COMPLETED, PAY, {"result": 1})


def watched(*entries: tuple[Any, ...]) -> Progress:
    progress = Progress()
    events = [
        Event(n, kind, *(rest[:1] or (None,)), json.dumps(rest[1]) if len(rest) > 1 else None, 1, 100 + n)
        for n, (kind, *rest) in enumerate([*BEGIN, *entries], 1)
    ]
    for event in events:
        progress.feed(event)
    assert progress.view == fold(events)
    return progress


@pytest.mark.parametrize(
    "owner", [(j.RUN_RECOVERED,), (j.RUN_RELEASED,), (j.RUN_RESUMED, None, {"cancelling": True})]
)
def test_a_run_that_is_being_undone_is_shown_so_whoever_owns_it(owner: tuple[Any, ...]) -> None:
    assert watched((j.CANCEL_REQUESTED, None, {"compensate": True}), owner).state == "cancelling"
    assert watched((j.RUN_COMPENSATING, None, {"error": {}}), owner).state == "cancelling"


def test_a_restart_forgets_the_warnings_of_the_attempt_before() -> None:
    again = (j.RUN_RETRYING, None, {"mode": "restart"})
    assert watched((j.WARNING,), again, (j.RUN_RESUMED,), (j.RUN_SUCCEEDED, None, {})).state == "completed"


def test_a_step_that_a_restart_executes_again_is_not_counted_twice() -> None:
    again = (j.RUN_RETRYING, None, {"mode": "restart"})
    progress = watched(STARTED, DONE, again, (j.RUN_RESUMED,), STARTED, DONE)
    assert progress.view.tally["completed"] == 1


def test_what_is_under_way_is_what_executes_or_waits_for_its_next_try() -> None:
    failed = (j.STEP_RETRYING, PAY, {"due": 900})
    assert [(s.name, s.due_at) for s in watched(STARTED, failed).under_way()] == [("pay", 900)]
    assert watched(STARTED, failed).retries == 1
    assert watched(STARTED, (j.RUN_PAUSED,)).under_way() == []
    assert [s.try_no for s in watched(STARTED, failed, (j.STEP_STARTED, PAY, {"try": 2})).under_way()] == [2]


def test_a_run_that_was_opened_again_has_not_ended() -> None:
    over = (j.RUN_FAILED, None, {"error": {}})
    assert watched(over).ended
    assert not watched(over, (j.RUN_REOPENED,)).ended
