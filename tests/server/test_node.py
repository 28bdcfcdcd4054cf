"""A node from the inside: its alarm, its renewals, and what it does while the database is away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from tests.recovery.kit import until
from tests.server.kit import Refused, Served, always, append, patient, served, start

from ironflow.errors import ServerStopping, StoreUnreachable
from ironflow.loops import alarm as alarms
from ironflow.loops.alarm import Alarm
from ironflow.loops.driver import Driver, Report
from ironflow.model import wire
from ironflow.model.capacity import HTTP, SessionRow
from ironflow.server.hearts import Hearts
from ironflow.store.base import Store
from ironflow.testing.postgres import PostgresServer


class Noted:
    """A loop that only notes when it made a pass."""

    name = "noted"

    def __init__(self) -> None:
        self.at: list[float] = []

    async def run_once(self) -> Report:
        self.at.append(time.monotonic())
        return Report()


@pytest.fixture
async def noted(sqlite: Store) -> AsyncIterator[tuple[Alarm, Noted, Store]]:
    """An alarm that rings for a loop which does nothing about it."""
    loop = Noted()
    driver = Driver(loop, 60_000)
    alarm = Alarm(sqlite, driver, 60_000)
    driver.start()
    await until(lambda: loop.at)  # every driver begins with a pass
    loop.at.clear()
    yield alarm, loop, sqlite
    await alarm.stop()
    await driver.stop()


async def later(store: Store, ms: int, run_id: str) -> int:
    """A run that is scheduled for so much later; its time."""
    from datetime import UTC, datetime

    due = store.now() + ms
    await start(store, id=run_id, at=datetime.fromtimestamp(due / 1000, UTC))
    return due


async def test_the_alarm_rings_when_something_becomes_due_and_not_before(
    noted: tuple[Alarm, Noted, Store],
) -> None:
    alarm, loop, store = noted
    due = await later(store, 300, "soon")
    alarm.start()
    await until(lambda: loop.at)
    assert store.now() >= due - 20


async def test_an_earlier_time_that_is_told_moves_the_alarm_forward(noted: tuple[Alarm, Noted, Store]) -> None:
    alarm, loop, store = noted
    await later(store, 60_000, "late")
    alarm.start()
    await until(lambda: alarm._next.at)  # it sleeps towards the late one
    due = await later(store, 200, "soon")
    alarm.expect(due)
    await until(lambda: loop.at, patience=1.5)  # asking again by itself comes after two seconds
    assert store.now() >= due - 20


@pytest.mark.parametrize("fails", [False, True], ids=["an older answer", "no answer"])
async def test_what_is_told_while_the_alarm_asks_is_not_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(alarms, "ASK_AGAIN_MS", 600_000)
    loop, real = Noted(), store.next_due
    on_its_way, may_arrive = asyncio.Event(), asyncio.Event()

    async def held() -> int | None:
        found = await real()
        on_its_way.set()
        await may_arrive.wait()
        if fails:
            raise StoreUnreachable("the network is cut")
        return found

    monkeypatch.setattr(store, "next_due", held)
    driver = Driver(loop, 600_000)
    alarm = Alarm(store, driver, 600_000)
    driver.start()
    await until(lambda: loop.at)
    loop.at.clear()
    alarm.start()
    await on_its_way.wait()
    alarm.expect(due := await later(store, 100, "soon"))
    may_arrive.set()
    await until(lambda: loop.at)
    assert store.now() >= due - 20
    await alarm.stop()
    await driver.stop()


async def test_what_stays_due_does_not_keep_the_alarm_busy(noted: tuple[Alarm, Noted, Store]) -> None:
    alarm, loop, store = noted
    await later(store, 300, "stays")
    alarm.start()
    await until(lambda: loop.at)
    began, before = time.monotonic(), len(loop.at)
    await until(lambda: time.monotonic() - began > 1)
    assert len(loop.at) - before < 25  # one every 2 ms would be 500


class Slow:
    """A loop whose pass takes as long as the test says."""

    name = "slow"

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.ended = 0

    async def run_once(self) -> Report:
        self.began.set()
        await self.may_end.wait()
        self.ended += 1
        return Report(more=True)


async def test_a_pass_under_way_may_end_before_its_loop_is_stopped_and_no_other_begins() -> None:
    loop = Slow()
    driver = Driver(loop, 1)
    driver.start()
    await loop.began.wait()
    stopping = asyncio.ensure_future(driver.stop())
    await asyncio.sleep(0)
    loop.may_end.set()
    await stopping
    assert loop.ended == 1


async def test_a_pass_that_does_not_end_does_not_keep_its_loop_from_being_stopped() -> None:
    loop = Slow()
    driver = Driver(loop, 1)
    driver.start()
    await loop.began.wait()
    await asyncio.wait_for(driver.stop(), 5)
    assert loop.ended == 0


async def test_a_renewal_that_fails_is_the_answer_of_its_own_worker(sqlite: Store, monkeypatch: Any) -> None:
    hearts = Hearts(sqlite)
    beat = await hearts.beat("nobody", 1_000, 1_000, 0, [])
    assert beat.known is False

    class Broken:
        def beat(self, *_: Any) -> Any:
            raise OSError("no")

        def close(self) -> None:
            return None

    monkeypatch.setattr(sqlite, "heart", Broken)
    other = Hearts(sqlite)
    with pytest.raises(OSError, match="no"):
        await other.beat("nobody", 1_000, 1_000, 0, [])
    for one in (hearts, other):
        await one.close()
        with pytest.raises(ServerStopping):
            await one.beat("nobody", 1_000, 1_000, 0, [])


async def test_a_heartbeat_from_before_the_break_does_not_take_the_suspicion_away(
    on_sqlite: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, node = await on_sqlite.worker(), on_sqlite.node
    heart, may_end = on_sqlite.store.heart, threading.Event()

    class Late:
        def __init__(self) -> None:
            self.real = heart()

        def beat(self, *arguments: Any) -> Any:
            may_end.wait(10)
            return self.real.beat(*arguments)

        def close(self) -> None:
            self.real.close()

    monkeypatch.setattr(on_sqlite.store, "heart", Late)
    stream = node.streams.open(worker.session_id, await on_sqlite.caller(), always)
    beating = asyncio.ensure_future(worker.heartbeat())
    await until(lambda: worker.session_id in node.hearts._under_way)
    ending = asyncio.ensure_future(node.streams.ended(stream))
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(beating, ending)
    [session] = await on_sqlite.store.sessions()
    assert session.suspect_since is not None


async def test_a_stream_whose_worker_does_not_read_is_ended(on_sqlite: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ironflow.server.liveness.MOST_WAITING", 5)
    caller = await on_sqlite.caller()
    stream = on_sqlite.node.streams.open("s", caller, always)
    for number in range(10):
        stream.say({"check": f"run-{number}"})
    assert stream.closed
    assert [line async for line in stream.lines(lambda: 7)] == [{"hello": 7}]


async def test_while_the_database_is_away_polls_are_held_and_what_comes_behind_it_is_handed_out() -> None:
    with PostgresServer(fsync=False) as server:
        async with served(server.create_database("away"), patient()) as here:
            worker = await here.worker()
            await here.start(id="before")
            head = await worker.took()
            poll = asyncio.ensure_future(worker.poll(1, 25_000))
            await until(lambda: here.node.hub.waiting == 1)
            await asyncio.to_thread(server.kill)
            here.node.hub.told()  # a look is under way, and the database does not answer it
            step = asyncio.ensure_future(worker.transitions(wire.item_of(append(head, 3))))
            async with aiohttp.ClientSession() as http, http.get(f"{here.url}/ready") as response:
                assert response.status == 503
            assert not poll.done()
            await asyncio.to_thread(server.restart)
            assert await asyncio.wait_for(step, 20) == ["applied"]
            run = await here.start(id="behind")
            assert [one.run_id for one in await asyncio.wait_for(poll, 20)] == [run.run_id]


async def test_a_node_leaves_at_once_although_its_database_is_away() -> None:
    with PostgresServer(fsync=False) as server:
        async with served(server.create_database("away"), patient()) as here:
            worker = await here.worker()
            poll = asyncio.ensure_future(worker.poll(1, 25_000))
            await until(lambda: here.node.hub.waiting == 1)
            await asyncio.to_thread(server.kill)
            here.node.hub.told()
            await until(lambda: here.node.hub._matching)
            began = time.monotonic()
            here.node.refuse()
            assert await asyncio.wait_for(poll, 1) == []
        assert time.monotonic() - began < 6


# ---- the view of the sessions


async def test_a_worker_that_registered_elsewhere_while_a_look_was_under_way_is_known_when_it_asks(
    on_sqlite: Served, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, store = on_sqlite.node.sessions, on_sqlite.store
    elsewhere = await open_store(on_sqlite.database)
    real, has_read, may_answer = store.sessions, asyncio.Event(), asyncio.Event()

    async def slow() -> list[SessionRow]:
        found = await real()
        has_read.set()
        await may_answer.wait()
        return found

    monkeypatch.setattr(store, "sessions", slow)
    looking = asyncio.ensure_future(sessions.refresh())
    await has_read.wait()
    assert await elsewhere.open_session(live("new", elsewhere.now()))
    asking = asyncio.ensure_future(sessions.known("new", await on_sqlite.caller()))
    await asyncio.sleep(0)  # it joins the look that has missed it
    may_answer.set()
    assert (await asking).row.session_id == "new"
    await looking


@pytest.mark.parametrize("end", ["goodbye", "death"])
async def test_a_session_that_ended_at_one_node_is_not_brought_back_by_a_stream_at_another(
    sqlite_url: str, end: str
) -> None:
    async with served(sqlite_url) as one, served(sqlite_url) as two:
        worker = await one.worker()
        there = two.speaker(worker.key)
        there.session_id = worker.session_id
        await two.node.sessions.refresh()  # what it has seen is as good as new for a second
        if end == "goodbye":
            await worker.ask("DELETE", f"/sessions/{worker.session_id}")
        else:
            await worker.ask("POST", "/deaths", {"session_id": worker.session_id})
        with pytest.raises(Refused) as refused:
            await there.ask("GET", "/liveness", session_id=worker.session_id)
        assert (refused.value.status, refused.value.code) == (404, "SESSION_UNKNOWN")
        assert await one.store.sessions() == []


async def test_a_stream_at_another_node_takes_no_wish_to_drain_back(sqlite_url: str) -> None:
    async with served(sqlite_url) as one, served(sqlite_url) as two:
        worker = await one.worker()
        there = two.speaker(worker.key)
        there.session_id = worker.session_id
        await two.node.sessions.refresh()
        await worker.ask("POST", f"/sessions/{worker.session_id}/drain")
        async with there.liveness() as lines:
            assert "hello" in await anext(lines)
            [row] = await one.store.sessions()
            assert (row.wake_address, row.draining) == (two.node.wake_address, 1)


def live(session_id: str, now: int) -> SessionRow:
    """A worker that has just registered."""
    return SessionRow(
        session_id=session_id, worker_id="w", host="h", boot_id="", pid=1, process_id=session_id, routes="", slots=1,
        credits=1, started_at=now, heartbeat_at=now, expires_at=now + 60_000, kind=HTTP,
    )  # fmt: skip
