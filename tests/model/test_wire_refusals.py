"""What a worker may not ask for, because the run would then be nowhere, or could not be shown: each by its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.model.build import change_of

from ironflow.errors import InvalidInput
from ironflow.model import fold
from ironflow.model import journal as j
from ironflow.model.journal import Event
from ironflow.model.moment import LATEST_MS
from ironflow.model.transition import Transition

ESCAPE = "\x1b]0;title\x07"
SLEEPS: dict[str, Any] = {
    "state": "sleeping",
    "release": True,
    "facts": 0,
    "waits": [["main/t1", "timer", "sleeping", 5]],
    "events": [[3, "run_suspended", None, '{"state":"sleeping","due":5}', 1]],
}
FAILS: dict[str, Any] = {"state": "failed", "ended": True, "release": True}
TAKEN: dict[str, Any] = {
    "guard": "queued", "seq": 0, "reservation": "r", "dequeue": True, "state": "running", "new_seq": 1, "lease": True,
    "new_token": "t", "facts": 0, "events": [[2, "run_started", None, '{"t":1,"worker":"w"}', 1]],
}  # fmt: skip

#: Back into the queue, with another attempt to come.
RETRIES: dict[str, Any] = {
    "state": "retrying", "release": True, "enqueue": {"eligible_at": 9},
    "changes": {"attempt": 2, "retry_count": 1}, "events": [[3, "run_retrying", None, '{"t":1,"mode":"resume"}', 1]],
}  # fmt: skip
RESTARTS = {**RETRIES, "events": [[3, "run_retrying", None, '{"t":1,"mode":"restart"}', 1]]}
#: It has failed, and is undone first.
UNDOES: dict[str, Any] = {
    "state": "cancelling", "changes": {"compensating_for": "failed"},
    "events": [[3, "run_compensating", None, '{"error":{}}', 1]],
}  # fmt: skip
DONE: dict[str, Any] = {"state": "completed", "ended": True, "release": True}
WARNED = [[3, "warning", "main/n1", "{}", 1], [4, "run_succeeded", None, "{}", 1]]
RESUMED = [[2, "run_resumed", None, '{"cancelling":true}', 1]]


def change(**item: Any) -> Transition:
    owner = {"run_id": "r", "guard": "owner", "seq": 1, "token": "t"}
    return change_of({**owner, **item})


def event(kind: str, payload: str | None, step_id: str | None = None) -> dict[str, Any]:
    return {"events": [[3, kind, step_id, payload, 1]]}


def test_what_a_worker_may_ask_for_is_taken() -> None:
    assert change(**SLEEPS).state == "sleeping"
    failed = event("run_failed", '{"t":1,"error":{"type":"E","message":"m"},"failed_steps":["a"]}')
    assert change(**FAILS, **failed).ended
    taken = {**TAKEN}
    assert change_of({"run_id": "r", **taken}).lease is not None
    assert change(**RETRIES).enqueue is not None
    assert change(**{**RESTARTS, "changes": {**RETRIES["changes"], "warnings": 0, "compensations": 0}}).release
    assert change(**UNDOES).state == "cancelling"
    assert change(**{**TAKEN, "state": "cancelling", "events": RESUMED, "token": None}).lease is not None
    assert change(**{**DONE, "state": "warning"}, changes={"warnings": 1}, events=WARNED).ended
    assert change(**{**DONE, "state": "warning"}, **event("run_succeeded", "{}")).ended, "its row knows of warnings"
    assert change(**event("status_set", '{"text":"x"}'), changes={"status_text": "x"}).changes
    deep = "[" * 198 + "]" * 198
    assert change(**event("step_completed", f'{{"t":1,"result":{deep}}}', "a")).events[0].payload is not None


@pytest.mark.parametrize(
    ("item", "place"),
    [
        ({**SLEEPS, "waits": []}, "`waits` go together"),
        ({"waits": SLEEPS["waits"]}, "`waits` go together"),
        ({**SLEEPS, "waits": [["a", "timer", "sleeping", None]]}, r"waits\[0\]\.due_at must be there"),
        ({**SLEEPS, "waits": [["a", "timer", "waiting", None]]}, r"waits\[0\]\.due_at must be there"),
        ({**SLEEPS, "waits": [["a", "banana", "sleeping", 5]]}, r"waits\[0\]\.kind must be one of timer"),
        ({**SLEEPS, "waits": [["a", [], "sleeping", 5]]}, r"waits\[0\]\.kind must be one of"),
        ({**SLEEPS, "waits": [["a", "timer", "awaiting_approval", 5]]}, "a wait cannot begin as 'awaiting_approval'"),
        ({**SLEEPS, "waits": [["a", "timer", [], 5]]}, "a wait cannot begin as"),
        ({**SLEEPS, "waits": [["a", "timer", "sleeping", LATEST_MS + 1]]}, r"waits\[0\]\.due_at"),
        ({**SLEEPS, "waits": [[ESCAPE, "timer", "sleeping", 1]]}, r"waits\[0\]\.step_id"),
        ({**SLEEPS, "events": []}, "must be run_suspended"),
        ({**SLEEPS, **event("run_suspended", "{}")}, r"events\[0\]\.payload: run_suspended must have state"),
        ({**SLEEPS, **event("run_suspended", '{"state":"waiting"}')}, r"events\[0\]\.payload\.state"),
        ({**SLEEPS, **event("run_suspended", '{"state":"sleeping","due":"x"}')}, r"events\[0\]\.payload\.due"),
        ({"state": "completed", "ended": True, "release": True}, "must be run_succeeded"),
        ({**FAILS, **event("run_cancelled", "{}")}, "must be run_failed"),
        (event("run_succeeded", '{"output":1}'), r"events\[0\] is run_succeeded"),
        ({**FAILS, **event("run_failed", "{}")}, "must have error"),
        ({**FAILS, **event("run_failed", '{"error":5}')}, r"payload\.error"),
        ({**FAILS, **event("run_failed", '{"error":{"message":7}}')}, r"payload\.error"),
        ({**FAILS, **event("run_failed", '{"error":{},"failed_steps":7}')}, r"payload\.failed_steps"),
        ({**FAILS, **event("run_failed", '{"error":{},"undo_errors":{"a":1}}')}, r"payload\.undo_errors"),
        ({"events": [[3, "step_started", "a", "{}", 77]]}, r"events\[0\] has the execution_seq 77"),
        ({"events": [[3, "step_started", "a", "{}", 1], [5, "step_started", "b", "{}", 1]]}, r"events\[1\] .* seq 5"),
        (event("step_started", "{}"), "must name its step"),
        (event("step_started", "{}", ESCAPE), r"events\[0\]\.step_id"),
        (event("step_started", '{"try":"x"}', "a"), r"payload\.try"),
        (event("step_started", "{garbage}", "a"), r"events\[0\]\.payload must be the text of a JSON object"),
        (event("step_started", "", "a"), r"events\[0\]\.payload must be the text of a JSON object"),
        (event("step_started", "[]", "a"), "no JSON object"),
        (event("step_completed", '{"result":NaN}', "a"), "NaN is no number"),
        (event("step_completed", '{"result":1e999}', "a"), "too large"),
        (event("step_completed", f'{{"result":{"9" * 5_000}}}', "a"), "digits"),
        (event("step_completed", f'{{"result":{"[" * 5_000}{"]" * 5_000}}}', "a"), "nested more than 200"),
        (event("step_completed", f'{{"result":{"[" * 200}{"]" * 200}}}', "a"), "nested more than 200"),
        (event("step_completed", '{"t":"x"}', "a"), r"payload\.t"),
        (event("timer_started", f'{{"due":{(1 << 53) - 1}}}', "a"), r"payload\.due"),
        ({"state": "pending", "release": True, "enqueue": {"eligible_at": LATEST_MS + 1},
          **event("run_released", '{"t":1}')}, r"enqueue\.eligible_at"),
        ({**TAKEN, "events": []}, "must be run_resumed or run_started"),
        # ---- the same wait twice, waits that nobody could be told of, a field that is none
        ({**SLEEPS, "waits": SLEEPS["waits"] * 2}, r"waits\[1\]\.step_id is that of an earlier one"),
        ({**SLEEPS, "facts": None}, "`facts`"),
        ({**TAKEN, "facts": None}, "`facts`"),
        ({**RETRIES, "enqueue": {"eligible_at": 9, "route": "x"}}, "`enqueue` has no field 'route'"),
        # ---- two stories
        (event("run_resumed", "{}"), r"events\[0\] is run_resumed: it is the first event of a change that takes"),
        ({**TAKEN, "events": TAKEN["events"] + [[3, "run_resumed", None, "{}", 1]]}, r"events\[1\] is run_resumed"),
        ({"state": "cancelling"}, "no event of this change says that the run is cancelling"),
        ({**TAKEN, "state": "cancelling"}, "no event of this change says that the run is cancelling"),
        ({**TAKEN, "events": RESUMED}, "run_resumed with cancelling goes with one of the states"),
        ({**UNDOES, "state": None}, "run_compensating goes with one of the states"),
        ({**UNDOES, "changes": None}, r"run_compensating goes with changes\.compensating_for"),
        ({**DONE, "changes": {"warnings": 1}, "events": WARNED}, "ends in the state warning"),
        ({**DONE, "state": "warning", "events": WARNED}, r"warning goes with changes\.warnings"),
        ({**DONE, "state": "warning", "changes": {"warnings": 0}, "events": WARNED}, r"changes\.warnings is 0"),
        (event("compensation_registered", "{}", "a"), r"goes with changes\.compensations"),
        ({**RETRIES, "changes": {"attempt": 2}}, r"goes with changes\.retry_count"),
        (RESTARTS, r"goes with changes\.compensations"),
        ({**RESTARTS, "changes": {**RETRIES["changes"], "warnings": 0, "compensations": 1}}, "0 after a restart"),
        ({**RETRIES, "changes": {"attempt": 2, "retry_count": 1, "warnings": 0}}, "goes with an event warning"),
        ({**RETRIES, "changes": {"attempt": (1 << 53) - 1, "retry_count": 1}}, "attempt must be at most"),
        *[({"changes": {name: value}, **event("step_started", "{}", "a")}, f"changes.{name} goes with an event")
          for name, value in {"attempt": 7, "compensating_for": "failed", "compensations": 1, "reason": "x",
                              "resume_state": "pending", "retry_count": 1, "status_text": "x", "warnings": 1}.items()],
    ],
)  # fmt: skip
def test_a_change_that_would_lose_a_run_or_make_it_unreadable_is_refused(item: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidInput, match=place):
        change(**item)


@pytest.mark.parametrize(
    "payload",
    ["{garbage}", "7", '{"state":7}', '{"error":5}', '{"undo_errors":{"a":1}}', '{"due":"x","try":[]}', "[" * 5_000],
)
@pytest.mark.parametrize("kind", sorted(j.KINDS))
def test_a_journal_that_holds_what_is_refused_today_is_read_all_the_same(kind: str, payload: str) -> None:
    events = [
        Event(1, j.RUN_CREATED, None, '{"input":1}'),
        Event(2, j.STEP_STARTED, "a", "{}"),
        Event(3, kind, "a", payload),
        Event(4, j.RUN_FAILED, None, payload),
    ]
    view = fold.fold(events)
    assert view.state == "failed"
    assert view.breaches
    assert isinstance(view.error, dict | None)
    assert json.dumps([one.told() for one in events])
