"""Plain asyncio inside a workflow: durable, and free of the world outside."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
from contextvars import ContextVar
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context
from ironflow.engine.loop_base import LATEST_DUE_MS, due_ms
from ironflow.engine.requests import CancelTimer, StartTimer, StepCall
from ironflow.errors import ForbiddenInWorkflow

outside: ContextVar[str] = ContextVar("outside", default="nothing")


def test_asyncio_sleep_is_a_durable_timer_due_by_the_time_of_the_last_fact() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.sleep(3600)

    with Driver(flow) as d:
        (timer,) = d.asked
        assert isinstance(timer, StartTimer)
        assert (timer.id, timer.due) == ("main/t1", 1_000 + 3_600_000)
        assert d.fire().value is None


def test_call_later_and_call_at_agree_about_the_due_time_at_any_hour() -> None:
    # wait_for uses the one on 3.11 and the other later; a float's last digit must not make a millisecond of
    # it.
    async def flow(ctx: Context) -> None:
        loop = asyncio.get_running_loop()
        for delay in (0.001, 0.1, 1.1, 5, 1234.567):
            loop.call_later(delay, print)
            loop.call_at(loop.time() + delay, print)
        await asyncio.Event().wait()

    for start in (1_700_000_000_123, 1_767_225_599_999, 1_000):
        d = Driver(flow)
        d.now = start
        d.start()
        dues = [request.due - start for request in d.asked if isinstance(request, StartTimer)]
        assert dues == [1, 1, 100, 100, 1100, 1100, 5000, 5000, 1_234_567, 1_234_567]
        d.instance.close()


def test_no_hour_of_the_epoch_moves_a_due_time_by_a_millisecond() -> None:
    for start in range(1_767_225_599_000, 1_767_225_599_000 + 400 * 86_400_123, 86_400_123):
        for delay_ms in (1, 100, 1_100, 86_400_000):
            assert due_ms(start / 1000 + delay_ms / 1000) == start + delay_ms
    assert math.ceil((2_425_979_013_464 / 1000 + 3_755 / 1000) * 1000) == 2_425_979_013_464 + 3_755 + 1
    assert due_ms(2_425_979_013_464 / 1000 + 3_755 / 1000) == 2_425_979_013_464 + 3_755


def test_a_timer_without_end_is_due_at_the_end_of_time() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.sleep(1e30)

    with Driver(flow) as d:
        assert isinstance(d.asked[0], StartTimer)
        assert d.asked[0].due == LATEST_DUE_MS


def test_the_loop_s_time_stands_at_the_last_fact_and_never_runs_backwards() -> None:
    async def flow(ctx: Context) -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        await work()
        times.append(loop.time())
        await work()
        return [*times, loop.time()]

    with Driver(flow) as d:
        d.now = 5_000
        d.complete()
        d.now = 3_000
        d.complete()
        assert d.value == [1.0, 5.001, 5.001]


def test_an_answered_timeout_withdraws_its_timer() -> None:
    async def flow(ctx: Context) -> None:
        async with asyncio.timeout(5):
            await work()

    with Driver(flow) as d:
        d.complete()
        assert d.asked_ids(CancelTimer) == ["main/l1"]
        assert d.value is None


def test_a_timeout_that_has_already_passed_needs_no_timer() -> None:
    async def flow(ctx: Context) -> str:
        try:
            async with asyncio.timeout(-1):
                await work()
        except TimeoutError:
            return "late"
        return "in time"

    with Driver(flow) as d:
        assert d.value == "late"
        assert d.asked_ids(StartTimer) == []


async def use_queue() -> list[int]:
    queue: asyncio.Queue[int] = asyncio.Queue(1)

    async def put() -> None:
        for n in range(3):
            await queue.put(n)

    task = asyncio.create_task(put())
    got = [await queue.get() for _ in range(3)]
    await task
    return got


async def use_condition() -> list[int]:
    condition, ready = asyncio.Condition(), False

    async def signal() -> None:
        nonlocal ready
        async with condition:
            ready = True
            condition.notify_all()

    task = asyncio.create_task(signal())
    async with condition:
        await condition.wait_for(lambda: ready)
    await task
    return [1]


async def use_locks() -> list[int]:
    lock, semaphore, order = asyncio.Lock(), asyncio.Semaphore(1), []

    async def enter(n: int) -> None:
        async with lock, semaphore:
            await asyncio.sleep(0)
            order.append(n)

    await asyncio.gather(*(enter(n) for n in range(3)))
    return order


async def use_shield() -> list[int]:
    async def soon() -> int:
        await asyncio.sleep(0)
        return 5

    return [await asyncio.shield(soon())]


async def use_wait() -> list[int]:
    async def value(n: int) -> int:
        return n

    done, _ = await asyncio.wait([asyncio.create_task(value(n)) for n in range(3)])
    return sorted(task.result() for task in done)


@pytest.mark.parametrize(
    ("use", "result"),
    [
        (use_queue, [0, 1, 2]),
        (use_condition, [1]),
        (use_locks, [0, 1, 2]),
        (use_shield, [5]),
        (use_wait, [0, 1, 2]),
    ],
)
def test_the_primitives_of_asyncio_work(use: Any, result: Any) -> None:
    async def flow(ctx: Context) -> Any:
        return await use()

    with Driver(flow, strict=True) as d:
        assert d.value == result


async def test_workflow_code_sees_nothing_of_the_task_that_drives_it() -> None:
    async def flow(ctx: Context) -> Any:
        seen = [outside.get()]
        await work()
        seen.append(outside.get())
        asyncio.get_running_loop().call_soon(lambda: seen.append(outside.get()))
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return seen, task.get_name()

    outside.set("something")
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    with Driver(flow) as d:
        d.complete()
        assert d.value == (["nothing"] * 3, "main")
    assert asyncio.current_task() is task
    assert asyncio.get_running_loop() is loop
    await asyncio.sleep(0)


async def test_the_driving_task_is_left_during_an_activation() -> None:
    # A Python that keeps the current task per thread refuses to run one task inside another.
    async def flow(ctx: Context) -> Any:
        return asyncio.current_task(outer)

    outer = asyncio.get_running_loop()
    with Driver(flow) as d:
        assert d.value is None


async def test_generator_hooks_are_the_loop_s_own_and_are_put_back() -> None:
    finalised: list[str] = []

    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            finalised.append("closed")

    async def flow(ctx: Context) -> None:
        async for _ in numbers():
            break
        await work()

    hooks = sys.get_asyncgen_hooks()
    d = Driver(flow).start()
    assert sys.get_asyncgen_hooks() == hooks
    await asyncio.sleep(0)
    assert finalised == []  # held by the loop, not finalised by the collector on this one
    d.instance.close()
    assert finalised == ["closed"]


def test_a_task_nobody_holds_is_not_collected() -> None:
    async def background() -> None:
        await work()

    async def flow(ctx: Context) -> None:
        asyncio.create_task(background())  # noqa: RUF006 - the point
        await work()
        await work()

    with Driver(flow) as d:
        gc.collect()
        d.complete(id="main.1/1:work")
        assert d.instance.outcome is None


@pytest.mark.parametrize(
    "method",
    [
        *("run_in_executor", "create_connection", "create_server", "subprocess_exec", "subprocess_shell"),
        *("add_reader", "add_writer", "getaddrinfo", "sock_recv", "add_signal_handler", "run_forever"),
        *("run_until_complete", "set_task_factory", "connect_read_pipe", "set_debug"),
    ],
)
def test_io_on_the_loop_is_refused_with_the_way_out(method: str) -> None:
    async def flow(ctx: Context) -> None:
        getattr(asyncio.get_running_loop(), method)(None, None)

    with Driver(flow) as d:
        assert isinstance(d.error, ForbiddenInWorkflow)
        assert method in str(d.error)
        assert "await ctx.step(…)" in str(d.error)


def test_to_thread_and_subprocesses_are_refused() -> None:
    async def thread(ctx: Context) -> None:
        await asyncio.to_thread(print)

    async def process(ctx: Context) -> None:
        await asyncio.create_subprocess_exec("true")

    async def connect(ctx: Context) -> None:
        await asyncio.open_connection("localhost", 1)

    for flow in (thread, process, connect):
        with Driver(flow) as d:
            assert isinstance(d.error, ForbiddenInWorkflow)


def test_eager_tasks_are_refused() -> None:
    async def flow(ctx: Context) -> None:
        asyncio.get_running_loop().create_task(work(), eager_start=True)  # type: ignore[call-arg]

    with Driver(flow) as d:
        assert "eager" in str(d.error)


def test_a_long_life_does_not_pile_up_finished_tasks_and_generators() -> None:
    async def numbers() -> Any:
        yield 1

    async def flow(ctx: Context) -> None:
        for _ in range(1000):
            await asyncio.create_task(asyncio.sleep(0))
            async for _ in numbers():
                pass
        await work()

    with Driver(flow) as d:
        assert len(d.instance.loop.tasks) < 200
        assert len(d.instance.loop._generators) < 200
        assert d.asked_ids(StepCall) == ["main/1:work"]


def test_a_cancelled_callback_does_not_run_and_a_timer_without_delay_runs_at_once() -> None:
    async def flow(ctx: Context) -> list[str]:
        loop, ran = asyncio.get_running_loop(), list[str]()
        handle = loop.call_soon(ran.append, "cancelled")
        assert "append" in repr(handle)
        handle.cancel()
        assert repr(handle) == "<cancelled callback>"
        loop.call_later(0, ran.append, "at once")
        await asyncio.sleep(0)
        assert loop.is_running()
        assert not loop.is_closed()
        assert loop.get_task_factory() is loop.get_exception_handler() is None
        return ran

    with Driver(flow) as d:
        assert d.value == ["at once"]
        assert d.asked == []


def test_a_task_made_around_the_loop_counts_among_the_callbacks() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.Task(asyncio.sleep(5), loop=asyncio.get_running_loop())

    with Driver(flow) as d:
        assert d.asked_ids(StartTimer) == ["callbacks/t1"]
