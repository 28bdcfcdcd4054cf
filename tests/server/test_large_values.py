"""Large values: whole wherever they are asked for, and a few at a time in memory, however many read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.recovery.kit import until
from tests.server.asking import OTHER, Api, serving
from tests.server.test_sse import Browser, Counting, allowed, write
from tests.store.build import append, leave, start

from ironflow.engine import views
from ironflow.model import journal as j
from ironflow.model.fold import fold
from ironflow.model.journal import Event
from ironflow.model.transition import Transition
from ironflow.server.large import AT_ONCE
from ironflow.server.sse import Tail, frames
from ironflow.store.base import Store


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[Api]:
    async with serving(store_url) as made:
        yield made


def large(seq: int, size: int = 20_000) -> Transition:
    """A step that has ended with a result that is stored apart."""
    change = append("r1", seq)
    change.events[0].payload = json.dumps({"t": 1, "result": "x" * size})
    return change


class Reading(Counting):
    """Counts the large payloads that are held at a time, too."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.read = 0

    async def journal(self, run_id: str, after: int = 0, limit: int = 0) -> list[Event]:
        self.read += 1
        assert limit == 1
        return await self._store.journal(run_id, after, limit)


async def test_large_payloads_are_read_one_by_one_and_for_a_few_readers_at_a_time(api: Api) -> None:
    await write(api, start("r1"), large(4), large(5), large(6))
    counting: Any = Reading(api.store)
    tail = Tail(counting, tick_s=600)
    readers = AT_ONCE + 3
    streams = [frames(tail, "r1", 0, allowed) for _ in range(readers)]
    taken = [0] * readers

    async def take(n: int) -> None:
        """Read until a large event is there, and then no further."""
        async for text in streams[n]:
            taken[n] += 1
            if len(text) > 10_000:
                return

    tasks = [asyncio.ensure_future(take(n)) for n in range(readers)]
    await until(lambda: sum(task.done() for task in tasks) == AT_ONCE)
    await until(lambda: sum(taken) == 3 * AT_ONCE + 2 * 3)
    assert counting.read == AT_ONCE  # one for each that holds one, and none for those that wait
    for n, task in enumerate(tasks):
        if task.done():
            await streams[n].aclose()  # it is gone, and the next one gets its turn
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert counting.read == readers
    for stream in streams:
        await stream.aclose()
    await tail.close()


async def test_readers_that_take_nothing_hold_up_no_other_organisation_s(api: Api) -> None:
    await write(api, start("r1"), large(4), start("r2", org=OTHER.org, environment=OTHER.environment))
    theirs = large(4)
    theirs.run_id = "r2"
    await write(api, theirs)
    stuck, app = [0], api.app

    async def unread(scope: Any, receive: Any, send: Any) -> None:
        async def blocks(message: Any) -> None:
            if len(message.get("body", b"")) > 10_000 and "/r1/" in scope["path"]:
                stuck[0] += 1
                await asyncio.Event().wait()
            await send(message)

        await app(scope, receive, blocks)

    api.app = unread
    own, other = await api.key("viewer"), await api.key("viewer", scope=OTHER)
    async with AsyncExitStack() as stack:
        for _ in range(AT_ONCE + 1):
            await stack.enter_async_context(api.open("GET", "/runs/r1/events", own))
        await until(lambda: stuck[0] == AT_ONCE)
        async with api.open("GET", "/runs/r2/events", other) as stream:
            browser = Browser(stream)
            async with asyncio.timeout(5):
                found = [await browser.next() for _ in range(4)]
        assert found[-1] is not None
        assert len(found[-1]["payload"]["result"]) == 20_000
        assert stuck[0] == AT_ONCE


async def test_a_stream_gives_large_payloads_whole_and_in_their_place(api: Api) -> None:
    key = await api.key("viewer")
    await write(api, start("r1"), append("r1", 4), large(5), append("r1", 6), large(7), leave("r1", 8, "completed"))
    async with api.open("GET", "/runs/r1/events", key) as stream:
        browser = Browser(stream)
        found = [await browser.next() for _ in range(8)]
    assert [event["seq"] for event in found if event is not None] == list(range(1, 9))
    kept = [views.event(event) for event in await api.store.journal("r1")]
    assert found == kept


async def test_what_is_large_is_told_whole_wherever_it_is_asked_for(api: Api) -> None:
    key = await api.key("viewer")
    begun = start("r1")
    begun.events[0].payload = json.dumps({"t": 1, "input": "i" * 30_000})
    ended = leave("r1", 6, "completed")
    ended.events[-1].payload = json.dumps({"t": 1, "output": "o" * 30_000})
    again = Event(5, j.STEP_STARTED, "1:b", "{}")
    change = append("r1", 5)
    change.events = [again]
    await write(api, begun, large(4), change, ended)
    told = (await api.ask("GET", "/runs/r1", key)).json
    assert (told["input"], told["output"]) == ("i" * 30_000, "o" * 30_000)
    assert [(one["step_id"], one["result"]) for one in told["steps"]] == [("0:a", "x" * 20_000), ("1:b", None)]
    row = await api.store.run("r1")
    assert row is not None
    whole = views.run(row, fold(await api.store.journal("r1")))
    assert told == {**json.loads(json.dumps(whole)), "hold": None, "worker_routing": None}
    steps = (await api.ask("GET", "/runs/r1/steps", key)).json
    assert steps["items"] == told["steps"]
    journal = (await api.ask("GET", "/runs/r1/journal", key)).json
    assert journal["items"] == [views.event(event) for event in await api.store.journal("r1")]


async def test_pages_end_where_their_values_are_large_and_the_next_one_goes_on(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ironflow.server.api.journal._PAGE_CHARACTERS", 30_000)
    key = await api.key("viewer")
    await write(api, start("r1"))
    for n in range(5):
        begins, ends = append("r1", 4 + 2 * n), large(5 + 2 * n)
        begins.events = [Event(4 + 2 * n, j.STEP_STARTED, f"{n}:b", "{}")]
        ends.events[0].step_id = f"{n}:b"
        await write(api, begins, ends)
    for path, count in (("/runs/r1/journal", 13), ("/runs/r1/steps", 6)):
        found: list[Any] = []
        pages, cursor = 0, None
        while cursor is not None or not pages:
            answered = await api.ask("GET", path, key, query={"cursor": cursor} if cursor else {})
            assert len(answered.content) < 80_000
            found += answered.json["items"]
            pages, cursor = pages + 1, answered.json["next"]
        assert len(found) == count
        assert pages >= 3


async def test_an_event_that_cannot_be_read_is_shown_as_that(api: Api) -> None:
    key = await api.key("viewer")
    bad = append("r1", 4)
    bad.events[0].payload = '{"t":1,"result":NaN}'
    await write(api, start("r1"), bad, leave("r1", 5, "completed"))
    for path in ("/runs/r1", "/runs/r1/steps", "/runs/r1/why"):
        assert (await api.ask("GET", path, key)).status == 200
    [event] = [one for one in (await api.ask("GET", "/runs/r1/journal", key)).json["items"] if one["seq"] == 4]
    assert event["payload"] == {"unreadable": "NaN is no number of JSON"}
    streamed = (await api.ask("GET", "/runs/r1/events", key)).content
    assert b"NaN is no number of JSON" in streamed
    assert b"id: 5" in streamed
