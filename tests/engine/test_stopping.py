"""Steps that are no longer wanted: their bodies are stopped, their ends awaited, their results dropped."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.engine.harness import START, Harness
from tests.engine.letters import a, b, c

from ironflow.context import Context, Retry, step, workflow
from ironflow.errors import WorkflowStuck
from ironflow.model import journal as j


@step(on_cancel="abandon")
async def long(*what: Any) -> Any: ...


@workflow
async def cancelling(ctx: Context) -> Any:
    call = asyncio.ensure_future(a())
    await b()
    call.cancel()
    return await c()


def test_a_cancelled_step_s_body_is_stopped_and_its_late_result_dropped() -> None:
    h = Harness(cancelling).fresh().end("b")
    assert h.new() == ["completed b", "started c"]
    assert [j.name_of(s) for s in h.stopped] == ["a"]
    h.end("a", "too late")
    assert h.new() == ["cancelled a"]
    assert h.end("c", "done").output == "done"


def test_the_end_of_a_stopped_body_is_awaited_before_the_run_ends() -> None:
    h = Harness(cancelling).fresh().end("b").end("c", "done")
    assert (h.new(), h.state) == (["completed c"], "running")
    h.end("a", error=asyncio.CancelledError())
    assert (h.new(), h.output) == (["cancelled a", "run_succeeded"], "done")


def test_a_step_that_is_abandoned_on_cancel_keeps_nobody_waiting() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        await ctx.first(b(), long())
        return await c()

    h = Harness(flow).fresh().end("b")
    assert h.new() == ["completed b", "cancelled long", "started c"]
    (late,) = h.abandoned.values()
    h.end("c", "done")
    assert h.output == "done"
    h.execution.ended(late, h.now, "1", None)
    assert h.execution.facts().empty


def test_a_crash_between_cancelling_a_step_and_its_end_leaves_it_cancelled() -> None:
    h = Harness(cancelling).fresh().end("b").recover()
    assert h.new() == ["run_resumed", "cancelled a", "interrupted c", "started c"]
    h.recover()
    assert h.new() == ["run_resumed", "interrupted c", "started c"]
    assert h.end("c", "done").output == "done"


def test_a_step_cancelled_before_its_start_was_committed_never_starts() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        call = asyncio.ensure_future(a())
        await asyncio.sleep(0)
        call.cancel()
        return await b()

    h = Harness(flow).fresh()
    assert h.new() == ["run_created", "run_started", "started b"]


def test_a_back_off_that_is_cancelled_ends_there() -> None:
    @step(retry=Retry(2, backoff="4s"))
    async def flaky() -> Any: ...

    @workflow
    async def flow(ctx: Context) -> Any:
        call = asyncio.ensure_future(flaky())
        await b()
        call.cancel()
        return await c()

    h = Harness(flow).fresh().fail("flaky").end("b")
    assert h.new() == ["completed b", "cancelled flaky", "started c"]
    h.later(10_000).settle()
    assert h.names() == ["c"]
    h.recover()
    assert h.names() == ["c"]


def test_what_is_still_open_when_the_code_returns_is_cancelled() -> None:
    @step(retry=Retry(2, backoff="4s"))
    async def flaky() -> Any: ...

    @workflow
    async def flow(ctx: Context) -> Any:
        left = [asyncio.ensure_future(call) for call in (a(), flaky(), ctx.sleep("1h"))]
        return f"{await b()} {len(left)}"

    h = Harness(flow).fresh().fail("flaky").end("b", "b")
    assert h.new() == ["completed b", "cancelled flaky"]
    h.end("a")
    assert h.new() == ["cancelled a", "run_succeeded"]
    assert h.output == "b 3"


def test_a_failure_that_nobody_awaited_is_told_with_the_end_of_the_run() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        task = asyncio.create_task(a(), name="the forgotten one")
        return f"{await b()} {task.done()}"

    h = Harness(flow).fresh().fail("a").end("b", "b")
    assert h.output == "b True"
    assert "the forgotten one failed and was never awaited" in h.result["unreported"][0]


def test_a_result_that_comes_with_the_fact_that_cancels_it_is_dropped() -> None:
    h = Harness(cancelling).fresh().end("b", settle=False).end("a", "too late")
    assert h.new() == ["completed b", "cancelled a", "started c"]


def test_a_step_that_completed_just_before_it_was_cancelled_keeps_its_result_in_the_journal() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        index, value = await ctx.first(a(), b())
        return [index, value, await c()]

    h = Harness(flow).fresh().end("a", 1, settle=False, defer=True).end("b", 2, settle=False, defer=True).settle()
    assert h.new() == ["completed a", "completed b", "started c"]
    h.recover()
    assert h.end("c", 3).output == [0, 1, 3]


def test_a_run_that_waits_for_what_nothing_can_bring_about_fails_with_its_stacks() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        await a()
        await asyncio.Event().wait()

    h = Harness(flow).fresh().end("a")
    assert h.state == "failed"
    assert isinstance(h.error, WorkflowStuck)
    assert "await asyncio.Event().wait()" in str(h.error)
    assert "test_stopping.py" in str(h.error)


def test_a_run_with_a_timer_is_not_stuck() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        async with asyncio.timeout(10):
            await asyncio.Event().wait()

    h = Harness(flow).fresh()
    assert (h.state, h.waits) == ("sleeping", {"main/l1": START + 10_000})
    h.later(10_000).replay()
    assert isinstance(h.error, TimeoutError)


def test_code_that_leaves_the_interpreter_fails_its_run_only() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        await a()
        raise SystemExit(3)

    h = Harness(flow).fresh().end("a")
    assert h.state == "failed"
    assert h.result["error"]["type"] == "builtins.SystemExit"
