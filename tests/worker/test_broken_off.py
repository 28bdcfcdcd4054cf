"""`for task in asyncio.all_tasks(): task.cancel()`, as programs do it that end: an engine beside it goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import lines, open_gate

from ironflow import Engine
from ironflow.loops.driver import Driver, Report
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.tasks import Standing

pytestmark = pytest.mark.usefixtures("folder")


def cancel_all(before: set[asyncio.Task[object]]) -> None:
    """Cancel every task of the loop but those of the test itself."""
    for task in asyncio.all_tasks() - before:
        task.cancel()


async def test_an_engine_goes_on_after_all_tasks_of_its_loop_were_cancelled(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It stood still without a word: its runs stayed `running`, and nothing new was taken."""
    before = asyncio.all_tasks()
    settings = quick(lease_ttl_ms=60_000, session_ttl_ms=60_000)
    async with Engine(store_url, workflows=program.WORKFLOWS, settings=settings) as one:
        held = [await one.start(program.line, name) for name in ("x", "y", "z")]
        await until(lambda: all(lines(f"{name}-2") for name in ("x", "y", "z")))
        with caplog.at_level(logging.ERROR, "ironflow"):
            cancel_all(before)
            await until(lambda: all(len(lines(f"{name}-2")) == 2 for name in ("x", "y", "z")))
        for name in ("x", "y", "z"):
            open_gate(f"{name}-2")
        for run in held:
            assert len(await run.result(timeout=20)) == 3
            row = (await one.get(run.id)).row
            assert (row.lease_recoveries, row.execution_seq) == (0, 3), "the giving back raises the fence, too"
            told = [event.kind for event in await one.store.journal(run.id)]
            assert (told.count(j.RUN_RELEASED), told.count(j.STEP_FAILED)) == (1, 0)
        async with Engine(store_url, worker=False) as client:  # through the queue, which only the dispatcher looks at
            queued = await client.start(program.short, "new")
            assert await queued.result(timeout=20) == "new"
    said = [record.getMessage() for record in caplog.records]
    assert sum("ironflow-dispatcher was cancelled by other code" in line for line in said) == 1
    assert sum("ironflow-capacity-scanner was cancelled by other code" in line for line in said) == 1
    assert all(any(f"run {run.id} was broken off by other code" in line for line in said) for run in held)


async def test_an_engine_that_is_closed_right_after_that_gives_everything_back(store_url: str) -> None:
    before = asyncio.all_tasks()
    settings = quick(lease_ttl_ms=60_000, session_ttl_ms=60_000)
    async with Engine(store_url, workflows=program.WORKFLOWS, worker=False) as client:
        async with Engine(store_url, workflows=program.WORKFLOWS, settings=settings) as one:
            run = await one.start(program.line, "x")
            await until(lambda: lines("x-2"))
            cancel_all(before)
        row = (await client.get(run.id)).row
        assert (row.state, row.lease_recoveries) == (runs.PENDING, 0)
        assert await client.store.leases() == []


class Passes:
    """Counts its passes, and holds in each until it is let through."""

    name = "passes"

    def __init__(self) -> None:
        self.begun = 0

    async def run_once(self) -> Report:
        self.begun += 1
        await asyncio.Event().wait()
        return Report()


async def test_a_loop_of_which_the_task_was_cancelled_makes_its_next_pass(caplog: pytest.LogCaptureFixture) -> None:
    before = asyncio.all_tasks()
    passes = Passes()
    driver = Driver(passes, 3_600_000)
    driver.start()
    await until(lambda: passes.begun == 1)
    with caplog.at_level(logging.ERROR, "ironflow.loops"):
        cancel_all(before)
        await until(lambda: passes.begun == 2)
    assert "ironflow-passes was cancelled by other code of this process" in caplog.text
    await driver.stop()
    assert asyncio.all_tasks() == before


async def test_what_is_stopped_while_it_is_to_begin_again_does_not(caplog: pytest.LogCaptureFixture) -> None:
    begun: list[asyncio.Task[object] | None] = []

    async def stands() -> None:
        begun.append(asyncio.current_task())
        await asyncio.Event().wait()

    standing = Standing(stands, "stands", logging.getLogger("ironflow.test"))
    standing.start()
    await until(lambda: begun)
    (task,) = begun
    assert task is not None
    task.cancel()
    await until(lambda: "stands was cancelled by other code" in caplog.text)
    timer = standing._timer
    assert timer is not None
    assert not timer.cancelled()
    await standing.stop()
    assert timer.cancelled()
    assert begun == [task]
