"""Workers that were cut off and stay away: replaced when their time is up, however rarely the scanner looks."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from tests.recovery.kit import until
from tests.server.kit import Served, always, patient, served

from ironflow.server.liveness import Streams

#: Between two passes of a scanner that nobody kicks, ms; no test waits for so long.
RARELY_MS = 20_000
AFTER_MS = 1_500


async def _gone(here: Served, session_id: str) -> bool:
    return session_id not in [row.session_id for row in await here.store.sessions()]


async def test_what_a_worker_held_that_was_cut_off_is_recovered_when_its_time_is_up(store_url: str) -> None:
    settings = patient(suspect_after_ms=AFTER_MS, recovery_interval_ms=RARELY_MS)
    async with served(store_url, settings) as here:
        await here.start()
        worker = await here.worker()
        head = await worker.took()
        async with worker.liveness() as lines:
            await anext(lines)
        cut = time.monotonic()
        await until(lambda: _gone(here, worker.session_id))
        assert AFTER_MS / 1000 <= time.monotonic() - cut + 0.1 < AFTER_MS / 1000 + 1
        other = await here.worker()
        [again] = await other.poll(1, 5_000)
        assert (again.run_id, again.execution_seq) == (head.run_id, 2)


async def test_workers_that_were_all_cut_off_at_once_are_left_to_their_clocks_until_enough_are_back(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A balancer that restarts breaks every stream; behind it the workers live, and execute what they have."""
    async with served(store_url, patient(suspect_after_ms=AFTER_MS)) as here:
        workers = [await here.worker() for _ in range(5)]
        for worker in workers:
            await here.start()
            await worker.took()
        async with AsyncExitStack() as streams:
            for worker in workers:
                await anext(await streams.enter_async_context(worker.liveness()))
        await until(lambda: "live sessions are cut off at once" in caplog.text)
        cut = here.store.now()
        await until(lambda: here.store.now() > cut + AFTER_MS + 500)
        assert len(await here.store.sessions()) == 5
        assert [lease.execution_seq for lease in await here.store.leases()] == [1] * 5
        for worker in workers[1:]:
            await worker.heartbeat()
        await until(lambda: _gone(here, workers[0].session_id))
        assert len(await here.store.sessions()) == 4


@pytest.mark.parametrize("stays", [True, False])
async def test_a_worker_that_is_back_before_its_break_is_written_down_is_no_suspect(stays: bool) -> None:
    """A heartbeat that was under way at the break is waited for; meanwhile the worker opens another stream here."""
    waited_for, settled, suspected = asyncio.Event(), asyncio.Event(), []

    async def beats(_session_id: str) -> None:
        waited_for.set()
        await settled.wait()

    async def suspect(session_id: str) -> bool:
        suspected.append(session_id)
        return True

    streams: Any = Streams(SimpleNamespace(suspect=suspect), beats, None)  # type: ignore[arg-type]
    caller: Any = None
    broken = streams.open("s", caller, always)
    ending = asyncio.ensure_future(streams.ended(broken))
    await asyncio.wait_for(waited_for.wait(), 10)
    again = streams.open("s", caller, always)
    endings = [ending] if stays else [ending, asyncio.ensure_future(streams.ended(again))]
    await asyncio.sleep(0)
    settled.set()
    await asyncio.wait_for(asyncio.gather(*endings), 10)
    assert bool(suspected) is not stays
