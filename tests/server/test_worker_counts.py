"""What a worker says of its run's row and cannot know better than that: its counts, and that somebody cancelled it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.recovery.kit import row
from tests.server.kit import Served, Speaker

from ironflow.engine import doctor
from ironflow.model.capacity import RunHead


def item(head: RunHead, seq: int, *events: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    told = [
        [seq + index, kind, f"main/n{seq + index}" if kind in ("warning", "compensation_registered") else None,
         json.dumps(data), head.execution_seq]
        for index, (kind, data) in enumerate(events)
    ]  # fmt: skip
    owner = {"run_id": head.run_id, "guard": "owner", "seq": head.execution_seq, "token": "token"}
    return {**owner, "events": told, **more}


async def refused(worker: Speaker, asked: dict[str, Any], words: str) -> None:
    [answer] = await worker.transitions(asked)
    assert answer["error"]["code"] == "INVALID_INPUT", answer
    assert words in answer["error"]["message"]


WARNS = ("warning", {"message": "a"})
NOTES = ("compensation_registered", {})


@pytest.mark.parametrize(("name", "event"), [("warnings", WARNS), ("compensations", NOTES)])
async def test_a_count_of_events_rises_by_those_that_are_there(here: Served, name: str, event: Any) -> None:
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    await refused(worker, item(head, 3, event, changes={name: 7}), f"changes.{name} is 7: the run has 0")
    assert await worker.transitions(item(head, 3, event, event, changes={name: 2})) == ["applied"]
    both = [item(head, 5, event, changes={name: 3}), item(head, 6, event, changes={name: 4})]
    assert await worker.transitions(*both) == ["applied", "applied"]
    await refused(worker, item(head, 7, event, changes={name: 6}), "make that 5")
    # One that is sent in parts, of which the last one forgets all of them, does not know how many there were.
    assert await worker.transitions(item(head, 7, event, changes={name: 1})) == ["applied"]
    assert getattr(await row(here.store, run.run_id), name) == 5
    assert await doctor.examine(here.store, health=False) == []


async def test_a_run_that_is_tried_again_counts_one_more(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    told = {"t": 1, "attempt": 1, "of": 3, "due": 5, "mode": "restart", "error": {"type": "x", "message": "m"}}
    leaves = {"state": "retrying", "release": True, "enqueue": {"eligible_at": 5}}
    none = {"warnings": 0, "compensations": 0}
    assert await worker.transitions(item(head, 3, WARNS, changes={"warnings": 1})) == ["applied"]
    for attempt, retry_count in ((40, 1), (2, 2), (1, 1)):
        wrong = {"attempt": attempt, "retry_count": retry_count, **none}
        await refused(worker, item(head, 4, ("run_retrying", told), **leaves, changes=wrong), "the run has")
    right = {"attempt": 2, "retry_count": 1, **none}
    assert await worker.transitions(item(head, 4, ("run_retrying", told), **leaves, changes=right)) == ["applied"]
    found = await row(here.store, run.run_id)
    assert (found.attempt, found.retry_count, found.warnings) == (2, 1, 0)


async def test_who_is_no_owner_is_told_that_and_not_how_much_there_is(here: Served) -> None:
    worker = await here.worker()
    await here.start()
    head = await worker.took()
    asked = item(head, 3, WARNS, changes={"warnings": 7})
    assert await worker.transitions({**asked, "token": "another"}) == ["stale"]


ERROR = {"error": {"type": "x", "message": "m"}}
ENDS: dict[str, Any] = {"state": "cancelled", "ended": True, "release": True}


async def test_a_worker_cannot_cancel_a_run_that_nobody_asked_to_cancel(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    await refused(worker, item(head, 3, ("run_cancelled", {"t": 1}), **ENDS), "nobody has asked for an end of run")
    undone = {"state": "cancelling", "changes": {"compensating_for": "cancelled"}}
    await refused(worker, item(head, 3, ("run_compensating", ERROR), **undone), "cannot be 'cancelled'")
    undone["changes"] = {"compensating_for": "failed"}
    assert await worker.transitions(item(head, 3, ("run_compensating", ERROR), **undone)) == ["applied"]
    await refused(worker, item(head, 4, ("run_cancelled", {"t": 1}), **ENDS), "nobody has asked for an end of run")
    failed = {**ENDS, "state": "failed"}
    assert await worker.transitions(item(head, 4, ("run_failed", {"t": 1, **ERROR}), **failed)) == ["applied"]
    assert (await row(here.store, run.run_id)).state == "failed"


async def test_a_worker_that_takes_a_run_cannot_cancel_it_with_that(here: Served) -> None:
    worker = await here.worker()
    await here.start()
    [head] = await worker.poll(1, 2_000)
    asked = {
        "run_id": head.run_id, "guard": "queued", "seq": 0, "facts": head.facts, "reservation": head.reservation,
        "dequeue": True, "new_seq": 1, "state": "cancelled", "ended": True,
        "events": [[2, "run_started", None, '{"t":1,"worker":"w"}', 1], [3, "run_cancelled", None, '{"t":1}', 1]],
    }  # fmt: skip
    await refused(worker, asked, "nobody has asked for an end of run")
