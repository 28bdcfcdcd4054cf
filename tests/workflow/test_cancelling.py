"""Cancelling: what the code no longer wants is withdrawn, and late answers do no harm."""

from __future__ import annotations

import asyncio

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context
from ironflow.engine.instance import UnknownFact
from ironflow.engine.requests import CancelStep, CancelTimer, Completed, Fired


async def cancels_a_step(ctx: Context) -> str:
    task = asyncio.create_task(work())
    await ctx.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    return "cancelled" if task.cancelled() else "done"


def test_a_cancelled_step_is_withdrawn() -> None:
    with Driver(cancels_a_step) as d:
        d.fire()
        assert d.asked_ids(CancelStep) == ["main/1:work"]
        assert d.value == "cancelled"
        assert d.open == []


def test_a_completion_that_comes_after_the_cancellation_is_dropped() -> None:
    async def flow(ctx: Context) -> str:
        result = await cancels_a_step(ctx)
        return result + await work()  # type: ignore[no-any-return]

    with Driver(flow) as d:
        d.fire()
        d.complete("too late", id="main/1:work")
        assert d.open == ["main/2:work"]
        assert d.complete("!").value == "cancelled!"


def test_a_cancelled_durable_sleep_withdraws_its_timer() -> None:
    async def flow(ctx: Context) -> None:
        task = asyncio.create_task(ctx.sleep("1h"))
        await work()
        task.cancel()

    with Driver(flow) as d:
        d.complete()
        assert d.asked_ids(CancelTimer) == ["main/t1"]
        d.fire("main/t1")


def test_what_is_still_open_when_main_returns_is_withdrawn_in_that_very_activation() -> None:
    async def flow(ctx: Context) -> str:
        asyncio.create_task(work())  # noqa: RUF006
        asyncio.create_task(ctx.sleep("1h"))  # noqa: RUF006
        await work()
        return "enough"

    with Driver(flow) as d:
        d.complete(id="main/2:work")
        assert d.value == "enough"
        assert (d.asked_ids(CancelStep), d.asked_ids(CancelTimer)) == (["main/1:work"], ["main/t1"])
        assert d.open == []
        d.complete("late", id="main/1:work")


def test_nothing_runs_any_more_once_main_has_returned() -> None:
    async def flow(ctx: Context) -> str:
        event = asyncio.Event()

        async def waits() -> None:
            await event.wait()
            await work("must not be asked")

        asyncio.create_task(waits())  # noqa: RUF006
        await work()
        event.set()
        return "done"

    with Driver(flow) as d:
        d.complete()
        assert len(d.asked) == 1


def test_a_fact_nobody_asked_for_is_an_error_and_so_is_one_of_the_wrong_kind() -> None:
    async def flow(ctx: Context) -> None:
        await work()

    with Driver(flow) as d:
        with pytest.raises(UnknownFact, match="has not asked") as caught:
            d.instance.activate(Completed("main/9:work", 1), 2_000)
        assert caught.value.id == "main/9:work"
        with pytest.raises(UnknownFact, match="does not answer"):
            d.instance.activate(Fired("main/1:work"), 2_000)
        assert d.complete().value is None


def test_a_task_cancelled_before_it_began_requests_nothing_and_is_not_reported() -> None:
    async def flow(ctx: Context) -> str:
        task = asyncio.create_task(work())
        task.cancel()
        await asyncio.wait([task])
        return "fine"

    with Driver(flow) as d:
        assert d.value == "fine"
        assert d.asked == []


def test_failures_nobody_awaited_are_reported_by_task() -> None:
    async def fails() -> None:
        await work()

    async def flow(ctx: Context) -> None:
        asyncio.create_task(fails(), name="the forgotten one")  # noqa: RUF006
        await ctx.sleep(1)

    with Driver(flow) as d:
        d.fail(ValueError("lost"), id="main.1/1:work").fire()
        assert d.value is None
        (report,) = d.instance.unreported
        assert "the forgotten one" in report
        assert "lost" in report


def test_a_step_that_raises_stop_iteration_raises_in_the_workflow_and_does_not_end_it() -> None:
    async def flow(ctx: Context) -> str:
        try:
            await work()
        except RuntimeError as error:
            return repr(error.__cause__)
        return "went on"

    with Driver(flow) as d:
        assert d.fail(StopIteration(5)).value == "StopIteration(5)"
