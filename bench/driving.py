"""How the bench drives an engine from outside, with as little load of its own as it can."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import ironflow

T = TypeVar("T")

#: Callers at once where runs are only to be there, and nobody measures how they came.
CALLERS = 100
#: How often the database is asked whether all have ended, seconds: each time it counts all of its runs.
POLL_S = 0.02


async def completed(engine: ironflow.Engine) -> int:
    """How many runs of the database have completed."""
    return (await engine.store.counts()).get("completed", 0)


async def drained(engine: ironflow.Engine, ended: int) -> None:
    """Wait until so many runs have completed. The database is asked only while the worker looks idle."""
    worker = engine.worker
    assert worker is not None
    while worker.segments or worker.taking or await completed(engine) < ended:
        await asyncio.sleep(POLL_S)


async def side_by_side(call: Callable[[T], Awaitable[object]], items: Iterable[T], callers: int = CALLERS) -> None:
    """Call with every item, so many at once."""
    left = iter(items)

    async def caller() -> None:
        for item in left:
            await call(item)

    await asyncio.gather(*(caller() for _ in range(callers)))
