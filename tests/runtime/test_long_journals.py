"""Who asks how a run has ended reads its end: not the megabytes of results that lie before it."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable
from typing import Any

from tests.recovery.kit import quick
from tests.store.build import answer, append, leave, start

from ironflow import Engine
from ironflow.engine import commands
from ironflow.model import journal as j
from ironflow.model.journal import Event
from ironflow.store.base import Store

#: Each run has so many results of this size, characters.
RESULTS, SIZE = 16, 1 << 20


async def computed(store: Store, state: str, end: Event) -> None:
    """A run that has computed much and ended so."""
    assert await answer(store, start("r1")) == "applied"
    for n in range(RESULTS):
        change = append("r1", 4 + n)
        change.events[0].payload = f'{{"result":"{"x" * SIZE}"}}'
        assert await answer(store, change) == "applied"
    change = leave("r1", 4 + RESULTS, state)
    end.seq = 4 + RESULTS
    change.events = [end]
    assert await answer(store, change) == "applied"


async def peak_of(asked: Awaitable[Any]) -> tuple[Any, int]:
    """The answer, and the most memory that was in use for it at a time, bytes."""
    tracemalloc.start()
    try:
        return await asked, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_a_result_is_read_without_what_was_computed_before_it(store_url: str) -> None:
    async with Engine(store_url, settings=quick(), worker=False) as one:
        await computed(one.store, "completed", Event(0, j.RUN_SUCCEEDED, None, '{"output":7}'))
        result, peak = await peak_of(one.handle("r1").result())
        assert (result, peak < SIZE) == (7, True), f"{peak:,} bytes"


async def test_a_run_is_opened_again_without_a_look_at_what_it_computed(store_url: str) -> None:
    async with Engine(store_url, settings=quick(), worker=False) as one:
        failed = Event(0, j.RUN_FAILED, None, '{"error":{"message":"no"},"failed_steps":["0:a"]}')
        await computed(one.store, "failed", failed)
        changed, peak = await peak_of(one.retry("r1"))
        assert (changed, peak < SIZE) == (True, True), f"{peak:,} bytes"
        last = await one.store.last_event("r1")
        assert last is not None
        assert (last.kind, last.data()["failed_steps"]) == (j.RUN_REOPENED, ["0:a"])


async def test_who_waits_for_a_run_that_is_just_opened_again_waits_for_its_next_end(store_url: str) -> None:
    async with Engine(store_url, settings=quick(), worker=False) as one:
        await answer(one.store, start("r1"))
        await answer(one.store, leave("r1", 4, "cancelled"))
        look = one.store.run

        async def look_and_reopen(run_id: str) -> Any:
            found = await look(run_id)
            if found is not None and found.state == "cancelled" and found.epoch == 1:
                await commands.retry(one.store, run_id, "ann")
            return found

        one.store.run = look_and_reopen  # type: ignore[method-assign]
        waiting = asyncio.create_task(one.wait_end("r1"))
        while not await one.store.queue():
            await asyncio.sleep(0)
        await commands.cancel(one.store, "r1", "ann")
        state, payload = await waiting
        assert (state, payload is not None and '"by": "ann"' in payload) == ("cancelled", True)
