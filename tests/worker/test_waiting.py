"""Waiting for runs costs little, however many wait, and is answered at once where the run ends in this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.recovery.kit import quick, until

import ironflow
from ironflow.runtime import waiting as runtime

MANY = 300


@ironflow.workflow
async def sleeps(ctx: ironflow.Context, seconds: float) -> float:
    await ctx.sleep(seconds)
    return seconds


async def test_thousands_that_wait_together_look_no_more_often_than_a_few_would(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "LOOK", (0.001, 0.04))
    async with ironflow.open(sqlite_url, settings=quick()) as engine:
        run = await engine.start(sleeps, 3_600.0)
        looks, look = 0, engine.store.run

        async def counted(*asked: Any) -> Any:
            nonlocal looks
            looks += 1
            return await look(*asked)

        monkeypatch.setattr(engine.store, "run", counted)
        waiting = [asyncio.create_task(run.result()) for _ in range(MANY)]
        await until(lambda: looks > 10 * MANY)  # each has come to its longest pause
        begun, since = looks, asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() - since > 0.5)
        seconds = asyncio.get_running_loop().time() - since
        # Each pauses for half of its longest pause or more; and one look of each may be under way.
        assert looks - begun <= seconds * 2 / runtime.LOOK_EACH_S + MANY
        begun_to_end = asyncio.get_running_loop().time()
        short = await engine.run(sleeps, 0.01)
        assert short == 0.01
        assert asyncio.get_running_loop().time() - begun_to_end < 5
        await run.cancel()
        assert {type(result) for result in await asyncio.gather(*waiting, return_exceptions=True)} == {
            ironflow.RunCancelled
        }
