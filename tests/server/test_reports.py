"""What a node makes of reports that come again, come at once, or cannot be stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.server.kit import Refused, Served, append, ending, looked_at, served, taking

from ironflow.engine import commands
from ironflow.errors import StoreError
from ironflow.model import wire
from ironflow.model.run import SLEEPING
from ironflow.store import connect

#: Far longer than any of these questions takes, seconds.
FOR_EVER_S = 10.0


async def test_what_was_under_way_at_a_dead_node_is_looked_up_all_at_once(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, each run that the worker was taking there would wait for all before it."""
    worker = await here.worker()
    for _ in range(5):
        await here.start()
    takes = [wire.item_of(taking(head, f"token-{n}")) for n, head in enumerate(await worker.poll(5))]
    assert await worker.transitions(*takes[:3]) == ["applied"] * 3

    looks = looked_at(here, monkeypatch, "standings")
    again = [{**take, "again": True} for take in takes]
    assert await worker.transitions(*again) == ["applied"] * 5
    assert looks == [5]
    assert {lease.run_id for lease in await here.store.leases()} == {take["run_id"] for take in takes}


async def test_g13_who_was_away_while_others_took_over_does_not_begin_what_it_had_asked_for_before(
    here: Served,
) -> None:
    """Its answer was lost, and when it asks again the run has gone on elsewhere: it must not execute that step too."""
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    step = wire.item_of(append(head, 3))
    assert await worker.transitions(step) == ["applied"]
    assert await worker.transitions({**step, "again": True}) == ["applied"]
    await here.node.scanner.session_died(worker.session_id)
    assert await worker.transitions({**step, "again": True}) == ["stale"]
    kinds = [event.kind for event in await here.store.journal(run.run_id)]
    assert kinds == ["run_created", "run_started", "step_completed", "run_recovered"]


async def test_who_had_ended_a_run_before_it_was_away_is_told_so(here: Served) -> None:
    worker = await here.worker()
    await here.start()
    head = await worker.took()
    end = wire.item_of(ending(head, 3))
    assert await worker.transitions(end) == ["applied"]
    await here.node.scanner.session_died(worker.session_id)
    assert await worker.transitions({**end, "again": True}) == ["applied"]


async def test_who_put_a_run_to_sleep_is_told_so_until_somebody_has_taken_it_again(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    sleep = {
        "run_id": run.run_id, "guard": "owner", "seq": 1, "token": "token", "facts": head.facts, "state": SLEEPING,
        "release": True, "waits": [["main/t1", "timer", "sleeping", 1]],
        "events": [
            [3, "timer_started", "main/t1", '{"due":1}', 1],
            [4, "run_suspended", None, '{"state":"sleeping","due":1}', 1],
        ],
    }  # fmt: skip
    assert await worker.transitions(sleep) == ["applied"]
    assert await worker.transitions({**sleep, "again": True}) == ["applied"]
    [woken] = await worker.poll(1, 5_000)
    assert await worker.transitions({**sleep, "again": True}) == ["applied"]  # handed out is not taken
    assert await worker.take(woken, "another") == "applied"
    assert await worker.transitions({**sleep, "again": True}) == ["stale"]


async def test_a_take_that_ended_the_run_at_once_is_known_when_it_is_asked_for_again(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    [head] = await worker.poll(1, 2_000)
    end = {
        "run_id": run.run_id, "guard": "queued", "seq": 0, "facts": head.facts, "reservation": head.reservation,
        "dequeue": True, "new_seq": 1, "state": "completed", "ended": True,
        "events": [[2, "run_started", None, "{}", 1], [3, "run_succeeded", None, '{"output":1}', 1]],
    }  # fmt: skip
    assert await worker.transitions(end) == ["applied"]
    assert await worker.transitions(end) == ["lost"]
    assert await worker.transitions({**end, "again": True}) == ["applied"]


async def test_the_owner_of_a_deleted_run_owns_nothing_of_another_one_of_its_id(here: Served) -> None:
    worker, other = await here.worker(), await here.worker()
    run = await here.start(id="r")
    step = wire.item_of(append(await worker.took("first"), 3, "first"))
    await commands.cancel(here.store, run.run_id, "tests")
    assert await here.store.delete_run(run.run_id, "tests", run.scope)
    await here.start(id="r")
    head = await other.took("second")
    assert await other.transitions(wire.item_of(append(head, 3, "second"))) == ["applied"]
    assert await worker.transitions({**step, "again": True}) == ["stale"]
    assert await worker.transitions(step) == ["stale"]


async def test_an_event_under_a_number_that_is_taken_is_refused_for_good_and_harms_no_neighbour(here: Served) -> None:
    worker = await here.worker()
    for _ in range(2):
        await here.start()
    first, second = await worker.took(), await worker.took()
    wrong = wire.item_of(append(first, 2))
    [alone] = await worker.transitions(wrong)
    beside, applied = await worker.transitions(wrong, wire.item_of(append(second, 3)))
    assert applied == "applied"
    for answer in (alone, beside):
        assert answer["error"]["code"] == "INVALID_INPUT"
        told = f"the journal of run {first.run_id} has an event 2 already: the number that comes next is 3"
        assert answer["error"]["message"] == told
    [event] = [one for one in await here.store.journal(first.run_id) if one.seq == 2]
    assert event.kind == "run_started"


async def test_what_is_repeated_while_the_first_is_under_way_at_another_node_is_answered_applied(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(store_url) as one, served(store_url) as two:
        worker = await one.worker()
        await one.start()
        head = await worker.took()
        item = wire.item_of(append(head, 3))
        there = two.speaker(worker.key)
        there.session_id = worker.session_id
        looked, may_go_on = asyncio.Event(), asyncio.Event()
        look = two.store.events_at

        async def late(*arguments: Any) -> Any:
            found = await look(*arguments)
            if not looked.is_set():
                looked.set()
                await may_go_on.wait()
            return found

        monkeypatch.setattr(two.store, "events_at", late)
        again = asyncio.ensure_future(there.transitions({**item, "again": True}))
        await asyncio.wait_for(looked.wait(), FOR_EVER_S)  # it has not found the first one
        assert await worker.transitions(item) == ["applied"]
        may_go_on.set()
        assert await asyncio.wait_for(again, FOR_EVER_S) == ["applied"]
    store = await connect(store_url)
    assert [event.seq for event in await store.journal(head.run_id)] == [1, 2, 3]
    await store.close()


async def test_whatever_a_database_says_of_a_change_stays_in_the_log_of_the_node(
    here: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await here.worker()
    for _ in range(2):
        await here.start()
    first, second = await worker.took(), await worker.took()
    monkeypatch.setattr("ironflow.server.problems._logged", {})  # told not long ago, it is not repeated
    submit: Callable[..., Any] = here.store.submit

    def broken(change: Any) -> Any:
        if change.run_id == first.run_id:
            raise StoreError("postgresql://db.internal refused a statement: insert into secret_table")
        return submit(change)

    monkeypatch.setattr(here.store, "submit", broken)
    told, applied = await worker.transitions(wire.item_of(append(first, 3)), wire.item_of(append(second, 3)))
    assert applied == "applied"
    assert told["error"]["code"] == "STORE_UNAVAILABLE"
    with pytest.raises(Refused) as refused:
        await worker.transitions(wire.item_of(append(first, 3)))
    assert (refused.value.status, refused.value.code) == (503, "STORE_UNAVAILABLE")
    for text in (str(told), str(refused.value.problem)):
        assert "db.internal" not in text
        assert "secret_table" not in text
    assert "secret_table" in caplog.text
