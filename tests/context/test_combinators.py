"""`parallel`, `map`, `first`, `as_completed`: limits, order, errors, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context, Outcome
from ironflow.engine.requests import CancelStep, StepCall
from ironflow.errors import DefinitionError


def test_g30_parallel_gives_results_in_the_order_given_whatever_ends_first() -> None:
    async def flow(ctx: Context) -> list[Any]:
        return await ctx.parallel(work(n) for n in range(4))

    with Driver(flow) as d:
        assert d.open == [f"main/{n}:work" for n in range(1, 5)]
        for key in reversed(d.open):
            d.complete(key, id=key)
        assert d.value == [f"main/{n}:work" for n in range(1, 5)]


def test_g30_parallel_keeps_to_its_limit() -> None:
    async def flow(ctx: Context) -> list[Any]:
        return await ctx.parallel([work(n) for n in range(5)], concurrency=2)

    with Driver(flow) as d:
        assert d.open == ["main/1:work", "main/2:work"]
        d.complete("b", id="main/2:work")
        assert d.open == ["main/1:work", "main/3:work"]
        while d.open:
            assert len(d.open) <= 2
            d.complete("x")
        assert d.value == ["x", "b", "x", "x", "x"]


def test_map_calls_its_function_only_when_an_item_s_turn_has_come() -> None:
    taken: list[int] = []

    async def handle(n: int) -> Any:
        taken.append(n)
        return await work(n)

    async def flow(ctx: Context) -> list[Any]:
        return await ctx.map(handle, range(1_000_000), concurrency=3)

    with Driver(flow) as d:
        assert taken == [0, 1, 2]
        d.complete("x", id="main.2/1:work")
        assert taken == [0, 1, 2, 3]
        assert d.open == ["main.1/1:work", "main.3/1:work", "main.4/1:work"]


def test_the_first_error_cancels_the_rest_and_is_raised_after_the_rest_has_ended() -> None:
    async def careful(n: int) -> None:
        try:
            await work(n)
        except asyncio.CancelledError:
            await work("clean up", n)
            raise

    async def flow(ctx: Context) -> str:
        try:
            await ctx.parallel([careful(1), work(2), work(3)], concurrency=2)
        except ValueError as error:
            return str(error)
        return "no error"

    with Driver(flow) as d:
        assert d.open == ["main/1:work", "main.1/1:work"]
        d.fail(ValueError("first"), id="main/1:work")
        assert d.asked_ids(CancelStep) == ["main.1/1:work"]
        assert d.open == ["main.1/2:work"]  # the clean-up; the third call never began
        assert d.complete().value == "first"


def test_an_error_in_the_mapped_function_itself_counts_like_any_other() -> None:
    def broken(n: int) -> Any:
        if n == 2:
            raise LookupError("no such item")
        return work(n)

    async def flow(ctx: Context) -> None:
        await ctx.map(broken, range(5))

    with Driver(flow) as d:
        assert isinstance(d.error, LookupError)
        assert d.asked_ids(CancelStep) == ["main/1:work", "main/2:work"]


def test_collect_makes_errors_results() -> None:
    async def flow(ctx: Context) -> list[Any]:
        return await ctx.parallel([work(n) for n in range(3)], on_error="collect")

    with Driver(flow) as d:
        error = ValueError("second")
        d.fail(error, id="main/2:work").complete("a").complete("c")
        assert d.value == ["a", error, "c"]


def test_a_group_that_is_cancelled_cancels_its_parts() -> None:
    async def flow(ctx: Context) -> str:
        try:
            async with asyncio.timeout(5):
                await ctx.map(work, range(3))
        except TimeoutError:
            return "late"
        return "in time"

    with Driver(flow) as d:
        d.fire()
        assert d.value == "late"
        assert d.asked_ids(CancelStep) == ["main/1:work", "main/2:work", "main/3:work"]


def test_a_group_cancelled_before_it_began_gives_up_its_parts() -> None:
    async def helper() -> None: ...

    async def flow(ctx: Context) -> str:
        task = asyncio.create_task(ctx.parallel([work(), helper(), asyncio.create_task(helper())]))
        task.cancel()
        await asyncio.wait([task])
        return "fine"

    with Driver(flow) as d:
        assert d.value == "fine"
        assert d.asked == []


def test_groups_take_any_awaitable_and_each_other() -> None:
    class Later:
        def __await__(self) -> Any:
            return work("later").__await__()

    async def flow(ctx: Context) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_result("future")
        return await ctx.parallel(
            [Later(), future, ctx.parallel([work(1), ctx.sleep(1)]), asyncio.sleep(0, "coroutine")]
        )

    with Driver(flow) as d:
        d.fire().complete_all("step")
        assert d.value == ["step", "future", ["step", None], "coroutine"]


def test_an_empty_group_is_done_at_once() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.parallel([]), await ctx.map(work, []), [o async for o in ctx.as_completed([])]

    with Driver(flow) as d:
        assert d.value == ([], [], [])


def test_first_gives_index_and_result_and_cancels_the_others() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.first(work("a"), ctx.sleep("5m"), work("c"))

    with Driver(flow) as d:
        d.complete("won", id="main/2:work")
        assert d.value == (2, "won")
        assert d.asked_ids(CancelStep) == ["main/1:work"]


def test_first_raises_when_the_first_to_end_has_failed() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.first(work("a"), work("b"))

    with Driver(flow) as d:
        d.fail(ValueError("lost"), id="main/2:work")
        assert str(d.error) == "lost"


def test_first_that_is_cancelled_cancels_all() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.wait_for(ctx.first(work("a"), work("b")), 1)

    with Driver(flow) as d:
        d.fire()
        assert isinstance(d.error, TimeoutError)
        assert len(d.asked_ids(CancelStep)) == 2


def test_as_completed_yields_outcomes_in_the_order_they_end() -> None:
    async def flow(ctx: Context) -> list[Outcome[Any]]:
        return [outcome async for outcome in ctx.as_completed([work(n) for n in range(3)], concurrency=2)]

    with Driver(flow) as d:
        d.complete("b", id="main/2:work").fail(ValueError("c"), id="main/3:work").complete("a")
        b, c, a = d.value
        assert [(o.index, o.ok) for o in (b, c, a)] == [(1, True), (2, False), (0, True)]
        assert (b.value, a.value, str(c.error)) == ("b", "a", "c")
        assert "value='b'" in repr(b)
        assert "error=ValueError" in repr(c)
        with pytest.raises(ValueError, match="c"):
            _ = c.value


def test_closing_as_completed_early_cancels_what_is_left() -> None:
    async def flow(ctx: Context) -> Any:
        async with aclosing(started(ctx)) as outcomes:
            async for outcome in outcomes:
                return outcome.index
        return None

    def started(ctx: Context) -> Any:
        return ctx.as_completed([work(n) for n in range(4)], concurrency=3)

    with Driver(flow) as d:
        d.complete(id="main/2:work")
        assert d.value == 1
        assert d.asked_ids(CancelStep) == ["main/1:work", "main/3:work", "main/4:work"]


def test_as_completed_reports_a_cancelled_task_as_its_outcome() -> None:
    async def flow(ctx: Context) -> bool:
        task = asyncio.create_task(work())
        task.cancel()
        (outcome,) = [o async for o in ctx.as_completed([task])]
        return isinstance(outcome.error, asyncio.CancelledError)

    with Driver(flow) as d:
        assert d.value is True


def test_failures_of_cancelled_parts_are_not_reported_a_second_time() -> None:
    async def stubborn() -> None:
        try:
            await work()
        except asyncio.CancelledError:
            raise RuntimeError("on the way out") from None

    async def flow(ctx: Context) -> None:
        await ctx.parallel([stubborn(), work()])

    with Driver(flow) as d:
        d.fail(ValueError("the cause"), id="main/1:work")
        assert str(d.error) == "the cause"
        assert d.instance.unreported == []


@pytest.mark.parametrize(
    "misuse",
    [
        lambda ctx: ctx.parallel([], concurrency=0),
        lambda ctx: ctx.parallel([], concurrency=1.5),
        lambda ctx: ctx.map(work, [], concurrency="3"),
        lambda ctx: ctx.map(work, [], on_error="ignore"),
        lambda ctx: ctx.first(work),
        lambda ctx: ctx.as_completed([], concurrency=True),
    ],
)
def test_options_that_mean_nothing_are_refused(misuse: Callable[[Context], Any]) -> None:
    async def flow(ctx: Context) -> None:
        misuse(ctx)

    with Driver(flow) as d:
        assert isinstance(d.error, DefinitionError)


def test_a_closed_instance_ends_its_groups_without_waiting_for_them() -> None:
    async def each(outcomes: AsyncIterator[Any]) -> None:
        async for _ in outcomes:
            pass

    async def flow(ctx: Context) -> None:
        await asyncio.gather(
            ctx.parallel([work(1)]),
            ctx.first(work(2), work(3)),
            each(ctx.as_completed([work(4)])),
            ctx.map(work, [5]),
        )

    d = Driver(flow).start()
    assert len(d.asked_ids(StepCall)) == 5
    d.instance.close()
    assert d.asked_ids(CancelStep) == []
