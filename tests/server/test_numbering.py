"""Events are numbered from the end of the journal, whatever a worker asks for; and what asking for much costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server.kit import Refused, Served, append, ending, looked_at, served, taking

from ironflow.engine import commands
from ironflow.model import wire
from ironflow.server.reports import SLICE, Reports
from ironflow.server.worker_routes import MOST_CHANGES

#: Far beyond the end of any journal here.
FAR = 9_000_000_000_000_000


def item(head: Any, seq: int, token: str = "token", **more: Any) -> dict[str, Any]:
    """The end of a step, under this number."""
    return {**wire.item_of(append(head, seq, token)), **more}


def follows(answer: Any, seq: int) -> None:
    """It was refused, and told the number that comes next."""
    assert answer["error"]["code"] == "INVALID_INPUT", answer
    assert answer["error"]["message"].endswith(f"the number that comes next is {seq}")


async def seqs(here: Served, run_id: str) -> list[int]:
    return [event.seq for event in await here.store.journal(run_id)]


@pytest.mark.parametrize("seq", [4, 100, FAR])
async def test_p1_an_owner_cannot_leave_a_gap_behind_the_end_of_the_journal(here: Served, seq: int) -> None:
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    for change in (append(head, seq), ending(head, seq)):
        follows((await worker.transitions(wire.item_of(change)))[0], 3)
    follows((await worker.transitions(item(head, seq, again=True)))[0], 3)
    assert await worker.transitions(item(head, 3)) == ["applied"]
    assert await seqs(here, run.run_id) == [1, 2, 3]
    await commands.cancel(here.store, run.run_id, "tests")
    found = await here.store.tail({run.run_id: 0}, 100)
    assert [event.seq for event in found[run.run_id]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seq", [3, FAR])
async def test_p1_a_run_is_not_taken_behind_a_gap(here: Served, seq: int) -> None:
    worker = await here.worker()
    run = await here.start()
    [head] = await worker.poll(1, 2_000)
    follows((await worker.transitions(wire.item_of(taking(head, "token", seq))))[0], 2)
    assert await here.store.leases() == []
    assert await worker.take(head) == "applied"
    assert await seqs(here, run.run_id) == [1, 2]


async def test_changes_of_one_run_in_one_request_follow_each_other_or_are_refused(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    assert await worker.transitions(item(head, 3), item(head, 4)) == ["applied", "applied"]
    applied, gap, after = await worker.transitions(item(head, 5), item(head, 7), item(head, 6))
    assert (applied, after) == ("applied", "applied")
    follows(gap, 6)
    stale, behind = await worker.transitions(item(head, 7, "another"), item(head, 8))
    assert stale == "stale"
    follows(behind, 7)
    early, right = await worker.transitions(item(head, 8), item(head, 7))
    follows(early, 7)
    assert right == "applied"
    assert await seqs(here, run.run_id) == [*range(1, 8)]


async def test_a_wrong_number_of_who_may_not_write_is_answered_as_what_he_is(here: Served) -> None:
    """Left to the database, it might be written after all: by the time it comes there, he may have taken the run."""
    worker = await here.worker()
    await here.start()
    head = await worker.took()
    sleep = item(head, 9, facts=head.facts + 1)
    assert await worker.transitions(item(head, 9, "another"), sleep) == ["stale", "news"]
    await here.start()
    [promised] = await worker.poll(1, 2_000)
    assert await worker.transitions({**wire.item_of(taking(promised, "t", 9)), "facts": 7}) == ["lost"]
    assert await worker.take(promised) == "applied"


async def test_a_node_whose_memory_is_old_asks(store_url: str) -> None:
    async with served(store_url) as one, served(store_url) as two:
        worker = await one.worker()
        run = await one.start()
        head = await worker.took()
        there = two.speaker(worker.key)
        there.session_id = worker.session_id
        assert await worker.transitions(item(head, 3)) == ["applied"]
        assert await there.transitions(item(head, 4)) == ["applied"]
        follows((await worker.transitions(item(head, 6)))[0], 5)
        [taken] = await worker.transitions(item(head, 4))  # what it remembers as the next one
        assert taken["error"]["message"].endswith("has an event 4 already: the number that comes next is 5")
        assert await worker.transitions(item(head, 5), item(head, 6)) == ["applied", "applied"]
        follows((await there.transitions(item(head, 5), item(head, 8)))[1], 7)
        assert await there.transitions(item(head, 7)) == ["applied"]
        assert await seqs(one, run.run_id) == [*range(1, 8)]


async def test_the_owner_of_a_deleted_run_leaves_no_gap_in_another_one_of_its_id(here: Served) -> None:
    worker = await here.worker()
    run = await here.start(id="r")
    head = await worker.took("first")
    assert await worker.transitions(item(head, 3, "first"), item(head, 4, "first")) == ["applied", "applied"]
    await commands.cancel(here.store, run.run_id, "tests")
    assert await here.store.delete_run(run.run_id, "tests", run.scope)
    await here.start(id="r")
    again = await worker.took("second")
    assert await worker.transitions(item(head, 5, "first")) == ["stale"]
    follows((await worker.transitions(item(again, 5, "second")))[0], 3)


async def test_a_worker_that_numbers_as_it_should_costs_no_look(here: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await here.worker()
    await here.start()
    looks = looked_at(here, monkeypatch, "standings")
    head = await worker.took()
    assert await worker.transitions(item(head, 3)) == ["applied"]
    assert await worker.transitions(item(head, 4), item(head, 5)) == ["applied", "applied"]
    assert await worker.transitions(wire.item_of(ending(head, 6))) == ["applied"]
    assert looks == []


@pytest.mark.parametrize("again", [False, True])
async def test_an_event_without_a_number_is_refused(here: Served, again: bool) -> None:
    """With a number that the database gives, a repeated item could not be told from a second one."""
    worker = await here.worker()
    run = await here.start()
    [head] = await worker.poll(1, 2_000)
    [refused] = await worker.transitions({**wire.item_of(taking(head, "token", 0)), "again": again})
    assert refused["error"]["message"].startswith("events[0] has the seq 0")
    assert await worker.take(head) == "applied"
    head.execution_seq += 1
    [refused] = await worker.transitions(item(head, 0, again=again))
    assert refused["error"]["code"] == "INVALID_INPUT"
    assert refused["error"]["message"].startswith("events[0] has the seq 0")
    assert await seqs(here, run.run_id) == [1, 2]


# ---- much at once


@pytest.mark.parametrize("again", [False, True])
async def test_a_request_full_of_runs_that_do_not_exist_is_one_look(
    here: Served, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    worker = await here.worker()
    looks = looked_at(here, monkeypatch, "standings")
    one = {"guard": "owner", "seq": 1, "token": "t", "events": [[1, "status_set", None, None, 1]], "again": again}
    items = [{**one, "run_id": f"unknown-{n}"} for n in range(MOST_CHANGES)]
    assert await worker.transitions(*items) == ["stale"] * MOST_CHANGES
    assert looks == [MOST_CHANGES]
    with pytest.raises(Refused) as refused:
        await worker.transitions(*items, items[0])
    assert (refused.value.status, refused.value.code) == (400, "INVALID_REQUEST")
    reservations = [[f"unknown-{n}", "t"] for n in range(100)]
    await worker.ask("POST", "/unreserve", {"session_id": worker.session_id, "reservations": reservations})
    assert looks == [MOST_CHANGES, 100]


async def test_repeated_and_queued_changes_of_many_runs_are_looked_up_together(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 20
    worker = await here.worker(slots=count)
    for _ in range(count):
        await here.start()
    heads = await worker.poll(count, 2_000)
    assert await worker.transitions(*(wire.item_of(taking(head)) for head in heads)) == ["applied"] * count
    for head in heads:
        head.execution_seq += 1
    steps = [item(head, 3) for head in heads]
    assert await worker.transitions(*steps) == ["applied"] * count
    looks, read = (looked_at(here, monkeypatch, name) for name in ("standings", "events_at"))
    assert await worker.transitions(*({**step, "again": True} for step in steps)) == ["applied"] * count
    assert (looks, read) == ([count], [count])
    releases = [
        {
            "run_id": head.run_id, "guard": "owner", "seq": 1, "token": "token", "state": "pending", "release": True,
            "enqueue": {"eligible_at": 0}, "events": [[4, "run_released", None, '{"t":1}', 1]],
        }
        for head in heads
    ]  # fmt: skip
    assert await worker.transitions(*releases) == ["applied"] * count
    assert looks == [count, count]


async def test_many_changes_let_others_have_their_turn(here: Served) -> None:
    count = 200
    worker = await here.worker()
    await here.start()
    head = await worker.took()
    reports, caller = Reports(here.node), await here.caller()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def turns_during(items: list[Any]) -> int:
        began = turns
        await reports.take(caller, worker.session_id, True, items)
        return turns - began

    meanwhile = asyncio.ensure_future(others())
    await asyncio.sleep(0)
    assert await turns_during([item(head, 3 + n) for n in range(count)]) >= count
    assert await turns_during([item(head, FAR)] * count) >= count
    assert await turns_during([None] * MOST_CHANGES) >= MOST_CHANGES // SLICE
    meanwhile.cancel()
    assert await seqs(here, head.run_id) == [*range(1, count + 3)]
