"""Timers that enter while the next look is made: none is lost, none enters twice, and a failure is somebody's."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

import ironflow
from ironflow.errors import StoreUnreachable
from ironflow.model.capacity import RunHead
from ironflow.worker.entering import Entering

woken: Counter[str] = Counter()


@ironflow.workflow
async def waits_until(ctx: ironflow.Context, due: datetime) -> datetime:
    await ctx.sleep_until(due)
    await rises(ctx.run_id)
    return due


@ironflow.step
async def rises(run_id: str) -> None:
    woken[run_id] += 1


def head(run_id: str) -> RunHead:
    return RunHead(run_id, "w", "1", "sleeping", "w", run_id, 0, 1, 0, 1, 0, 0, 0, None, None, 0, None)


class Takes:
    """A door that opens when it is told to."""

    def __init__(self) -> None:
        self.open: dict[str, asyncio.Future[int]] = {}

    async def take(self, heads: list[RunHead]) -> int:
        opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.open[heads[0].run_id] = opened
        return await opened

    async def asked(self, *run_ids: str) -> None:
        while self.open.keys() != set(run_ids):
            await asyncio.sleep(0)


async def test_a_second_timer_enters_while_the_first_one_is_on_its_way() -> None:
    takes = Takes()
    entering = Entering(takes.take)
    entering.start([head("a")])
    entering.start([head("b")])
    await takes.asked("a", "b")
    takes.open["b"].set_result(1)
    await entering.some(10)
    assert bool(entering)
    takes.open["a"].set_result(1)
    assert await entering.all_in()
    assert not entering


async def test_one_that_stays_out_is_told_once() -> None:
    takes = Takes()
    entering = Entering(takes.take)
    entering.start([head("a"), head("b")])
    await takes.asked("a")
    takes.open["a"].set_result(1)
    await entering.some(10)
    assert entering.short
    assert not await entering.all_in()
    assert not entering.short
    assert await entering.all_in()


@pytest.mark.parametrize("wait", ["some", "all_in"])
async def test_what_kept_one_out_is_raised_where_it_is_waited_for(wait: str) -> None:
    takes = Takes()
    entering = Entering(takes.take)
    entering.start([head("a")])
    await takes.asked("a")
    takes.open["a"].set_exception(StoreUnreachable("away"))
    with pytest.raises(StoreUnreachable, match="away"):
        await (entering.some(10) if wait == "some" else entering.all_in())
    assert not entering


async def test_what_is_on_its_way_at_the_end_is_waited_for_and_then_given_up() -> None:
    takes = Takes()
    entering = Entering(takes.take)
    entering.start([head("a")])
    await takes.asked("a")
    await entering.stop(0)
    assert takes.open["a"].cancelled()


async def test_timers_that_become_due_one_after_the_other_each_wake_their_run_once(store_url: str) -> None:
    async with ironflow.open(store_url, workflows=[waits_until], concurrency=20) as engine:
        first = datetime.now(UTC) + timedelta(seconds=0.5)
        dues = [first + timedelta(milliseconds=2 * n) for n in range(100)]
        runs = [await engine.start(waits_until, due) for due in dues]
        assert await asyncio.gather(*(run.result() for run in runs)) == dues
        assert {woken[run.id] for run in runs} == {1}
