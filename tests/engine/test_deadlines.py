"""A run's own deadline: it ends the run wherever its code is, once, and over crashes."""

from __future__ import annotations

import asyncio

from tests.engine.harness import START, Harness

from ironflow.context import Context, Retry, step, workflow
from ironflow.errors import RunTimeout


@step
def count(label: str) -> int:
    return 1


@step
async def a() -> str:
    return "a"


@step
async def b() -> str:
    return "b"


@workflow
async def line(ctx: Context) -> list[int]:
    return [await count(label) for label in "xyz"]


def test_a_run_ends_at_its_deadline_wherever_its_code_is() -> None:
    h = Harness(line, deadline_at=START + 500).fresh()
    assert h.plan.wake_at == START + 500
    h.later(500).settle()
    assert (h.state, h.stopped) == ("running", ["main/1:count"])
    h.end("count", 1)
    assert (h.new(), h.state) == (["cancelled count", "run_failed"], "failed")
    assert isinstance(h.error, RunTimeout)


def test_a_back_off_ends_with_the_deadline() -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await a.using(retry=Retry(2, backoff="4s"))()

    h = Harness(flow, deadline_at=START + 500).fresh().end("a", error=ValueError("x"))
    assert h.later(500).settle().new() == ["cancelled a", "run_failed"]


def test_a_crash_between_stopping_for_the_deadline_and_the_end_changes_nothing() -> None:
    @workflow
    async def flow(ctx: Context) -> list[str]:
        return await asyncio.gather(a(), b())

    h = Harness(flow, deadline_at=START + 500).fresh().later(500).settle().end("a", "a")
    assert h.new() == ["cancelled a"]
    h.recover()
    assert h.new() == ["run_resumed", "cancelled b", "run_failed"]
    assert isinstance(h.error, RunTimeout)


def test_a_sleeping_run_is_woken_for_its_deadline() -> None:
    @workflow
    async def nap(ctx: Context) -> None:
        await ctx.sleep("1h")

    h = Harness(nap, deadline_at=START + 500).fresh()
    assert h.waits == {"main/t1": START + 3_600_000, "@deadline": START + 500}
    assert h.plan.leave is not None
    assert h.plan.leave.due == START + 500
    h.later(500).replay()
    assert h.state == "failed"
    assert isinstance(h.error, RunTimeout)


def test_a_run_that_came_to_its_end_before_the_deadline_does_not_fail_while_it_is_undone() -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        ctx.compensate(a.fn)
        raise LookupError("the real reason")

    h = Harness(flow, deadline_at=START + 500).fresh().later(1_000).settle().end("a", "a")
    assert isinstance(h.error, LookupError)


def test_a_run_whose_deadline_has_passed_fails_even_if_its_code_could_end_at_once() -> None:
    @workflow
    async def stepless(ctx: Context) -> str:
        ctx.compensate(a.fn)
        return "done"

    for flow, state in ((stepless, "cancelling"), (line, "failed")):
        h = Harness(flow, deadline_at=START - 1).fresh()
        assert (h.state, h.names()) == (state, ["a"] if state == "cancelling" else [])
        if h.running:
            h.end("a")
        assert isinstance(h.error, RunTimeout)


def test_a_run_that_slept_over_its_deadline_is_not_told_that_its_sleep_is_over() -> None:
    @workflow
    async def nap(ctx: Context) -> str:
        await ctx.sleep("10s")
        return "slept"

    for wake in (Harness.wake, Harness.replay):
        h = Harness(nap, deadline_at=START + 5_000).fresh().later(20_000)
        wake(h)
        assert h.new() == ["run_resumed", "run_failed"]
        assert isinstance(h.error, RunTimeout)
