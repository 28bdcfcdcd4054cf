"""A worker that leaves says so at once: nobody who asks why a run waits is told to wait for it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import lines, open_gate
from tests.remote.kit import client, served, working

import ironflow
from ironflow import Engine
from ironflow.engine.why import holds
from ironflow.worker.worker import Worker

pytestmark = pytest.mark.usefixtures("folder")


async def begun(stack: AsyncExitStack, database: str, where: str) -> tuple[ironflow.Engine, Worker]:
    """Who starts runs, and a worker."""
    if where == "http":
        server = await stack.enter_async_context(served(database))
        looking = await stack.enter_async_context(client(database, program.WORKFLOWS))
        return looking, await stack.enter_async_context(working(server.url, server.key, program.WORKFLOWS))
    engine = await stack.enter_async_context(Engine(database, workflows=program.WORKFLOWS, settings=quick()))
    assert engine.worker is not None
    return engine, engine.worker


@pytest.mark.parametrize("where", ["database", "http"])
async def test_a_worker_says_that_it_leaves_while_its_last_run_finishes(
    store_url: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        looking, worker = await begun(stack, store_url, where)
        store = looking.store
        last = await looking.start(program.line, "x")
        await until(lambda: lines("x-2"))
        stopping = asyncio.ensure_future(worker.stop(drain_ms=30_000))

        async def told() -> bool:
            return [one.draining for one in await store.sessions()] == [1]

        await until(told, "its session says so")
        waiting: ironflow.Run[Any] = await looking.start(program.line, "y")
        by_code = {hold.code: hold.message for hold in await holds(store, waiting.id)}
        assert by_code == {"NO_WORKER": "1 worker is leaving and takes nothing new; no other is connected"}
        executing = {hold.code: hold.message for hold in await holds(store, last.id)}
        assert "which is leaving" in executing["EXECUTING"]
        open_gate("x-2")
        await stopping
        assert [one.state for one in (await looking.get(last.id)).steps.values()] == ["completed", "completed"]
        assert await store.sessions() == []
        assert "asked to leave" not in caplog.text, "that is what it is told that others wish to be gone"
