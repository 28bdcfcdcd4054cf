"""Timeouts that an edit puts around code, takes away or changes, while runs are under way in it."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.engine.harness import START, Harness

from ironflow.context import Context, step, workflow
from ironflow.model import journal as j


@step
async def a() -> Any: ...


@step
async def b() -> Any: ...


def flow(fn: Any) -> Any:
    return workflow(name="flow")(fn)


async def nap(ctx: Context) -> Any:
    await ctx.sleep("3s")
    return await a()


async def limited_nap(ctx: Context) -> Any:
    async with asyncio.timeout(3_600):
        await ctx.sleep("3s")
        return await a()


def test_a_timeout_put_around_the_sleep_that_a_run_is_in_lets_it_sleep_on() -> None:
    h = Harness(flow(nap)).fresh().later(3_000).replay(flow(limited_nap))
    assert h.new() == ["run_resumed", "timer_fired main/t1", "started a"]
    assert h.recover().end("a", "done").output == "done"


def test_a_timeout_put_around_a_sleep_limits_it_from_where_the_code_got_there() -> None:
    async def tight(ctx: Context) -> Any:
        async with asyncio.timeout(2):
            await ctx.sleep("3s")

    h = Harness(flow(nap)).fresh().later(1_000).replay(flow(tight))
    assert h.waits == {"main/t1": START + 3_000, "main/l1": START + 2_000}
    assert isinstance(h.later(1_000).replay().error, TimeoutError)


def test_a_timeout_taken_from_around_a_sleep_lets_the_run_sleep_on() -> None:
    h = Harness(flow(limited_nap)).fresh()
    assert h.waits == {"main/t1": START + 3_000, "main/l1": START + 3_600_000}
    h.later(3_000).replay(flow(nap))
    assert h.end("a", "done").output == "done"


async def two_naps(ctx: Context) -> Any:
    async with asyncio.timeout(5):
        await ctx.sleep("1s")
    await ctx.sleep("1m")
    return "slept"


def test_a_timeout_put_around_one_that_has_not_fired_is_due_as_the_code_has_it() -> None:
    async def limited(ctx: Context) -> Any:
        async with asyncio.timeout(3_600):
            return await two_naps(ctx)

    h = Harness(flow(two_naps)).fresh().later(1_000).replay()
    assert h.waits == {"main/t2": START + 61_000}
    h.later(60_000).replay(flow(limited))
    assert h.output == "slept"


def test_a_limit_that_the_code_has_changed_is_journaled_again_when_the_run_leaves() -> None:
    async def longer(ctx: Context) -> Any:
        async with asyncio.timeout(7_200):
            await ctx.sleep("3s")
            return await a()

    h = Harness(flow(limited_nap)).fresh().later(1_000).replay(flow(longer))
    assert h.new() == ["run_resumed", "timer_started main/l1", "run_suspended"]
    assert h.waits == {"main/t1": START + 3_000, "main/l1": START + 7_200_000}
    assert h.later(500).replay().new() == ["run_resumed", "run_suspended"]


async def falls_back(ctx: Context) -> Any:
    try:
        async with asyncio.timeout(5):
            await a()
    except TimeoutError:
        await b()
    return "fell back"


def fallen_back() -> Harness:
    return Harness(flow(falls_back)).fresh().later(5_000).settle().end("a")


def test_a_limit_that_fired_and_is_longer_now_has_fired_all_the_same() -> None:
    async def longer(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(60):
                await a()
        except TimeoutError:
            await b()
        return "fell back"

    assert fallen_back().recover(flow(longer)).end("b").output == "fell back"


def test_a_timeout_put_around_one_that_fired_is_a_divergence_and_does_not_fire_in_its_place() -> None:
    async def limited(ctx: Context) -> Any:
        async with asyncio.timeout(3_600):
            return await falls_back(ctx)

    h = fallen_back()
    fired = next(event.seq for event in h.journal if event.kind == j.TIMER_FIRED)
    h.recover(flow(limited))
    assert h.state == "paused"
    told = h.last(j.RUN_PAUSED)
    assert (told["step_id"], told["recorded"]) == ("main/l1", f"timer_fired at seq {fired}")
    assert told["expected"] == "a limit that had not passed by then, while main/l2 had"
    assert h.resume().replay(flow(falls_back)).end("b").output == "fell back"


def test_a_limit_that_fired_and_is_gone_is_a_divergence() -> None:
    async def unlimited(ctx: Context) -> Any:
        return await a()

    h = fallen_back().recover(flow(unlimited))
    told = h.last(j.RUN_PAUSED)
    assert (h.state, told["step_id"], told["expected"]) == ("paused", "main/l1", "main/1:a instead")
