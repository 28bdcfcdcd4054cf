"""Who waits for a run when its engine is closed, or asks an engine that is not open, is told just that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import lines

import ironflow
from ironflow import Context, Engine
from ironflow.errors import EngineClosed

pytestmark = pytest.mark.usefixtures("folder")


@ironflow.workflow
async def sleeps(ctx: Context) -> None:
    await ctx.sleep("1h")


WORKFLOWS = [sleeps, *program.WORKFLOWS]


async def test_everyone_who_waits_for_a_run_is_told_that_the_engine_was_closed(store_url: str) -> None:
    one = Engine(store_url, workflows=WORKFLOWS, settings=quick())
    async with one:
        held = [await one.start(program.line, "x"), await one.start(sleeps)]
        waiting = {asyncio.create_task(run.result()): run.id for run in held for _ in range(3)}
        await until(lambda: lines("x-2"))
        await until(lambda: len(one.results._waiting) == 2)
    await asyncio.wait(waiting, timeout=20)
    for task, run_id in waiting.items():
        error = task.exception()
        assert isinstance(error, EngineClosed), repr(error)
        assert str(error).startswith(f"the engine was closed while run {run_id} was waited for. Open it")


async def test_a_wait_that_is_just_looking_when_the_engine_is_closed_is_told_the_same(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Engine(store_url, workflows=WORKFLOWS, settings=quick())
    async with one:
        run = await one.start(sleeps)
        look, looking, closed = one.store.run, asyncio.Event(), asyncio.Event()

        async def slowly(*asked: Any) -> Any:
            looking.set()
            await closed.wait()
            return await look(*asked)

        monkeypatch.setattr(one.store, "run", slowly)
        waiting = asyncio.create_task(one.handle(run.id).result())
        await looking.wait()
    closed.set()
    with pytest.raises(EngineClosed, match=f"while run {run.id} was waited for"):
        await waiting


async def test_an_engine_that_is_not_open_says_so(store_url: str) -> None:
    one = Engine(store_url, workflows=WORKFLOWS, settings=quick())
    for _ in range(2):
        with pytest.raises(EngineClosed, match="the engine is not open"):
            await one.get("x")
        with pytest.raises(EngineClosed):
            await one.start(sleeps)
        with pytest.raises(EngineClosed):
            await one.handle("x").result()
        async with one:
            assert await one.list() == []
        await one.close()


def test_a_with_block_that_has_ended_says_so(sqlite_url: str) -> None:
    with ironflow.open(sqlite_url, workflows=WORKFLOWS) as engine:
        assert engine.wait(engine.run(program.short, "x")) == "x"
    with pytest.raises(RuntimeError, match="has ended; open it again"):
        engine.wait(engine.list())
    with engine:
        assert len(engine.wait(engine.list())) == 1
