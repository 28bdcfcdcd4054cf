"""A forgotten `await` is named, wherever the call ended up instead of its result."""

from __future__ import annotations

from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.codec.values import codec_for, encode_any
from ironflow.context import Context, step
from ironflow.errors import PayloadRejected, StepNotAwaited


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


@pytest.mark.parametrize("flow", [adds, subscripts, asks_for_an_attribute, compares, loops])
def test_computing_with_a_call_instead_of_its_result_asks_for_the_await(flow: Any) -> None:
    with Driver(flow) as d:
        assert isinstance(d.error, StepNotAwaited)
        assert "never awaited its call of total" in str(d.error)
        assert "Did you forget `await`?" in str(d.error)
        assert isinstance(d.error.__cause__, TypeError | AttributeError)


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
