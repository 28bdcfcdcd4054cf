"""Runs leave nothing to the garbage collector: what a finished run used is free the moment it ends."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any

import pytest

import ironflow
from ironflow import Context, Retry, step, step_info, workflow

RUNS = 20


@step
async def double(n: int) -> int:
    return 2 * n


@step
def double_in_thread(n: int) -> int:
    return 2 * n


@step(retry=Retry(2, backoff="1ms"))
async def fails_once(n: int) -> int:
    if step_info().attempt == 1:
        raise ValueError("the first time")
    return n


@workflow
async def chain(ctx: Context, n: int) -> int:
    return await double(await double(await double(n)))


@workflow
async def threaded(ctx: Context, n: int) -> int:
    return await double_in_thread(n)


@workflow
async def side_by_side(ctx: Context, n: int) -> int:
    return sum(await asyncio.gather(*(double(i) for i in range(n))))


@workflow
async def grouped(ctx: Context, n: int) -> int:
    async with asyncio.TaskGroup() as group:
        made = [group.create_task(ctx.sleep(0.001)) for _ in range(n)]
    return len(made)


@workflow
async def limited(ctx: Context, n: int) -> int:
    async with asyncio.timeout(60):
        return await double(n)


@workflow
async def retrying(ctx: Context, n: int) -> int:
    return await fails_once(n)


WORKFLOWS = [chain, threaded, side_by_side, grouped, limited, retrying]


@pytest.mark.parametrize("wf", WORKFLOWS, ids=lambda wf: wf.name)
async def test_finished_runs_are_no_garbage(sqlite_url: str, wf: Any) -> None:
    async with ironflow.open(sqlite_url, workflows=WORKFLOWS) as engine:
        await engine.run(wf, 2)
        gc.collect()
        gc.disable()
        try:
            for _ in range(RUNS):
                await engine.run(wf, 2)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = Counter(type(thing).__qualname__ for thing in gc.garbage if _of_ironflow(thing))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert not left


def _of_ironflow(thing: object) -> bool:
    return type(thing).__module__.startswith("ironflow.")
