"""Facts do not wait for slow workflow code: they are committed first, and the code is told afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.engine.harness import Harness
from tests.engine.letters import a, b, c

import ironflow
from ironflow.context import Context, step, workflow
from ironflow.model import journal as j
from ironflow.model.transition import Transition

told: list[Any] = []


@workflow
async def pair(ctx: Context) -> Any:
    told.clear()
    first, second = asyncio.ensure_future(a()), asyncio.ensure_future(b())
    told.append(await first)
    told.append(await second)
    return await c(list(told))


def commit_facts(h: Harness) -> Harness:
    return h._commit(h.execution.facts())


def test_deferred_facts_are_committed_before_the_code_is_told() -> None:
    h = Harness(pair).fresh()
    h.end("a", 1, settle=False, defer=True).end("b", 2, settle=False, defer=True)
    commit_facts(h)
    assert (h.new(), told) == (["completed a", "completed b"], [])
    h.settle()
    assert (h.new(), told) == (["started c"], [1, 2])


def test_a_crash_between_the_two_commits_loses_no_result() -> None:
    h = Harness(pair).fresh()
    h.end("a", 1, settle=False, defer=True).end("b", 2, settle=False, defer=True)
    commit_facts(h).recover()
    assert (h.new(), told) == (["run_resumed", "started c"], [1, 2])
    assert h.end("c", "done").output == "done"


def test_deferred_facts_are_told_in_the_order_in_which_they_are_journaled() -> None:
    @workflow
    async def race(ctx: Context) -> Any:
        index, _ = await ctx.first(a(), b())
        return index

    h = Harness(race).fresh()
    h.end("b", settle=False, defer=True).end("a", settle=False)  # the second waits its turn although it need not
    assert h.settle().output == 1


def test_a_fact_is_told_with_the_time_of_its_own_end() -> None:
    @workflow
    async def clock(ctx: Context) -> Any:
        async def timed(call: Any) -> int:
            await call
            return round(ctx.now().timestamp() * 1000)

        return await asyncio.gather(timed(a()), timed(b()))

    h = Harness(clock).fresh().later(1_000).end("a", settle=False, defer=True)
    h.later(1_000).end("b", settle=False, defer=True)
    live = commit_facts(h).settle().output
    assert live[1] - live[0] == 1_000
    del h.journal[-1]
    assert h.recover().output == live


def test_a_failed_try_and_a_stopped_body_need_no_telling() -> None:
    h = Harness(pair).fresh().fail("a")
    h.end("b", 1, settle=False, defer=True)
    assert commit_facts(h).new() == ["cancelled b"]
    assert h.settle().state == "failed"


async def test_a_segment_commits_results_first_once_its_code_has_been_slow(tmp_path: Path) -> None:
    @step
    async def quick(n: int) -> int:
        return n

    @workflow
    async def computing(ctx: Context, rounds: int) -> int:
        total = 0
        for n in range(rounds):
            total += await quick(n)
            sum(range(2_000_000))  # some 20 ms in which the loop stands still
        return total

    @workflow
    async def nimble(ctx: Context, rounds: int) -> int:
        return sum([await quick(n) for n in range(rounds)])

    async with ironflow.open(f"sqlite:///{tmp_path}/runs.db") as engine:
        commits: list[list[str]] = []
        assert engine.worker is not None
        port = engine.worker.port
        submit = port.submit

        def seen(change: Transition) -> Any:
            commits.append([event.kind for event in change.events])
            return submit(change)

        port.submit = seen  # type: ignore[method-assign]
        assert await engine.run(computing, 3) == 3
        assert commits[1:] == [
            [j.STEP_COMPLETED, j.STEP_STARTED],
            [j.STEP_COMPLETED],
            [j.STEP_STARTED],
            [j.STEP_COMPLETED],
            [j.RUN_SUCCEEDED],
        ]
        commits.clear()
        assert await engine.run(nimble, 3) == 3
        assert [j.STEP_COMPLETED, j.STEP_STARTED] in commits
