"""Following a run over HTTP: each event once, in order, on any node, wherever the reader was cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.server.asking import Api, Stream, serving
from tests.store.build import answer, append, leave, start

from ironflow.model import journal as j
from ironflow.model.journal import Event
from ironflow.model.transition import APPLIED
from ironflow.server import sse
from ironflow.server.sse import Tail, frames
from ironflow.store.base import Store


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[Api]:
    async with serving(store_url) as made:
        yield made


class Browser:
    """Reads a stream as a browser does: it remembers the last id, and parses what has arrived whole."""

    def __init__(self, stream: Stream) -> None:
        self._chunks = stream.chunks()
        self._text = ""
        self.comments: list[str] = []

    async def next(self) -> dict[str, Any] | None:
        """The next event; None when the stream has ended."""
        while True:
            block, found, rest = self._text.partition("\n\n")
            if not found:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    assert self._text == "", "the stream ended within an event"
                    return None
                self._text += chunk.decode()
                continue
            self._text = rest
            fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
            if "data" in fields:
                event: dict[str, Any] = json.loads(fields["data"])
                assert fields["id"] == str(event["seq"])
                return event
            assert "id" not in fields  # a keep-alive must not move the place from which a reader resumes
            self.comments.append(block)

    async def seqs(self, count: int) -> list[int]:
        found = [await self.next() for _ in range(count)]
        return [event["seq"] for event in found if event is not None]

    async def rest(self) -> list[int]:
        """Everything to the end."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event["seq"])
        return found


async def write(api: Api, *changes: Any) -> None:
    for change in changes:
        assert await answer(api.store, change) == APPLIED


async def test_p30_a_stream_gives_what_is_there_then_what_comes_and_ends_behind_the_terminal_event(api: Api) -> None:
    key = await api.key("viewer")
    await write(api, start("r1"), append("r1", 4, count=2))
    async with api.open("GET", "/runs/r1/events", key) as stream:
        browser = Browser(stream)
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        assert await browser.seqs(5) == [1, 2, 3, 4, 5]
        await write(api, append("r1", 6), append("r1", 7))
        assert await browser.seqs(2) == [6, 7]
        await write(api, leave("r1", 8, "completed"))
        last = await browser.next()
        assert last is not None
        assert (last["seq"], last["kind"], last["payload"]) == (8, j.RUN_SUCCEEDED, {"output": 1})
        assert await browser.next() is None


async def test_p30_a_reader_that_was_cut_goes_on_exactly_there_on_another_node(store_url: str, api: Api) -> None:
    key = await api.key("viewer")
    async with serving(store_url) as other:
        nodes, seen, written = [api, other], [], 3
        await write(api, start("r1"))
        while written < 30:
            place = {"Last-Event-ID": str(seen[-1])} if seen else {}
            node = nodes[len(seen) % 2]
            async with node.open("GET", "/runs/r1/events", key, headers=place) as stream:
                browser = Browser(stream)
                # Some are there already, one comes while it reads; then the connection is cut, wherever it is.
                seen += await browser.seqs(min(2, written - len(seen)))
                await write(nodes[written % 2], append("r1", written + 1, count=3))
                written += 3
                seen += await browser.seqs(2)
        await write(api, leave("r1", written + 1, "failed"))
        async with other.open("GET", "/runs/r1/events", key, query={"after": seen[-1]}) as stream:
            seen += await Browser(stream).rest()
        assert seen == list(range(1, written + 2))


async def test_p30_a_stream_needs_a_key_and_ends_when_the_key_is_revoked(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    await write(api, start("r1"))
    assert (await api.ask("GET", "/runs/r1/events")).code == "UNAUTHENTICATED"
    key = await api.key("viewer")
    (row,) = await api.store.keys(None)
    async with api.open("GET", "/runs/r1/events", key) as stream:
        browser = Browser(stream)
        await browser.seqs(3)
        assert await api.store.revoke_key(row.key_id, "test")
        assert await browser.next() is None
        assert browser.comments[0] == "retry: 1000"


async def test_p30_a_stream_gives_nothing_more_once_its_key_is_revoked(api: Api) -> None:
    """However long it is to the next keep-alive."""
    await write(api, start("r1"))
    key, admin = await api.key("viewer"), await api.key("admin")
    [viewer] = [row for row in await api.store.keys(None) if row.role == "viewer"]
    async with api.open("GET", "/runs/r1/events", key) as stream:
        browser = Browser(stream)
        await browser.seqs(3)
        assert (await api.ask("DELETE", f"/api-keys/{viewer.key_id}", admin)).status == 204
        await write(api, append("r1", 4))
        assert await browser.next() is None


async def test_streams_of_one_key_share_the_look_at_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await write(api, start("r1"))
    key = await api.key("viewer")
    monkeypatch.setattr(api.access, "_clock", lambda: 0.0)
    looks, look = 0, api.store.key_by_hash

    async def counted(key_hash: str) -> Any:
        nonlocal looks
        looks += 1
        return await look(key_hash)

    monkeypatch.setattr(api.store, "key_by_hash", counted)
    async with AsyncExitStack() as open_:
        streams = [await open_.enter_async_context(api.open("GET", "/runs/r1/events", key)) for _ in range(5)]
        browsers = [Browser(stream) for stream in streams]
        for browser in browsers:
            await browser.seqs(3)
        await write(api, append("r1", 4))
        for browser in browsers:
            assert await browser.seqs(1) == [4]
    assert looks == 1


async def test_a_place_that_is_none_in_this_run_is_refused(api: Api) -> None:
    key = await api.key("viewer")
    await write(api, start("r1"), start("r2"), append("r2", 4, count=5))
    for place in ("9", "4", "999999999999999", "9999999999999999999999", "-1", "x", "1.0", "1,2"):
        found = await api.ask("GET", "/runs/r1/events", key, headers={"Last-Event-ID": place})
        assert (found.status, found.code) == (400, "INVALID_CURSOR"), place
    assert (await api.ask("GET", "/runs/r1/events", key, query={"after": 8})).code == "INVALID_CURSOR"
    assert (await api.ask("GET", "/runs/r1/events", key, query={"after": -1})).code == "INVALID_REQUEST"
    assert (await api.ask("GET", "/runs/r1/events", key, query={"from": 1})).code == "INVALID_REQUEST"


async def test_whoever_has_the_last_event_of_an_ended_run_is_told_not_to_come_again(api: Api) -> None:
    key = await api.key("viewer")
    await write(api, start("r1"), leave("r1", 4, "completed"))
    found = await api.ask("GET", "/runs/r1/events", key, headers={"Last-Event-ID": "4"})
    assert (found.status, found.content) == (204, b"")
    one_less = await api.ask("GET", "/runs/r1/events", key, headers={"Last-Event-ID": "3"})
    assert one_less.status == 200
    assert b"id: 4" in one_less.content
    # The header is what the browser saw last; the address says where it began.
    both = await api.ask("GET", "/runs/r1/events", key, headers={"Last-Event-ID": "4"}, query={"after": 1})
    assert both.status == 204


async def test_a_stream_of_some_kinds_brings_these_and_what_ends_the_run(api: Api) -> None:
    key = await api.key("viewer")
    query = {"kind": [j.RUN_CREATED, j.STEP_STARTED]}
    await write(api, start("r1"), append("r1", 4, count=2))
    async with api.open("GET", "/runs/r1/events", key, query=query) as stream:
        browser = Browser(stream)
        assert await browser.seqs(3) == [1, 3, 5]
        await write(api, append("r1", 6, count=2), leave("r1", 8, "completed"))
        assert await browser.rest() == [7, 8]
    again = await api.ask("GET", "/runs/r1/events", key, query=query, headers={"Last-Event-ID": "5"})
    assert [line for line in again.content.decode().split("\n") if line.startswith("id")] == ["id: 7", "id: 8"]
    assert (await api.ask("GET", "/runs/r1/events", key, query={"kind": "step_begun"})).code == "INVALID_REQUEST"


async def test_a_stream_that_brings_nothing_of_a_busy_run_tells_that_it_lives(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.5)
    key = await api.key("viewer")
    await write(api, start("r1"))

    async def busy() -> None:
        seq = 4
        while True:  # no silence is so long that it would tell it by itself
            await write(api, append("r1", seq))
            seq += 1

    writing = asyncio.ensure_future(busy())
    try:
        async with api.open("GET", "/runs/r1/events", key, query={"kind": j.RUN_PAUSED}) as stream:
            chunks = stream.chunks()
            async with asyncio.timeout(20):
                found = [await anext(chunks) for _ in range(3)]
            assert found == [b"retry: 1000\n\n", b": keep-alive\n\n", b": keep-alive\n\n"]
    finally:
        writing.cancel()


async def test_a_stream_goes_on_over_the_end_of_a_run_that_was_opened_again(api: Api) -> None:
    key = await api.key()
    await api.declare("order")
    await write(api, start("r1"), leave("r1", 4, "failed"))
    assert (await api.ask("POST", "/runs/r1/retry", key)).json["changed"] is True
    async with api.open("GET", "/runs/r1/events", key) as stream:
        browser = Browser(stream)
        assert await browser.seqs(5) == [1, 2, 3, 4, 5]
        assert (await api.ask("POST", "/runs/r1/cancel", key)).json["state"] == "cancelled"
        assert await browser.rest() == [6, 7]


async def test_a_node_that_stops_ends_its_streams_and_the_reader_misses_nothing(store_url: str, api: Api) -> None:
    key = await api.key("viewer")
    await write(api, start("r1"))
    async with serving(store_url) as other, other.open("GET", "/runs/r1/events", key) as stream:
        browser = Browser(stream)
        assert await browser.seqs(3) == [1, 2, 3]
        await other.app.state.tail.close()
        assert await browser.next() is None
        assert (await other.ask("GET", "/runs/r1/events", key)).content == b"retry: 1000\n\n"
    await write(api, leave("r1", 4, "completed"))
    assert b"id: 4" in (await api.ask("GET", "/runs/r1/events", key, headers={"Last-Event-ID": "3"})).content


class Counting:
    """A store that counts the looks at journals, and can be away. Everything else is the store's."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.looks: list[dict[str, int]] = []
        self.away = False
        self.held: asyncio.Event | None = None

    async def tail(self, after: Any, limit: int) -> dict[str, list[Event]]:
        self.looks.append(dict(after))
        if self.held is not None:
            await self.held.wait()
        if self.away:
            raise ConnectionError("away")
        return await self._store.tail(after, limit)


async def allowed() -> bool:
    return True


async def read(tail: Tail, run_id: str, after: int, count: int) -> list[str]:
    """The first so many frames of a stream that hold an event."""
    found: list[str] = []
    stream = frames(tail, run_id, after, allowed)
    async for text in stream:
        found += [one for one in text.split("\n\n") if one.startswith("id: ")]
        if len(found) >= count:
            break
    await stream.aclose()
    return found


async def test_one_look_serves_every_reader_of_a_node(api: Api) -> None:
    for n in range(20):
        await write(api, start(f"r{n}"))
    counting: Any = Counting(api.store)
    tail = Tail(counting, tick_s=600)
    readers = [asyncio.ensure_future(read(tail, f"r{n % 20}", 0, 4)) for n in range(60)]
    while len(counting.looks) < 1:
        await asyncio.sleep(0)
    first = len(counting.looks)
    await write(api, *(append(f"r{n}", 4) for n in range(20)))
    tail.touched([f"r{n}" for n in range(20)])
    found = await asyncio.gather(*readers)
    assert {tuple(one.partition("\n")[0] for one in frames_) for frames_ in found} == {
        ("id: 1", "id: 2", "id: 3", "id: 4")
    }
    assert first == 1
    assert len(counting.looks) <= 4  # and not one for each of sixty readers
    await tail.close()


async def test_a_reader_that_does_not_read_is_not_read_for_and_holds_up_nobody(api: Api) -> None:
    await write(api, start("r1"), append("r1", 4, count=sse.PAGE * 3))
    tail = Tail(api.store, tick_s=600)
    slow, fast = tail.open("r1", 0), tail.open("r1", 0)
    seen: list[Event] = []
    while len(seen) < sse.PAGE * 3 + 3:
        seen += await fast.page(5) or pytest.fail("nothing came")
    assert [event.seq for event in seen] == list(range(1, sse.PAGE * 3 + 4))
    assert slow._page == []  # nothing waits for who does not ask, however far the run is
    late: list[Event] = []
    while len(late) < sse.PAGE * 3 + 3:
        late += await slow.page(5) or pytest.fail("nothing came")
    assert [event.seq for event in late] == [event.seq for event in seen]
    for reader in (slow, fast):
        tail.leave(reader)
    await tail.close()


async def test_readers_of_one_run_at_different_places_are_each_given_what_they_lack(api: Api) -> None:
    await write(api, start("r1"), append("r1", 4, count=3))
    tail = Tail(api.store, tick_s=600)
    readers = [tail.open("r1", after) for after in (0, 2, 5)]
    pages = await asyncio.gather(*(reader.page(5) for reader in readers))
    assert [[event.seq for event in page or ()] for page in pages] == [[1, 2, 3, 4, 5, 6], [3, 4, 5, 6], [6]]
    for reader in readers:
        tail.leave(reader)
    await tail.close()


async def test_p30_who_comes_during_a_look_for_others_gets_every_event(api: Api) -> None:
    """The look brings what lies behind the others' places: to who begins before those, it has a gap."""
    await write(api, start("r1"), append("r1", 4, count=5))
    counting: Any = Counting(api.store)
    counting.held = asyncio.Event()
    tail = Tail(counting, tick_s=600)
    ahead = tail.open("r1", 5)
    first = asyncio.ensure_future(ahead.page(5))
    while not counting.looks:
        await asyncio.sleep(0)
    behind = tail.open("r1", 2)
    second = asyncio.ensure_future(behind.page(5))
    await asyncio.sleep(0)
    counting.held.set()
    assert [[event.seq for event in await page or ()] for page in (first, second)] == [[6, 7, 8], [3, 4, 5, 6, 7, 8]]
    assert counting.looks == [{"r1": 5}, {"r1": 2}]
    for reader in (ahead, behind):
        tail.leave(reader)
    await tail.close()


async def test_a_reader_is_not_left_behind_for_one_that_is_a_page_further_back(api: Api) -> None:
    await write(api, start("r1"), append("r1", 4, count=sse.PAGE))
    tail = Tail(api.store, tick_s=600)
    behind, ahead = tail.open("r1", 0), tail.open("r1", sse.PAGE + 1)
    pages = await asyncio.gather(*(reader.page(5) for reader in (behind, ahead)))
    # The first look brings a page for the one; nobody else asks for a second one.
    assert [[event.seq for event in page or ()][-1:] for page in pages] == [[sse.PAGE], [sse.PAGE + 3]]
    for reader in (behind, ahead):
        tail.leave(reader)
    await tail.close()


async def test_a_database_that_is_away_does_not_end_the_streams(api: Api) -> None:
    await write(api, start("r1"))
    counting: Any = Counting(api.store)
    tail = Tail(counting, tick_s=0.01)
    counting.away = True
    reader = tail.open("r1", 0)
    while len(counting.looks) < 3:
        assert await reader.page(0.01) == []
    counting.away = False
    assert [event.seq for event in await reader.page(5) or ()] == [1, 2, 3]
    tail.leave(reader)
    await tail.close()


async def test_a_tail_rests_while_nobody_reads(api: Api) -> None:
    await write(api, start("r1"))
    counting: Any = Counting(api.store)
    tail = Tail(counting, tick_s=0.001)
    assert await read(tail, "r1", 0, 3)
    task = tail._task
    assert task is None or await asyncio.wait_for(asyncio.shield(task), 5) is None
    looked = len(counting.looks)
    assert await read(tail, "r1", 2, 1)  # and it begins again
    assert len(counting.looks) > looked
    await tail.close()
