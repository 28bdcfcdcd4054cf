"""What a worker takes, when, and in which order; on both databases, with several workers in one process."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, scanner, until
from tests.recovery.program import lines, open_gate
from tests.store.build import changed, due_at_once
from tests.worker import foreign

import ironflow
from ironflow import Context, Engine
from ironflow.config import Settings
from ironflow.errors import StoreUnreachable
from ironflow.model import journal as j
from ironflow.model import recovery
from ironflow.model.fold import fold
from ironflow.model.transition import Locked, Transition
from ironflow.store.base import Store
from ironflow.worker.dispatcher import AFTER_OUTAGE_S, POLL_S, Dispatcher

pytestmark = pytest.mark.usefixtures("folder")

#: What executes right now, and the most of it there ever was, by name.
running: Counter[str] = Counter()
most: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _nothing_runs() -> Iterator[None]:
    yield
    running.clear()
    most.clear()


@ironflow.step
async def busy(group: str) -> None:
    """Count how many of a group execute together."""
    running[group] += 1
    most[group] = max(most[group], running[group])
    try:
        await asyncio.sleep(0.02)
    finally:
        running[group] -= 1


@ironflow.workflow
async def crowded(ctx: Context, group: str) -> None:
    await busy(group)


@ironflow.workflow(lane=ironflow.Lane(2, key=lambda group: group))
async def keyed(ctx: Context, group: str) -> None:
    await busy(group)


@ironflow.workflow
async def sleeper(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return await program.mark("woke")


@ironflow.workflow
async def works_and_sleeps(ctx: Context, name: str) -> None:
    await program.hold(name)
    await ctx.sleep(3600)


@ironflow.workflow(lane=1)
async def sleeper_in_lane(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "woke"


@ironflow.workflow(worker_tags=["gpu"])
async def tagged(ctx: Context) -> str:
    return "done"


WORKFLOWS = [crowded, keyed, sleeper, sleeper_in_lane, tagged, works_and_sleeps, *program.WORKFLOWS]


def engine(url: str, settings: Settings | None = None, **options: Any) -> Engine:
    return Engine(url, workflows=WORKFLOWS, settings=settings or quick(), **options)


class Counted:
    """A store that counts how often its queue is asked for work."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def peek(self, *arguments: Any) -> Any:
        self.asked += 1
        return await self._store.peek(*arguments)

    async def reserve(self, *arguments: Any) -> Any:
        self.asked += 1
        return await self._store.reserve(*arguments)


async def test_r1_two_workers_racing_for_a_run_give_it_one_owner(store_url: str) -> None:
    async with engine(store_url), engine(store_url), engine(store_url, worker=False) as client:
        handles = [await client.start(program.short, f"r{n}") for n in range(20)]
        await asyncio.gather(*(run.result(timeout=20) for run in handles))
        assert Counter(told for told, _, _ in lines("r")) == {f"r{n}": 1 for n in range(20)}
        assert {(await client.get(run.id)).row.execution_seq for run in handles} == {1}


async def test_r1_a_run_is_running_and_leased_in_one_move_or_not_taken_at_all(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The database lets no lease in for a while: a run that is made `running` all the same was taken in two moves."""
    async with engine(store_url) as one, engine(store_url) as two, engine(store_url, worker=False) as client:
        await foreign.execute(store_url, foreign.NO_LEASES)
        run = await client.start(program.line, "x")
        await until(lambda: f"run {run.id} could not be activated" in caplog.text)
        row = (await client.get(run.id)).row
        assert (row.state, row.execution_seq, row.lease_token_hash, row.started_at) == ("pending", 0, None, None)
        assert (await client.store.leases(), len(await client.store.queue()), lines()) == ([], 1, [])
        assert [event.kind for event in await client.store.journal(run.id)] == [j.RUN_CREATED]
        await foreign.execute(store_url, foreign.LEASES_AGAIN)
        await until(lambda: lines("x-2"))
        row, (lease,) = (await client.get(run.id)).row, await client.store.leases()
        assert (row.state, lease.run_id, await client.store.queue()) == ("running", run.id, [])
        assert (lease.execution_seq, lease.token_hash) == (row.execution_seq, row.lease_token_hash)
        (owner,) = [node.worker for node in (one, two) if node.worker is not None and node.worker.segments]
        assert lease.session_id == owner.session.row.session_id
        open_gate("x-2")
        await run.result(timeout=20)


async def test_r2_a_worker_whose_slots_are_all_busy_asks_for_nothing(store_url: str) -> None:
    """Runs that were claimed before a slot was free lost their leases while they waited: a fault that was shipped."""
    async with engine(store_url, quick(concurrency=1)) as only, engine(store_url, worker=False) as client:
        first = await client.start(program.line, "x")
        await until(lambda: lines("x-2"))
        assert only.worker is not None
        only.worker.dispatcher.store = counted = Counted(only.worker.dispatcher.store)  # type: ignore
        waiting = [await client.start(program.short, f"w{n}") for n in range(3)]
        only.worker.dispatcher.told()
        await until(lambda: only.worker is not None and only.worker.dispatcher.backlog)
        assert counted.asked == 0
        assert {queued.status for queued in await client.store.queue()} == {"ready"}
        assert [lease.run_id for lease in await client.store.leases()] == [first.id]
        open_gate("x-2")
        await asyncio.gather(*(run.result(timeout=20) for run in [first, *waiting]))
        assert counted.asked > 0


@pytest.mark.parametrize("workflow", [crowded, keyed], ids=["group", "key"])
async def test_g34_r39_never_more_than_the_limit_execute_and_others_are_not_delayed(
    store_url: str, workflow: ironflow.Workflow[str, None]
) -> None:
    limits = {"limits": {"g": 2}} if workflow is crowded else {}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(engine(store_url, worker=False))
        handles = [await client.start(workflow, "g", **limits) for _ in range(8)]
        free = [await client.start(crowded, "free") for _ in range(8)]
        for _ in range(2):
            await stack.enter_async_context(engine(store_url))
        await asyncio.gather(*(run.result(timeout=20) for run in [*free, *handles]))
        assert most["g"] == 2
        assert most["free"] > 2
        assert await client.store.lanes() == []


async def test_the_end_of_a_run_lets_the_next_of_its_lane_in_without_polling(store_url: str) -> None:
    async with engine(store_url) as one, engine(store_url):
        began = time.monotonic()
        handles = [await one.start(crowded, "g", limits={"g": 1}) for _ in range(6)]
        await asyncio.gather(*(run.result(timeout=20) for run in handles))
        assert most["g"] == 1
        assert time.monotonic() - began < 2 * POLL_S


async def test_g34_a_lost_lease_gives_its_place_in_the_lane_to_one_run(store_url: str) -> None:
    async with engine(store_url) as one:
        held = await one.start(program.line, "x", limits={"g": 1})
        waits = await one.start(program.short, "later", limits={"g": 1})
        await until(lambda: lines("x-2"))
        assert one.worker is not None
        await one.worker.dispatcher.scanner.session_died(one.worker.session.row.session_id)
        open_gate("x-2")
        assert await held.result(timeout=20) == ["x-1", "x-2", "x-3"]
        assert await waits.result(timeout=20) == "later"
        # Between the death of a session and the recovery of its runs a place is free for whoever waits: either may go
        # first, but never into the midst of the other.
        again, end, other = lines("x-2")[-1][2], lines("x-3")[0][2], lines("later")[0][2]
        assert not again < other < end


async def test_r40_higher_priority_goes_first_and_age_decides_between_equals(store_url: str) -> None:
    async with engine(store_url, worker=False) as client:
        for name, priority in (("p1", 0), ("p2", 5), ("p3", 0), ("p4", 9)):
            await client.start(program.short, name, priority=priority)
        async with engine(store_url, quick(concurrency=1)):
            await until(lambda: len(lines("p")) == 4)
    assert [told for told, _, _ in lines("p")] == ["p4", "p2", "p1", "p3"]


async def test_r40_a_run_that_is_scheduled_for_later_is_never_taken_before(store_url: str) -> None:
    """Runs scheduled for later were picked at once on PostgreSQL: a fault that was shipped."""
    async with engine(store_url) as one:
        soon = datetime.now(UTC) + timedelta(seconds=0.4)
        later = await one.start(program.short, "later", at=soon, priority=100)
        far = await one.start(program.short, "far", at=datetime.now(UTC) + timedelta(hours=1), priority=100)
        assert await one.run(program.short, "now") == "now"
        assert [told for told, _, _ in lines()] == ["now"]
        await later.result(timeout=20)
        row = (await one.get(later.id)).row
        assert row.started_at is not None
        assert row.started_at >= round(soon.timestamp() * 1000)
        assert (await one.get(far.id)).state == "pending"


async def test_a_run_with_tags_of_its_own_is_found_by_a_worker_that_carries_them(store_url: str) -> None:
    async with (
        engine(store_url, worker=False) as client,
        engine(store_url, tags=("cpu",)) as plain,
        engine(store_url, tags=("gpu", "big")),
    ):
        runs = [await client.start(program.short, "x", worker_tags=["gpu", "big"]), await client.start(tagged)]
        assert [await run.result(timeout=20) for run in runs] == ["x", "done"]
        assert plain.worker is not None
        assert not any("gpu" in route for route in plain.worker.session.routes)
        leaving = await client.start(program.short, "y", worker_tags=["nobody"])
        await plain.run(program.short, "younger")  # it blocks nobody behind it
        assert "NO_ELIGIBLE_WORKER" in {hold.code for hold in await leaving.why()}


async def test_g27_a_sleeping_run_holds_neither_lease_nor_slot(store_url: str) -> None:
    """Not one that never held any, because it slept before anything else, and not one that gives its own back."""
    async with engine(store_url, quick(concurrency=1)) as one:
        for flow, given in ((sleeper, 3600.0), (works_and_sleeps, "held")):
            asleep = await one.start(flow, given)
            if flow is works_and_sleeps:
                await until(lambda: lines("held"))
                assert [lease.run_id for lease in await one.store.leases()] == [asleep.id]
                open_gate("held")
            await until(lambda run_id=asleep.id: _state(one, run_id, "sleeping"))
            found = await one.store.holdings(asleep.id)
            assert found is not None
            assert (found.lease, found.queue) == (None, None)
            assert await one.run(program.short, "x") == "x"
        assert await one.store.leases() == []


async def _state(one: Engine, run_id: str, state: str) -> bool:
    return (await one.get(run_id)).state == state


async def test_a_due_run_that_must_ask_a_lane_wakes_without_waiting_for_the_fallback(store_url: str) -> None:
    """It may not be taken past its lane, so it goes through the queue: at once, not at the waker's next tick."""
    async with engine(store_url, quick(waker_interval_ms=60_000)) as one:
        assert await one.run(sleeper_in_lane, 0.05) == "woke"


async def test_due_runs_of_workflows_that_nobody_here_has_do_not_keep_the_worker_awake(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks, finds nothing that it could take, and pauses for as long as it does where nothing is due."""
    async with engine(store_url) as one:
        asleep = await one.start(sleeper, 3600.0)
        await until(lambda: _state(one, asleep.id, "sleeping"))
    async with engine(store_url, worker=False) as client:
        await client.store.decide([asleep.id], due_at_once)  # only now: the worker that had its code is gone
    async with Engine(store_url, workflows=[program.short], settings=quick()) as other:
        await until(lambda: _state(other, asleep.id, "pending"))  # the waker put it into the queue
        assert await other.run(program.short, "x") == "x"
        assert other.worker is not None
        pauses = _pauses_of(other.worker.dispatcher, monkeypatch)
        other.worker.dispatcher.expect(0)
        await until(lambda: POLL_S in pauses)
        assert len(pauses) < 4, pauses


def _pauses_of(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long it means to pause whenever it does, from now on, seconds."""
    pauses: list[float] = []
    wait_for = asyncio.wait_for

    async def noted(awaitable: Any, timeout: float | None) -> Any:
        if asyncio.current_task() is dispatcher._standing._task and timeout is not None:
            pauses.append(timeout)
        return await wait_for(awaitable, timeout)

    monkeypatch.setattr(asyncio, "wait_for", noted)
    return pauses


@pytest.mark.parametrize(
    ("error", "least"), [(StoreUnreachable("the network is cut"), AFTER_OUTAGE_S), (RuntimeError("a bug"), POLL_S)]
)
async def test_a_look_for_what_is_due_that_fails_is_not_repeated_at_once(
    store_url: str, monkeypatch: pytest.MonkeyPatch, error: Exception, least: float
) -> None:
    """What is due stays due as long as it cannot be read: a look per millisecond, each with its traceback."""
    async with engine(store_url) as one:
        assert one.worker is not None
        finder = one.worker.dispatcher
        await until(lambda: finder._next.at is None)
        pauses, failures = _pauses_of(finder, monkeypatch), 0

        async def fails(*arguments: Any) -> Any:
            nonlocal failures
            failures += 1
            raise error

        monkeypatch.setattr(finder.store, "due", fails)
        finder.expect(0)
        await until(lambda: failures and pauses)
        assert pauses[0] == least


async def test_p6_an_ended_run_is_left_alone_by_every_loop(store_url: str) -> None:
    async with engine(store_url) as one:
        run = await one.start(program.short, "x")
        await run.result(timeout=20)
        before = [event.seq for event in await one.store.journal(run.id)]
        # Sweeps for what nobody has leave alone what began within the time of a lease, ended or not.
        await one.store.decide([run.id], changed(started_at=1, created_at=1))
        assert (await one.store.unowned(one.store.now(), 10)).run_ids == []
        await one.store.decide([run.id], _never_requeued)
        assert one.worker is not None
        for driver in one.worker.dispatcher.drivers:
            await driver.loop.run_once()
        await (await scanner(one.store)).run_once()
        one.worker.dispatcher.wake()
    async with engine(store_url) as again:
        assert await again.handle(run.id, program.short).result(timeout=20) == "x"
        assert [event.seq for event in await again.store.journal(run.id)] == before
    assert len(lines("x")) == 1


def _never_requeued(locked: Locked) -> Transition | None:
    """What the sweep for lost runs decides about one that it met all the same."""
    return recovery.unowned(locked, recovery.RecoveryPolicy(), locked.now)


async def test_one_run_that_cannot_be_opened_stops_none_of_its_batch(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ironflow.worker import door

    async with engine(store_url, worker=False) as client:
        runs = [await client.start(program.short, name) for name in ("a", "bad", "c")]
        real = door.History.of
        monkeypatch.setattr(door.History, "of", staticmethod(lambda events: _checked(real, events)))
        async with engine(store_url):
            assert [await runs[0].result(timeout=20), await runs[2].result(timeout=20)] == ["a", "c"]
            with pytest.raises(ironflow.RunFailed, match="could not be opened: RuntimeError: a bug of ours"):
                await runs[1].result(timeout=20)
        assert fold(await client.store.journal(runs[1].id)).breaches == []


def _checked(real: Any, events: Any) -> Any:
    history = real(events)
    if history.input == "bad":
        raise RuntimeError("a bug of ours")
    return history
