"""Synchronous handlers: a thread that takes turns with the loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context
from ironflow.engine.requests import StepCall
from ironflow.errors import ForbiddenInWorkflow


def handler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ironflow run-")]


def test_a_synchronous_handler_waits_for_calls_and_returns() -> None:
    def flow(ctx: Context, n: int) -> list[Any]:
        total = [ctx.wait(work(n))]
        ctx.wait(ctx.sleep("1m"))
        total += ctx.wait(ctx.parallel([work("a"), work("b")]))
        return [*total, threading.current_thread() is threading.main_thread()]

    with Driver(flow, 5) as d:
        d.complete("one").fire().complete("two").complete("three")
        assert d.value == ["one", "two", "three", False]
        assert d.asked_ids(StepCall) == ["main/1:work", "main/2:work", "main/3:work"]
        assert not d.instance.parkable
    assert handler_threads() == []


def test_an_activation_lasts_until_the_handler_s_thread_stands_still_again() -> None:
    moments: list[str] = []

    def flow(ctx: Context) -> None:
        moments.append("begun")
        ctx.wait(work())
        moments.append("went on")
        ctx.wait(work())

    with Driver(flow) as d:
        assert moments == ["begun"]
        d.complete()
        assert moments == ["begun", "went on"]


def test_errors_go_both_ways() -> None:
    def flow(ctx: Context) -> None:
        try:
            ctx.wait(work())
        except ValueError as error:
            raise LookupError("seen: " + str(error)) from error

    with Driver(flow) as d:
        d.fail(ValueError("in the step"))
        assert str(d.error) == "seen: in the step"


def test_what_is_not_awaitable_is_an_error_in_the_handler() -> None:
    def flow(ctx: Context) -> str:
        try:
            ctx.wait(5)  # type: ignore[arg-type]
        except TypeError:
            return "refused"
        return "taken"

    with Driver(flow) as d:
        assert d.value == "refused"


def test_closing_ends_the_thread_by_something_that_except_exception_does_not_catch() -> None:
    seen: list[str] = []

    def flow(ctx: Context) -> None:
        try:
            ctx.wait(work())
        except Exception:
            seen.append("caught")
        finally:
            seen.append("finally")
            ctx.wait(work("refused"))
            seen.append("not reached")

    d = Driver(flow).start()
    assert len(handler_threads()) == 1
    d.instance.close()
    assert seen == ["finally"]
    assert d.asked_ids(StepCall) == ["main/1:work"]
    assert [thread for thread in handler_threads() if not ended(thread)] == []


def ended(thread: threading.Thread) -> bool:
    thread.join(10)
    return not thread.is_alive()


def test_a_handler_that_catches_even_that_is_given_up_and_stands_still() -> None:
    rounds = 0
    enough = False

    def flow(ctx: Context) -> None:
        nonlocal rounds
        while not enough:
            try:
                ctx.wait(work())
            except BaseException:
                rounds += 1

    d = Driver(flow).start()
    d.instance.close()
    stood_at = rounds
    assert stood_at == 100
    assert rounds == stood_at


def test_asynchronous_helpers_run_on_the_loop_and_the_handler_sees_the_outcome() -> None:
    async def helper() -> list[Any]:
        return await asyncio.gather(work(1), work(2))

    def flow(ctx: Context) -> list[Any]:
        return ctx.wait(helper())

    with Driver(flow) as d:
        d.complete("b", id="main/2:work").complete("a")
        assert d.value == ["a", "b"]


def test_ctx_wait_in_an_async_workflow_is_refused() -> None:
    async def flow(ctx: Context) -> None:
        call = work()
        try:
            ctx.wait(call)
        finally:
            call.close()

    with Driver(flow) as d:
        assert isinstance(d.error, ForbiddenInWorkflow)
        assert "Write `await`" in str(d.error)


def test_an_exit_in_the_handler_s_thread_fails_the_run() -> None:
    def flow(ctx: Context) -> None:
        raise SystemExit(2)

    with Driver(flow) as d:
        assert isinstance(d.error, SystemExit)


async def test_driving_from_a_running_loop_leaves_it_as_it_was() -> None:
    def flow(ctx: Context) -> int:
        with pytest.raises(RuntimeError):
            asyncio.run(asyncio.Event().wait())
        return int(ctx.wait(work()))

    with pytest.warns(RuntimeWarning, match="never awaited"), Driver(flow) as d:
        assert d.complete(3).value == 3
    await asyncio.sleep(0)
