"""Timers: durable when the run leaves, free of charge while it stays."""

from __future__ import annotations

import asyncio

from tests.engine.harness import START, Harness

from ironflow.context import Context, step, workflow
from ironflow.engine.plan import SUSPENSION
from ironflow.model import journal as j


@step
async def a() -> str:
    return "a"


@step
async def b() -> str:
    return "b"


@workflow
async def nap(ctx: Context) -> str:
    await ctx.sleep("10s")
    return await a()


def test_a_first_act_that_is_a_sleep_leaves_with_the_commit_that_creates_the_run() -> None:
    h = Harness(nap).fresh()
    assert h.new() == ["run_created", "run_started", "timer_started main/t1", "run_suspended"]
    assert (h.state, h.waits, h.running) == ("sleeping", {"main/t1": START + 10_000}, {})


def test_a_sleep_survives_its_worker_and_is_settled_at_activation() -> None:
    h = Harness(nap).fresh().later(10_000).replay()
    assert h.new() == ["run_resumed", "timer_fired main/t1", "started a"]
    assert h.end("a", "ok").output == "ok"


def test_a_run_that_is_woken_early_sleeps_on_to_the_same_time() -> None:
    h = Harness(nap).fresh().later(4_000).replay()
    assert h.new() == ["run_resumed", "run_suspended"]
    assert h.waits == {"main/t1": START + 10_000}
    h.later(1_000).replay().later(5_000).replay()
    assert h.names() == ["a"]


def test_the_recorded_due_time_counts_even_if_the_code_now_says_another() -> None:
    @workflow(name="nap")
    async def longer(ctx: Context) -> str:
        await ctx.sleep("1h")
        return await a()

    h = Harness(nap).fresh().later(10_000).replay(longer)
    assert h.names() == ["a"]


def test_a_timeout_around_a_step_costs_no_record() -> None:
    @workflow
    async def limited(ctx: Context) -> str:
        async with asyncio.timeout(30):
            return await a()

    h = Harness(limited).fresh()
    assert h.plan.wake_at == START + 30_000
    assert h.end("a", "a").output == "a"
    assert not [kind for kind in h.kinds() if kind.startswith("timer")]


def test_a_withdrawn_timer_wakes_nobody() -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        async with asyncio.timeout(30):
            await a()
        await b()

    h = Harness(flow).fresh().end("a", "a")
    assert h.plan.wake_at is None
    assert h.later(60_000).settle().names() == ["b"]
    assert h.plan.events == []


def test_a_timeout_that_fires_cancels_its_step_and_is_journaled_as_a_fact() -> None:
    @workflow
    async def limited(ctx: Context) -> str:
        try:
            async with asyncio.timeout(30):
                return await a()
        except TimeoutError:
            return await b()

    h = Harness(limited).fresh().later(30_000).settle()
    assert h.new() == ["timer_fired main/l1", "started b"]
    assert h.stopped == ["main/1:a"]
    h.end("a", "late")  # dropped
    assert h.new() == ["cancelled a"]
    h.recover()
    assert h.end("b", "b").output == "b"


def test_timers_fire_in_the_order_of_their_due_times() -> None:
    @workflow
    async def flow(ctx: Context) -> list[str]:
        seen: list[str] = []

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            seen.append(name)

        await asyncio.gather(after(3, "three"), after(1, "one"), after(2, "two"), after(1, "one again"))
        return seen

    h = Harness(flow).fresh().later(60_000).replay()
    assert h.output == ["one", "one again", "two", "three"]
    fired = [event.step_id for event in h.journal if event.kind == j.TIMER_FIRED]
    again = Harness(flow)
    again.journal = h.journal[:-1]
    again.recover()
    assert again.output == h.output
    assert len(fired) == 4


def test_a_timer_fires_while_the_run_is_owned_and_nothing_else_happens() -> None:
    @workflow
    async def flow(ctx: Context) -> list[object]:
        return list(await ctx.first(ctx.sleep("2s"), a()))

    h = Harness(flow).fresh()
    assert h.plan.wake_at == START + 2_000
    h.later(2_000).settle().end("a", "late")
    assert h.output == [0, None]


def test_a_timer_that_a_run_left_with_and_no_longer_needs_is_forgotten() -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        index, _ = await ctx.first(ctx.sleep("1h"), ctx.sleep("1s"))
        return f"{index} {await a()}"

    h = Harness(flow).fresh()
    assert len(h.waits) == 2
    h.later(1_000).replay()
    assert h.plan.wake_at is None
    h.recover()
    assert h.end("a", "a").output == "1 a"


def test_a_timer_is_recorded_once_however_often_the_run_leaves() -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.first(ctx.sleep("1h"), ctx.sleep("2h"))

    h = Harness(flow).fresh().later(1_000).replay().later(1_000).replay()
    assert h.kinds().count(j.TIMER_STARTED) == 2
    assert h.kinds().count(j.RUN_SUSPENDED) == 3


def test_what_sleeps_and_what_backs_off_are_both_waited_for() -> None:
    @step(retry=2)
    async def flaky() -> str: ...

    @workflow
    async def flow(ctx: Context) -> str:
        return await asyncio.wait_for(flaky.using(retry=3)(), 3_600)

    h = Harness(flow, chance=0.5).fresh().fail("flaky", ValueError("x"))
    assert h.state == "running"  # a second is held
    h.later(60_000).settle()
    assert h.names() == ["flaky"]


def test_a_parked_run_goes_on_without_replaying() -> None:
    begun: list[str] = []

    @workflow
    async def parked(ctx: Context) -> str:
        begun.append("once")
        await ctx.sleep("1h")
        return await a()

    h = Harness(parked).fresh()
    assert h.plan.leave is not None
    assert h.plan.leave.kind == SUSPENSION
    h.later(3_600_000).wake()
    assert h.new() == ["run_resumed", "timer_fired main/t1", "started a"]
    assert begun == ["once"]
    assert h.end("a", "a").output == "a"
