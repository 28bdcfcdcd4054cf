"""A step may be an object that is called: its `async def __call__` is awaited, whatever limits the step has."""

from __future__ import annotations

import pytest

import ironflow


class Doubling:
    async def __call__(self, n: int) -> int:
        return 2 * n


PLAIN = ironflow.step(name="plain")(Doubling())
LIMITED = ironflow.step(name="limited", timeout="10s")(Doubling())


@ironflow.workflow
async def doubles(ctx: ironflow.Context, limited: bool) -> int:
    return await (LIMITED if limited else PLAIN)(21)


@pytest.mark.parametrize("limited", [False, True])
async def test_an_object_with_an_async_call_is_awaited_with_and_without_a_time_limit(
    store_url: str, limited: bool
) -> None:
    async with ironflow.open(store_url, workflows=[doubles]) as engine:
        assert await engine.run(doubles, limited) == 42
