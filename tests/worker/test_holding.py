"""How a worker holds what it took: renewing it, giving it up when it must, pausing, leaving. On both databases."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import lines, open_gate

import ironflow
from ironflow import Context, Engine
from ironflow.config import Settings
from ironflow.errors import StoreUnreachable
from ironflow.model import journal as j
from ironflow.model.fold import fold

pytestmark = pytest.mark.usefixtures("folder")


@ironflow.step
async def block(seconds: float) -> str:
    """What a step must not do: block the loop."""
    time.sleep(seconds)
    return "blocked"


@ironflow.workflow
async def blocking(ctx: Context, seconds: float) -> str:
    return await block(seconds)


@ironflow.workflow
async def threaded(ctx: Context, name: str) -> str:
    return await program.hold_in_thread(name)


@ironflow.step(at_most_once=True)
async def once(name: str) -> str:
    return await program.hold.fn(name)


WORKFLOWS = [blocking, threaded, *program.WORKFLOWS]


def engine(url: str, settings: Settings | None = None, **options: Any) -> Engine:
    return Engine(url, workflows=WORKFLOWS, settings=settings or quick(), **options)


def worker_of(one: Engine) -> Any:
    assert one.worker is not None
    return one.worker


class Failing:
    """A heart that fails while the test says so."""

    def __init__(self, heart: Any, state: dict[str, bool]) -> None:
        self._heart = heart
        self._state = state

    def beat(self, *arguments: Any) -> Any:
        if self._state["failing"]:
            raise StoreUnreachable("the network is cut")
        return self._heart.beat(*arguments)

    def close(self) -> None:
        self._heart.close()


# ---- renewing


async def test_g8_a_step_longer_than_the_lease_is_executed_once(store_url: str) -> None:
    settings = quick(lease_ttl_ms=300, session_ttl_ms=300)
    async with engine(store_url, settings) as one, engine(store_url, settings):
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        (lease,) = await one.store.leases()
        await until(lambda: one.store.now() > lease.acquired_at + 1_000)
        open_gate("x-2")
        await run.result(timeout=20)
        assert len(lines("x-2")) == 1
        assert (await one.get(run.id)).row.lease_recoveries == 0


async def test_a_body_that_blocks_the_loop_is_named_and_costs_no_lease(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The scanner of another worker looks on all the while; it has a loop of its own, in a thread."""
    settings = quick(lease_ttl_ms=1_000, session_ttl_ms=1_000)
    with caplog.at_level(logging.WARNING, "ironflow.worker"), engine(store_url, settings):
        async with engine(store_url, settings) as one:
            run = await one.start(blocking, 2.5)
            assert await run.result(timeout=20) == "blocked"
            assert (await one.get(run.id)).row.lease_recoveries == 0
    warned = [record.getMessage() for record in caplog.records if "has not answered" in record.getMessage()]
    assert len(warned) == 1, "one line in a minute about one function"
    assert "block (" in warned[0]
    assert "test_holding.py" in warned[0]


class Silent:
    """A heart whose server says nothing for a while, and then that it is away; so many times."""

    def __init__(self, heart: Any, silences: list[float]) -> None:
        self._heart = heart
        self._silences = silences

    def beat(self, *arguments: Any) -> Any:
        if self._silences:
            threading.Event().wait(self._silences.pop())
            raise StoreUnreachable("no answer")
        return self._heart.beat(*arguments)

    def close(self) -> None:
        self._heart.close()


async def test_a_server_that_says_nothing_is_no_blocked_loop_and_no_process_that_stood_still(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a beat waits for was counted as silence of this process, and blamed on where its idle loop sits."""
    settings = quick(renewal_interval_ms=500, lease_ttl_ms=10_000, session_ttl_ms=10_000)
    silences = [1.3, 1.3]
    with caplog.at_level(logging.WARNING, "ironflow.worker"):
        async with engine(sqlite_url, settings) as one:
            worker, real = worker_of(one), one.store.heart
            monkeypatch.setattr(one.store, "heart", lambda: Silent(real(), silences))
            await asyncio.to_thread(worker.session._heartbeat.stop)
            worker.session._heartbeat = worker.session._start_heartbeat()
            await until(lambda: not silences)
            (before,) = await one.store.sessions()
            await until(lambda: _beaten(one, before.heartbeat_at))
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if "renewal" in line], "the outage itself is told"
    assert not [line for line in told if "did not execute" in line or "has not answered" in line], told


async def test_a_heartbeat_that_cannot_connect_at_first_beats_later(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(store_url, worker=False) as client:
        one = engine(store_url)
        async with one:
            store, worker = one.store, worker_of(one)
            real, failures = store.heart, [StoreUnreachable("not yet"), StoreUnreachable("not yet")]

            def heart() -> Any:
                if failures:
                    raise failures.pop()
                return real()

            monkeypatch.setattr(store, "heart", heart)
            await asyncio.to_thread(worker.session._heartbeat.stop)
            worker.session._heartbeat = worker.session._start_heartbeat()
            (before,) = await client.store.sessions()
            await until(lambda: not failures)
            await until(lambda: _beaten(client, before.heartbeat_at))


async def _beaten(client: Engine, since: int) -> bool:
    return all(session.heartbeat_at > since for session in await client.store.sessions())


async def test_r11_a_worker_that_is_cut_off_for_a_lease_time_gives_everything_up(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = {"failing": False}
    async with engine(store_url, quick(recovery_interval_ms=1_000)) as one:
        store, worker = one.store, worker_of(one)
        real = store.heart
        monkeypatch.setattr(store, "heart", lambda: Failing(real(), cut))
        await asyncio.to_thread(worker.session._heartbeat.stop)
        worker.session._heartbeat = worker.session._start_heartbeat()
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        cut["failing"] = True
        began = time.monotonic()
        await until(lambda: lines("cancelled x-2"))
        assert 0.9 < time.monotonic() - began < 5
        cut["failing"] = False
        open_gate("x-2")
        assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
        counts = Counter(told for told, _, _ in lines("x-"))
        assert (counts["x-1"], counts["x-3"]) == (1, 1)
        assert counts["x-2"] >= 2


async def test_r10_a_refused_renewal_stops_the_handler_and_nothing_more_is_written(store_url: str) -> None:
    async with engine(store_url) as one, engine(store_url, worker=False) as other:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))

        def elsewhere(locked: Any) -> Any:  # as if another node had recovered it, and somebody paused it there
            from ironflow.model import operator

            return operator.cancel(locked, "somebody", force=True)

        await other.store.decide([run.id], elsewhere)
        before = [event.seq for event in await other.store.journal(run.id)]
        await until(lambda: lines("cancelled x-2"))
        assert worker_of(one).segments == {}
        assert [event.seq for event in await other.store.journal(run.id)] == before
        assert (await other.get(run.id)).state == "cancelled"


async def test_only_what_executes_is_reported_as_executing(store_url: str) -> None:
    """A death is charged to what executed. A run that only waits here for a short timer is innocent."""

    async with engine(store_url) as one:
        await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        await until(lambda: _executing(one, [1]))
        open_gate("x-2")


async def _executing(one: Engine, wanted: list[int]) -> bool:
    return [lease.executing for lease in await one.store.leases()] == wanted


# ---- pausing


async def test_r33_r34_pausing_stops_before_the_next_step_and_resuming_goes_on_from_there(store_url: str) -> None:
    async with engine(store_url) as one:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        assert await run.pause()
        open_gate("x-2")
        await until(lambda: worker_of(one).segments == {})
        assert (await one.store.leases(), await one.store.queue()) == ([], [])
        assert [told for told, _, _ in lines("x-")] == ["x-1", "x-2"]
        assert await run.resume()
        assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
        assert (await one.get(run.id)).row.lease_recoveries == 0
        assert Counter(told for told, _, _ in lines("x-"))["x-1"] == 1


@pytest.mark.parametrize("ended", [False, True], ids=["the body runs on", "the body has ended meanwhile"])
async def test_r36_pause_and_resume_inside_one_step_execute_it_once(store_url: str, ended: bool) -> None:
    """Pause and resume inside one step started a second handler beside the first: a fault that was shipped."""
    async with engine(store_url) as one:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        await run.pause()
        if ended:
            open_gate("x-2")
            await until(lambda: all(body.task.done() for body in worker_of(one).orphans._bodies.values()))
        await run.resume()
        open_gate("x-2")
        assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
        assert Counter(told for told, _, _ in lines("")) == {"x-1": 1, "x-2": 1, "x-3": 1}
        view = fold(await one.store.journal(run.id))
        assert view.breaches == []
        assert [e.kind for e in await one.store.journal(run.id)].count(j.STEP_INTERRUPTED) == 0


async def test_r36_at_once_and_many_times(store_url: str) -> None:
    async with engine(store_url) as one:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        for _ in range(10):
            await run.pause()
            await run.resume()
        open_gate("x-2")
        assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
        assert Counter(told for told, _, _ in lines("")) == {"x-1": 1, "x-2": 1, "x-3": 1}


async def test_g35_a_run_that_is_cancelled_has_its_body_cancelled_and_gets_no_further_status(store_url: str) -> None:
    """An abandoned run gets no status write."""
    async with engine(store_url) as one:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        assert await run.cancel()
        await until(lambda: lines("cancelled x-2"))
        await until(lambda: worker_of(one).segments == {})
        events = await one.store.journal(run.id)
        assert [event.kind for event in events if event.kind in j.TERMINAL_KINDS] == [j.RUN_CANCELLED]
        assert events[-1].kind == j.RUN_CANCELLED
        assert (await one.get(run.id)).state == "cancelled"


# ---- being forgotten, leaving


async def test_g38_a_worker_whose_session_was_removed_registers_anew_and_works_on(store_url: str) -> None:
    async with engine(store_url) as one:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        (before,) = await one.store.sessions()
        await one.store.close_session(before.session_id)
        await until(lambda: worker_of(one).session.row.session_id != before.session_id)
        open_gate("x-2")
        assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
        assert await one.run(program.short, "more") == "more"
        (after,) = await one.store.sessions()
        assert after.session_id != before.session_id


async def test_g40_leaving_waits_for_the_body_that_executes_and_starts_nothing_more(store_url: str) -> None:
    one = engine(store_url, quick(drain_timeout_ms=20_000))
    async with engine(store_url, worker=False) as client:
        await one.__aenter__()
        run = await client.start(program.line, "x")
        await until(lambda: lines("x-2"))
        closing = asyncio.ensure_future(one.close())
        await until(lambda: worker_of(one).stopping)
        late = await client.start(program.short, "late")
        open_gate("x-2")
        await closing
        left = await client.get(run.id)
        assert (left.state, left.row.lease_recoveries) == ("pending", 0), "given back between two steps, uncharged"
        assert [step.state for step in left.steps.values()] == ["completed", "completed"]
        assert lines("x-3") == []
        assert ((await client.get(late.id)).state, lines("late")) == ("pending", [])
        assert await client.store.sessions() == []


async def test_g40_the_second_stop_is_at_once_and_gives_everything_back_uncharged(store_url: str) -> None:
    one = engine(store_url, quick(drain_timeout_ms=60_000))
    async with engine(store_url, worker=False) as client:
        await one.__aenter__()
        run = await client.start(program.line, "x")
        await until(lambda: lines("x-2"))
        patient = asyncio.ensure_future(one.worker.stop())  # type: ignore[union-attr]
        await until(lambda: worker_of(one).stopping)
        patient.cancel()
        await asyncio.gather(patient, return_exceptions=True)
        began = time.monotonic()
        await one.close(drain_ms=0)
        assert time.monotonic() - began < 2
        row = (await client.get(run.id)).row
        assert (row.state, row.lease_recoveries) == ("pending", 0)
        assert [event.kind for event in await client.store.journal(run.id)][-1] == j.RUN_RELEASED
        assert len(lines("cancelled x-2")) == 1
        assert (await client.store.sessions(), await client.store.leases()) == ([], [])


async def test_a_cancelled_body_in_a_thread_has_really_ended_before_its_run_goes_on(store_url: str) -> None:
    async with engine(store_url) as one:
        run = await one.start(threaded, "x")
        await until(lambda: lines("x"))
        body = next(iter(worker_of(one).segments[run.id].bodies))
        await run.cancel()
        await until(lambda: body.task.done())
        assert body.info.cancelled


async def test_a_worker_that_is_asked_to_leave_takes_nothing_more_and_ends_what_it_has(store_url: str) -> None:
    async with engine(store_url) as one, engine(store_url, worker=False) as client:
        run = await client.start(program.line, "x")
        await until(lambda: lines("x-2"))
        assert await client.store.drain(worker_of(one).session.row.session_id)
        await until(lambda: worker_of(one).dismissed.is_set())
        later = await client.start(program.short, "later")
        open_gate("x-2")
        assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
        assert (await client.get(later.id)).row.state == "pending"
        async with engine(store_url):
            assert await later.result(timeout=20) == "later"
