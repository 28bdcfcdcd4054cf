"""A worker executes no more runs at once than it has slots, whichever way they come in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.recovery.kit import until

import ironflow
from ironflow.model.capacity import RunHead

GATES: dict[str, asyncio.Event] = {}


@ironflow.step
async def hold(name: str) -> str:
    await GATES[name].wait()
    return name


@ironflow.workflow
async def holds(ctx: ironflow.Context, name: str) -> str:
    return await hold(name)


async def test_a_start_while_the_dispatcher_looks_leaves_the_other_run_in_the_queue(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    GATES.update(queued=asyncio.Event(), here=asyncio.Event())
    looked, go_on = asyncio.Event(), asyncio.Event()
    async with ironflow.open(store_url, workflows=[holds], concurrency=1) as engine:
        peek = engine.store.peek

        async def slowly(*asked: Any) -> list[RunHead]:
            found = await peek(*asked)
            if found:
                looked.set()
                await go_on.wait()
            return found

        monkeypatch.setattr(engine.store, "peek", slowly)
        async with ironflow.open(store_url, worker=False) as client:
            queued = await client.start(holds, "queued")
        await asyncio.wait_for(looked.wait(), 10)
        here = await engine.start(holds, "here")
        worker = engine.worker
        assert worker is not None
        assert set(worker.segments) == {here.id}
        go_on.set()
        await until(lambda: worker.dispatcher.backlog)
        assert set(worker.segments) == {here.id}
        assert worker.free == 0
        for gate in GATES.values():
            gate.set()
        later = engine.handle(queued.id, holds)
        assert (await here.result(timeout=10), await later.result(timeout=10)) == ("here", "queued")
