"""Held polls: how long they are held, what ends them, and who gets what."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.recovery.kit import quick, row, until
from tests.server.kit import Refused, Served, Speaker, append, ending, served, start

from ironflow.errors import StoreError, StoreFull, StoreUnreachable
from ironflow.model import wire
from ironflow.model.capacity import RunHead
from ironflow.model.run import PENDING, SLEEPING
from ironflow.model.wait import TIMER
from ironflow.runtime import Engine
from ironflow.server import hub as hubs

#: Long enough that only a word can have ended the wait, and not the look that finds what no word told, ms.
LONG = 20_000


async def held(here: Served, speaker: Speaker, free: int = 1, count: int = 1) -> asyncio.Future[list[RunHead]]:
    """A poll that is held."""
    poll = asyncio.ensure_future(speaker.poll(free, LONG))
    await until(lambda: here.node.hub.waiting == count and all(one.asked for one in here.node.hub._line))
    return poll


async def test_g37_an_empty_poll_is_held_as_long_as_was_asked(here: Served) -> None:
    worker = await here.worker()
    began = time.monotonic()
    assert await worker.poll(1, 300) == []
    assert 0.28 < time.monotonic() - began < 2
    assert await worker.poll(0, LONG) == []  # no free slot: nothing to wait for


async def test_g37_a_held_poll_is_answered_within_milliseconds_of_a_start(here: Served) -> None:
    worker = await here.worker()
    took = []
    for _ in range(10):
        poll = await held(here, worker)
        began = time.monotonic()
        run = await here.start()
        assert [head.run_id for head in await poll] == [run.run_id]
        took.append(time.monotonic() - began)
    # A bound with room for a busy machine; the look that needs no word comes after 2 s.
    assert sorted(took)[5] < 0.25, took


async def test_a_run_of_a_route_that_was_never_seen_reaches_a_held_poll(here: Served) -> None:
    worker = await here.worker(tags=("gpu",))
    poll = await held(here, worker)
    run = await here.start(worker_tags=("gpu",))
    assert [head.run_id for head in await asyncio.wait_for(poll, 1)] == [run.run_id]
    poll = await held(here, worker)
    run = await start(here.store, worker_tags=("gpu",), id="told-without-its-route")
    here.node.hub.told()
    assert [head.run_id for head in await asyncio.wait_for(poll, 1)] == [run.run_id]


async def test_a_start_in_another_process_reaches_a_held_poll(store_url: str) -> None:
    async with served(store_url) as here, served(store_url) as there:
        worker = await here.worker()
        await there.node.look_around()  # who tells by address must know whom
        poll = await held(here, worker)
        began = time.monotonic()
        run = await there.start()
        assert [head.run_id for head in await poll] == [run.run_id]
        assert time.monotonic() - began < 1


async def test_a_start_by_an_engine_on_the_database_reaches_a_held_poll(here: Served) -> None:
    from tests.recovery import program

    worker = await here.worker("short")
    poll = await held(here, worker)
    async with Engine(here.database, worker=False) as engine:
        run = await engine.start(program.short, "x")
        assert [head.run_id for head in await asyncio.wait_for(poll, 1)] == [run.id]


async def test_a_timer_that_is_due_reaches_a_held_poll_at_once(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    due = here.store.now() + 400
    item = {
        **wire.item_of(append(head, 3)),
        "events": [
            [3, "timer_started", "0:sleep", json.dumps({"due": due}), 1],
            [4, "run_suspended", None, '{"state":"sleeping"}', 1],
        ],
        "state": SLEEPING,
        "release": True,
        "facts": head.facts,
        "waits": [["0:sleep", TIMER, SLEEPING, due]],
    }
    assert await worker.transitions(item) == ["applied"]
    poll = await held(here, worker)
    assert [one.run_id for one in await poll] == [run.run_id]
    late = here.store.now() - due
    assert -20 < late < 300, late


async def test_a_run_scheduled_for_later_reaches_a_held_poll_at_its_time(here: Served) -> None:
    worker = await here.worker()
    poll = await held(here, worker)
    at = datetime.fromtimestamp((here.store.now() + 400) / 1000, UTC) + timedelta()
    run = await here.start(at=at)
    assert [head.run_id for head in await poll] == [run.run_id]
    late = here.store.now() - round(at.timestamp() * 1000)
    assert -20 < late < 300, late


async def test_r39_never_more_than_the_limit_execute_under_several_polls_and_others_are_not_delayed(
    here: Served,
) -> None:
    workers = [await here.worker() for _ in range(4)]
    runs = [await here.start(limits={"group": 2}) for _ in range(6)]
    free = await here.start()
    heads = [head for one in workers for head in await one.poll(5)]
    assert sorted(head.run_id for head in heads) == sorted([runs[0].run_id, runs[1].run_id, free.run_id])
    executing: dict[str, tuple[Speaker, RunHead]] = {}
    for worker in workers[:1]:
        for head in heads:
            assert await worker.take(head) == "applied"
            head.execution_seq += 1
            executing[head.run_id] = (worker, head)
    done: list[str] = []
    while len(done) < 6:
        poll = await held(here, workers[1])
        run_id = next(one for one in executing if one != free.run_id)
        worker, head = executing.pop(run_id)
        assert await worker.transitions(wire.item_of(ending(head, 3))) == ["applied"]
        done.append(run_id)
        if len(done) + len([one for one in executing if one != free.run_id]) == 6:
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            continue
        [head] = await asyncio.wait_for(poll, 1)  # the place that became free, and not after a look two seconds later
        assert await workers[1].take(head) == "applied"
        head.execution_seq += 1
        executing[head.run_id] = (workers[1], head)
        assert await workers[2].poll(5) == []
        assert len([one for one in executing if one != free.run_id]) <= 2
    assert sorted(done) == sorted(one.run_id for one in runs)


async def test_what_is_there_is_shared_out_between_those_who_wait(here: Served) -> None:
    workers = [await here.worker() for _ in range(4)]
    polls = [await held(here, worker, 100, count + 1) for count, worker in enumerate(workers)]
    for _ in range(8):
        await start(here.store)
    here.node.hub.told()
    got = [len(await asyncio.wait_for(poll, 2)) for poll in polls]
    assert got == [2, 2, 2, 2]


async def test_equal_routes_are_asked_for_once(here: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [await here.worker() for _ in range(5)] + [await here.worker("other")]
    polls = [await held(here, worker, 1, count + 1) for count, worker in enumerate(workers)]
    asked: Counter[str] = Counter()
    for name in ("peek", "reserve", "journals"):
        method = getattr(here.store, name)

        def counted(*arguments: Any, name: str = name, method: Any = method) -> Any:
            asked[name] += 1
            return method(*arguments)

        monkeypatch.setattr(here.store, name, counted)
    here.node.hub.wake()
    await until(lambda: asked["peek"] and not here.node.hub._matching)
    assert asked == {"peek": 1}
    asked.clear()
    for _ in range(5):
        await start(here.store)
    here.node.hub.wake()
    await asyncio.wait_for(asyncio.gather(*polls[:5]), 2)
    assert asked == {"peek": 1, "reserve": 5, "journals": 1}
    polls[5].cancel()
    await asyncio.gather(polls[5], return_exceptions=True)


async def test_what_was_kept_for_a_poll_whose_worker_went_away_goes_to_the_next(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, other = await here.worker(), await here.worker()
    poll = await held(here, gone)
    reserve, waiting, go_on = here.store.reserve, asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        found = await reserve(*arguments)
        waiting.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(here.store, "reserve", slow)
    run = await here.start()
    await waiting.wait()
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    await until(lambda: here.node.hub.waiting == 0)
    monkeypatch.setattr(here.store, "reserve", reserve)
    go_on.set()
    assert [head.run_id for head in await asyncio.wait_for(other.poll(1, LONG), 2)] == [run.run_id]


async def test_a_poll_whose_time_is_up_between_two_looks_that_failed_is_answered(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look for it failed at once, and the next one is far away: neither will say anything of the poll."""
    monkeypatch.setattr(hubs, "AFTER_FAILURE_S", 600.0)
    worker = await here.worker()

    async def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(here.node.hub, "_look", broken)
    with pytest.raises(Refused) as refused:
        await asyncio.wait_for(worker.poll(1, 10), 20)
    assert refused.value.code == StoreUnreachable.code
    assert here.node.hub.waiting == 0


async def test_a_route_that_is_told_while_the_queue_s_routes_are_read_is_not_lost(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look that needs no word is out of the way: only the word can bring this run to the poll."""
    monkeypatch.setattr(hubs, "LOOK_S", 600.0)
    worker = await here.worker(tags=("gpu",))
    poll = await held(here, worker)
    real, on_its_way, may_arrive = here.store.queue_routes, asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        found = await real()
        on_its_way.set()
        await may_arrive.wait()
        return found

    monkeypatch.setattr(here.store, "queue_routes", slow)
    here.node.hub.told()
    await on_its_way.wait()
    run = await here.start(worker_tags=("gpu",))
    may_arrive.set()
    assert [head.run_id for head in await asyncio.wait_for(poll, 10)] == [run.run_id]


async def test_a_second_poll_of_a_session_takes_the_place_of_the_first(here: Served) -> None:
    worker = await here.worker()
    first = await held(here, worker)
    second = asyncio.ensure_future(worker.poll(1, LONG))
    assert await asyncio.wait_for(first, 2) == []
    run = await here.start()
    assert [head.run_id for head in await asyncio.wait_for(second, 2)] == [run.run_id]


async def test_a_node_that_stops_answers_held_polls_at_once_and_takes_no_new_ones(here: Served) -> None:
    worker = await here.worker()
    poll = await held(here, worker)
    here.node.refuse()
    assert await asyncio.wait_for(poll, 1) == []
    with pytest.raises(Refused) as refused:
        await worker.poll(1, LONG)
    assert (refused.value.status, refused.value.code) == (503, "SERVER_STOPPING")


async def test_what_a_dead_worker_held_reaches_a_held_poll_through_the_scanner(store_url: str) -> None:
    async with served(store_url, quick()) as here:
        gone, other = await here.worker(), await here.worker()
        run = await here.start()
        await gone.took()

        async def beating() -> None:
            while True:
                await other.heartbeat()
                await asyncio.sleep(0.1)

        beats = asyncio.ensure_future(beating())
        try:
            [head] = await asyncio.wait_for(other.poll(1, LONG), 10)
        finally:
            beats.cancel()
        assert (head.run_id, head.execution_seq) == (run.run_id, 2)
        assert (await row(here.store, run.run_id)).state == PENDING


@pytest.mark.parametrize("outage", [StoreUnreachable("the network is cut"), StoreFull("the disk is full")])
async def test_a_hub_that_nobody_asks_does_not_say_that_its_looks_succeed_again(
    here: Served, monkeypatch: pytest.MonkeyPatch, outage: StoreError
) -> None:
    worker = await here.worker()
    hub = here.node.hub

    async def away(*arguments: Any) -> Any:
        raise outage

    with monkeypatch.context() as patched:
        patched.setattr(here.node.store, "reserve", away)
        with pytest.raises(Refused) as refused:
            await worker.poll(1, 10)
        assert refused.value.code == outage.code
        await until(lambda: not hub._matching)
        hub.wake()
        await until(lambda: not hub._kick.is_set() and not hub._woken)
        await until(lambda: not hub._matching)
        assert hub._outage.lasts, "there was nobody to look for"
    assert await worker.poll(1, 10) == []
    assert not hub._outage.lasts
