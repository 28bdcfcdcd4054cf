"""The workflows that are measured: as little user code as there can be, so that what is seen is the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import ironflow
from ironflow import Context, Workflow

#: Who wants to know that a body has started: (run_id, time.time() at its first line).
on_start: list[Callable[[str, float], None]] = []


@ironflow.step
async def add_one(number: int) -> int:
    """The cheapest body that still has an argument and a result."""
    return number + 1


@ironflow.workflow
async def chain(ctx: Context, length: int) -> int:
    """`length` steps, one after the other."""
    number = 0
    for _ in range(length):
        number = await add_one(number)
    return number


@ironflow.step
async def started(run_id: str) -> None:
    """Tells when its body began."""
    now = time.time()
    for tell in on_start:
        tell(run_id, now)


@ironflow.workflow
async def sleeper(ctx: Context, due: float) -> None:
    """Sleeps until `due` (seconds since 1970), then takes one step."""
    await ctx.sleep_until(datetime.fromtimestamp(due, UTC))
    await started(ctx.run_id)


@ironflow.workflow
async def sprinter(ctx: Context) -> None:
    """One step at once: what somebody else's run looks like beside ten thousand timers."""
    await started(ctx.run_id)


ALL: list[Workflow[Any, Any]] = [chain, sleeper, sprinter]
