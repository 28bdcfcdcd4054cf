"""A worker that leaves gives its runs back between two steps, and keeps nothing that was wanted."""

from __future__ import annotations

import asyncio

from tests.engine.harness import Harness

from ironflow.context import Context, step, workflow
from ironflow.engine.plan import RELEASE
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.fold import fold


@step
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def chain(ctx: Context) -> int:
    return await add(await add(1, 2), 3)


@workflow
async def two_at_once(ctx: Context) -> list[int]:
    return list(await asyncio.gather(add(1, 2), add(3, 4)))


def test_a_leaving_worker_lets_the_body_end_and_starts_no_other() -> None:
    run = Harness(chain)
    run.fresh()
    run.execution.leaving = True
    assert run.settle().plan.leave is None, "a body still executes"
    plan = run.end("add", 3).plan
    assert plan.leave is not None
    assert plan.leave.kind == RELEASE
    assert [event.kind for event in plan.events] == [j.STEP_COMPLETED, j.RUN_RELEASED]
    assert fold(run.journal).state == runs.PENDING


def test_a_released_run_goes_on_with_the_step_that_was_wanted_and_counts_no_recovery() -> None:
    run = Harness(chain)
    run.fresh()
    run.execution.leaving = True
    run.end("add", 3)
    run.replay()
    run.end("add", 6)
    assert run.row.state == runs.COMPLETED
    assert fold(run.journal).lease_recoveries == 0
    assert not any(event.kind == j.STEP_INTERRUPTED for event in run.journal)


def test_a_leaving_worker_waits_for_every_body_that_executes() -> None:
    run = Harness(two_at_once)
    run.fresh()
    run.execution.leaving = True
    first, second = list(run.running)
    assert run.end(first, 3).plan.leave is None
    run.end(second, 7)
    assert run.row.state == runs.COMPLETED, "the code has ended with it: nothing is left to give back"
