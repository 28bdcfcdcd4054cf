"""`Call`: lazy, good for one await, reported when forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Call, Context, step
from ironflow.engine.requests import StepCall
from ironflow.errors import ForbiddenInWorkflow


def test_a_call_requests_nothing_until_it_is_awaited() -> None:
    async def flow(ctx: Context) -> None:
        call = work(1)
        assert repr(call) == "<Call of work, not awaited yet>"
        await ctx.sleep(1)
        await call
        assert repr(call) == "<Call of work, awaited>"

    with Driver(flow) as d:
        assert d.asked_ids(StepCall) == []
        d.fire()
        assert d.asked_ids(StepCall) == ["main/1:work"]
        assert d.complete().value is None


def test_a_call_is_a_coroutine_to_asyncio() -> None:
    async def flow(ctx: Context) -> Any:
        call = work(1)
        assert isinstance(call, Coroutine)
        assert asyncio.iscoroutine(call)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call)
            other = group.create_task(work(2))
            assert "coro=<work()>" in repr(task)
        return (
            task.result(),
            other.result(),
            await asyncio.wait_for(work(3), 5),
            await asyncio.gather(work(4)),
        )

    with Driver(flow) as d:
        d.complete("a").complete("b").complete("c").complete("d")
        assert d.value == ("a", "b", "c", ["d"])


def test_a_call_is_good_for_one_await() -> None:
    async def flow(ctx: Context) -> None:
        call = work()
        await call
        await call

    with Driver(flow) as d:
        d.complete()
        assert "already awaited" in str(d.error)


def test_a_call_belongs_to_the_run_that_made_it() -> None:
    stolen: list[Call[Any]] = []

    async def thief(ctx: Context) -> None:
        await stolen[0]

    async def flow(ctx: Context) -> None:
        stolen.append(work())
        await ctx.sleep(1)

    with Driver(flow), Driver(thief, run_id="run-2") as other:
        assert isinstance(other.error, ForbiddenInWorkflow)
        assert "outside the run that made it" in str(other.error)
        with pytest.raises(ForbiddenInWorkflow):
            stolen[0].send(None)


def test_a_call_given_up_on_purpose_is_not_reported() -> None:
    async def flow(ctx: Context) -> str:
        for call in (work(), ctx.sleep(1), ctx.parallel([work(), work()])):
            call.close()
        return "fine"

    with Driver(flow) as d:
        assert d.value == "fine"


def test_an_error_thrown_into_a_call_reaches_who_awaits_it() -> None:
    async def flow(ctx: Context) -> list[str]:
        seen = []
        begun, fresh = work(), work()
        begun.send(None)
        for call in (begun, fresh):
            try:
                call.throw(LookupError("thrown"))
            except LookupError as error:
                seen.append(str(error))
        try:
            work().throw(LookupError, LookupError("the old way"), None)
        except LookupError as error:
            seen.append(str(error))
        return seen

    with Driver(flow) as d:
        assert d.value == ["thrown", "thrown", "the old way"]


def test_arguments_travel_as_they_were_given() -> None:
    @step(name="charge card")
    async def charge(order: int, *, currency: str = "EUR") -> None: ...

    async def flow(ctx: Context) -> None:
        await charge(5, currency="CHF")

    with Driver(flow) as d:
        (call,) = d.asked
        assert isinstance(call, StepCall)
        assert (call.id, call.args, call.kwargs) == ("main/1:charge card", (5,), {"currency": "CHF"})
        assert call.step is charge.spec
