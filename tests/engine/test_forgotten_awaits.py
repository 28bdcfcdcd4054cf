"""A forgotten `await` is named, wherever the call ended up instead of its result."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.codec.values import codec_for, encode_any
from ironflow.context import Context, step
from ironflow.errors import DefinitionError, PayloadRejected, StepNotAwaited


@step
async def total(n: int) -> int:
    return n


async def adds(ctx: Context) -> Any:
    return 1 + total(1)  # type: ignore[operator]


async def subscripts(ctx: Context) -> Any:
    return total(1)["sum"]  # type: ignore[index]


async def asks_for_an_attribute(ctx: Context) -> Any:
    return total(1).real  # type: ignore[attr-defined]


async def compares(ctx: Context) -> Any:
    return total(1) > 0  # type: ignore[operator]


async def loops(ctx: Context) -> Any:
    return [each for each in total(1)]  # type: ignore[attr-defined]  # noqa: C416


async def asks_whether(ctx: Context) -> Any:
    return await work() if total(1) else "nothing"


async def asks_whether_not(ctx: Context) -> Any:
    return not total(1)


async def formats(ctx: Context) -> Any:
    return f"{total(1):.2f}"


async def formats_as_ever(ctx: Context) -> Any:
    return "%d" % total(1)  # noqa: UP031


async def joins(ctx: Context) -> Any:
    return ",".join([total(1)])  # type: ignore[list-item]


async def unpacks(ctx: Context) -> Any:
    return dict(**total(1))  # type: ignore[arg-type]


async def counts(ctx: Context) -> Any:
    return range(total(1))  # type: ignore[arg-type]


async def adds_to_a_sleep(ctx: Context) -> Any:
    total(1)
    return ctx.sleep(1) + 1  # type: ignore[operator]


COMPUTE = (adds, subscripts, asks_for_an_attribute, compares, loops, asks_whether, asks_whether_not, formats)
COMPUTE += (formats_as_ever, joins, unpacks, counts, adds_to_a_sleep)


@pytest.mark.parametrize("flow", COMPUTE)
def test_computing_with_a_call_instead_of_its_result_asks_for_the_await(flow: Any) -> None:
    with Driver(flow) as d:
        assert isinstance(d.error, StepNotAwaited)
        assert "never awaited its call of total" in str(d.error)
        assert "Did you forget `await`?" in str(d.error)
        assert isinstance(d.error.__cause__, TypeError | AttributeError)
        told = str(d.error.__cause__)
        assert "Call" in told
        assert not re.search("JournaledStep|DurableSleep|GroupCall", told), "nobody can look these up"


def test_an_error_that_has_nothing_to_do_with_a_call_stays_what_it_is() -> None:
    async def flow(ctx: Context) -> None:
        total(1)
        raise TypeError("something else")

    with Driver(flow) as d:
        assert (type(d.error), str(d.error)) == (TypeError, "something else")


def test_a_call_given_to_a_step_or_returned_is_no_value_and_the_hint_says_await() -> None:
    async def flow(ctx: Context) -> Any:
        call = work()
        with pytest.raises(PayloadRejected, match=r"was not awaited.*Put `await` before the call"):
            encode_any([call])
        with pytest.raises(PayloadRejected, match=r"was not awaited.*Put `await` before the call"):
            codec_for(int).encode(call)
        return await call

    with Driver(flow) as d:
        d.complete("done")
        assert d.value == "done"


def forgets_in_a_thread(ctx: Context) -> Any:
    total(1)


def adds_in_a_thread(ctx: Context) -> Any:
    return 1 + total(1)  # type: ignore[operator]


@pytest.mark.parametrize("flow", [forgets_in_a_thread, adds_in_a_thread])
def test_in_a_synchronous_workflow_the_hint_is_the_synchronous_form(flow: Any) -> None:
    with Driver(flow) as d:
        assert isinstance(d.error, StepNotAwaited)
        assert f"its call of total ({__file__}:{flow.__code__.co_firstlineno + 1})" in str(d.error)
        assert "Did you forget `ctx.wait(…)`?" in str(d.error)
        assert "`await`" not in str(d.error)


async def maps_what_only_computes(ctx: Context) -> Any:
    return await ctx.map(lambda x: x + 1, [1])  # type: ignore[arg-type,return-value]


async def maps_what_returns_nothing(ctx: Context) -> Any:
    return await ctx.map(lambda x: None, [1])  # type: ignore[arg-type,return-value]


async def gives_results_instead_of_calls(ctx: Context) -> Any:
    return await ctx.parallel([None, total(1)])  # type: ignore[list-item]


async def calls_the_step_it_gives(ctx: Context) -> Any:
    return await ctx.step(total(3))  # type: ignore[call-overload]


async def calls_the_function_it_gives(ctx: Context) -> Any:
    return await ctx.step(total.fn(3))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        (maps_what_only_computes, r"ctx\.map\(\) needs a step, and <lambda> returned 2\. Give it a step"),
        (maps_what_returns_nothing, r"ctx\.map\(\) needs a step, and <lambda> returned None"),
        (gives_results_instead_of_calls, r"None is no call of a step.*ctx\.parallel\(\[charge\(a\)"),
        (calls_the_step_it_gives, r"what a call of total returned. Write `await total\(…\)`, or `await ctx\.step"),
        (calls_the_function_it_gives, r"what a call of total returned. Write `await ctx\.step\(total, …\)`"),
    ],
)
def test_a_value_where_a_step_or_its_call_belongs_is_refused_with_what_to_write(flow: Any, said: str) -> None:
    with Driver(flow) as d:
        assert isinstance(d.error, DefinitionError)
        assert re.search(said, str(d.error)), str(d.error)
        assert "not started" not in str(d.error)
