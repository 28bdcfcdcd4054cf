"""How a run's code can go wrong besides raising: getting stuck, being touched from outside, leaving the
interpreter.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context
from ironflow.engine import workflow_loop
from ironflow.errors import ForbiddenInWorkflow, StepNotAwaited, WorkflowStuck


def test_a_stuck_run_tells_where_each_task_waits() -> None:
    async def consumer(queue: asyncio.Queue[int]) -> None:
        await queue.get()

    async def flow(ctx: Context) -> None:
        await asyncio.create_task(consumer(asyncio.Queue()), name="the consumer")

    with Driver(flow) as d:
        assert (d.instance.outcome, d.open) == (None, [])
        report = d.instance.stuck_report()
        assert "task main\n" in report
        assert "task the consumer\n" in report
        assert "await queue.get()" in report
        assert "test_failing.py" in report
        assert report.index("task main\n") < report.index("the consumer\n")


def test_a_stuck_report_shows_a_call_that_waits_by_name() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.create_task(work())

    with Driver(flow) as d:
        assert "waiting for the call of work" in d.instance.stuck_report()


def test_a_loop_that_only_spins_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow_loop, "CALLBACK_LIMIT", 1_000)

    async def flow(ctx: Context) -> None:
        while True:
            await asyncio.sleep(0)

    with Driver(flow) as d:
        assert isinstance(d.error, WorkflowStuck)
        assert "sleep(0)" in str(d.error)


def test_a_callback_from_outside_an_activation_is_an_error_that_names_the_culprit() -> None:
    async def flow(ctx: Context) -> None:
        escaped.append(asyncio.get_running_loop())
        await work()

    def culprit() -> None: ...

    escaped: list[asyncio.AbstractEventLoop] = []
    with Driver(flow) as d:
        with pytest.raises(ForbiddenInWorkflow, match=r"culprit was scheduled on the loop of run run-1 outside .*Main"):
            escaped[0].call_soon_threadsafe(culprit)
        d.complete()
        assert isinstance(d.error, ForbiddenInWorkflow)


ENDS: dict[str, Callable[[asyncio.Future[int]], object]] = {
    "set_result": lambda future: future.set_result(1),
    "set_exception": lambda future: future.set_exception(ValueError("from outside")),
    "cancel": lambda future: future.cancel(),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("awaited", [True, False])
def test_a_future_set_from_outside_is_an_error_also_before_anybody_awaits_it(how: str, awaited: bool) -> None:
    async def flow(ctx: Context) -> int:
        future = asyncio.get_running_loop().create_future()
        escaped.append(future)
        if awaited:
            asyncio.create_task(work())  # noqa: RUF006
        else:
            await work()
        return await future  # type: ignore[no-any-return]

    escaped: list[asyncio.Future[int]] = []
    with Driver(flow) as d:
        caught = raised_in_thread(lambda: ENDS[how](escaped[0]), "the culprit")
        assert isinstance(caught, ForbiddenInWorkflow)
        assert str(caught).startswith(
            f"{how}() of a future was called on the loop of run run-1 outside an activation, in thread the culprit; "
        )
        assert not escaped[0].done()
        d.complete()
        assert d.error is caught


def test_a_future_set_by_the_run_s_own_code_is_none() -> None:
    async def flow(ctx: Context) -> list[object]:
        made = [asyncio.get_running_loop().create_future() for _ in ENDS]
        for future, end in zip(made, ENDS.values(), strict=True):
            end(future)
        return [type(one).__name__ for one in await asyncio.gather(*made, return_exceptions=True)]

    def in_a_thread(ctx: Context) -> list[object]:
        async def collect() -> list[object]:
            return await flow(ctx)

        future = asyncio.get_running_loop().create_future()
        future.set_result(1)
        assert ctx.wait(future) == 1
        return ctx.wait(collect())

    for handler in (flow, in_a_thread):
        with Driver(handler) as d:
            assert d.value == ["int", "ValueError", "CancelledError"]


def raised_in_thread(act: Callable[[], object], name: str | None = None) -> BaseException | None:
    """What `act` raises in a thread of its own."""
    caught: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    return caught[0] if caught else None


def test_a_callback_from_another_thread_is_an_error_even_during_an_activation() -> None:
    caught: list[BaseException | None] = []

    def culprit() -> None: ...

    async def flow(ctx: Context) -> None:
        loop = asyncio.get_running_loop()
        caught.append(raised_in_thread(lambda: loop.call_soon_threadsafe(culprit)))
        caught.append(raised_in_thread(lambda: loop.call_later(1, culprit)))
        coroutine = asyncio.sleep(0)
        caught.append(raised_in_thread(lambda: loop.create_task(coroutine)))
        coroutine.close()
        await work()

    with Driver(flow) as d:
        assert all(isinstance(error, ForbiddenInWorkflow) for error in caught)
        assert "culprit" in str(caught[0])
        assert isinstance(d.error, ForbiddenInWorkflow)


@pytest.mark.parametrize("exit", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exit_from_workflow_code_fails_the_run_and_not_the_worker(exit: BaseException) -> None:
    async def in_main(ctx: Context) -> None:
        await work()
        raise exit

    async def in_task(ctx: Context) -> None:
        async def leave() -> None:
            raise exit

        await asyncio.create_task(leave())

    with Driver(in_main) as d:
        d.complete()
        assert d.error is exit
    with Driver(in_task) as d:
        assert d.error is exit


def test_an_exit_from_a_task_can_be_caught_by_who_awaits_it() -> None:
    async def flow(ctx: Context) -> str:
        async def leave() -> None:
            raise SystemExit(3)

        try:
            await asyncio.create_task(leave())
        except SystemExit:
            return "caught"
        return "not raised"

    with Driver(flow) as d:
        assert d.value == "caught"


class Unusual(BaseException):
    """No exception that a program is expected to go on after."""


EXITS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Unusual(), BaseExceptionGroup("some", [SystemExit(3)])]


@pytest.mark.parametrize("exit", EXITS, ids=repr)
def test_an_exit_from_a_task_that_nobody_awaited_fails_the_run(exit: BaseException) -> None:
    async def flow(ctx: Context) -> str:
        async def leave() -> None:
            raise exit

        tasks.append(asyncio.create_task(leave(), name="the one that left"))
        return str(await work())

    tasks: list[asyncio.Task[None]] = []
    with Driver(flow) as d:
        assert d.instance.outcome is None, "whoever awaits the task could still catch it"
        d.complete()
        assert d.error is exit
        assert "raised in task the one that left" in d.error.__notes__[-1]
        assert d.instance.unreported == [f"task the one that left failed and was never awaited: {exit!r}"]


def test_an_error_that_the_run_ended_with_is_not_hidden_by_an_exit_nobody_saw() -> None:
    async def flow(ctx: Context) -> None:
        async def leave() -> None:
            raise SystemExit(3)

        left = asyncio.create_task(leave())
        await asyncio.sleep(0)
        raise ValueError(f"the real one, {left.done()}")

    with Driver(flow) as d:
        assert str(d.error) == "the real one, True"
        assert "SystemExit(3)" in d.instance.unreported[0]


def test_failures_that_are_looked_at_late_count_as_looked_at_however_many_there_are() -> None:
    async def flow(ctx: Context) -> int:
        async def fail(how: type[BaseException]) -> None:
            raise how

        tasks = [asyncio.create_task(fail(how)) for how in (ValueError, SystemExit) * 200]
        await work()
        later = [asyncio.create_task(asyncio.sleep(0)) for _ in range(500)]
        return len(await asyncio.gather(*tasks, *later, return_exceptions=True))

    with Driver(flow) as d:
        d.complete()
        assert (d.value, d.instance.unreported) == (900, [])


def test_an_exit_from_a_plain_callback_fails_the_run_too() -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def flow(ctx: Context) -> None:
        asyncio.get_running_loop().call_soon(leave)
        await work()

    with Driver(flow) as d:
        assert isinstance(d.error, SystemExit)
        assert d.open == []


def test_an_error_in_a_callback_fails_the_run_with_a_note_that_says_why() -> None:
    def broken(_: object) -> None:
        raise ValueError("in a callback")

    async def flow(ctx: Context) -> None:
        task = asyncio.create_task(asyncio.sleep(0))
        task.add_done_callback(broken)
        await work()

    with Driver(flow) as d:
        assert isinstance(d.error, ValueError)
        assert "broken" in d.error.__notes__[0]


def test_a_loop_error_without_an_exception_fails_the_run_as_well() -> None:
    async def flow(ctx: Context) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": "something odd"})
        await work()

    with Driver(flow) as d:
        assert "something odd" in str(d.error)


def test_an_exception_never_retrieved_is_reported_and_fails_nothing() -> None:
    async def flow(ctx: Context) -> None:
        asyncio.get_running_loop().create_future().set_exception(ValueError("nobody looked"))
        await asyncio.sleep(0)

    with Driver(flow) as d:
        assert d.value is None
        assert "nobody looked" in d.instance.unreported[0]


def test_a_call_never_awaited_fails_the_run_by_its_name() -> None:
    async def flow(ctx: Context) -> str:
        work("forgotten")
        ctx.sleep(5)
        return "fine"

    with Driver(flow) as d:
        assert isinstance(d.error, StepNotAwaited)
        line = flow.__code__.co_firstlineno
        made = f"its call of work ({__file__}:{line + 1}), sleep ({__file__}:{line + 2})"
        assert made in str(d.error)
        assert len(d.instance.unreported) == 2


def test_a_call_never_awaited_does_not_hide_the_error_the_run_ended_with() -> None:
    async def flow(ctx: Context) -> None:
        work("forgotten")
        raise ValueError("the real one")

    with Driver(flow) as d:
        assert "the real one" in str(d.error)
        made = f"{__file__}:{flow.__code__.co_firstlineno + 1}"
        assert d.instance.unreported == [f"the call of work ({made}) was never awaited"]


shared = asyncio.Semaphore(1)


def test_a_primitive_shared_between_runs_is_recognised_and_named() -> None:
    async def flow(ctx: Context) -> None:
        async with shared:
            await work()

    async def contended(ctx: Context) -> None:
        await asyncio.gather(flow(ctx), flow(ctx))

    first = Driver(contended, run_id="run-1").start()
    second = Driver(flow, run_id="run-2").start()
    assert isinstance(second.error, ForbiddenInWorkflow)
    assert "asyncio.locks.Semaphore" in str(second.error)
    assert "use a lane" in str(second.error)
    first.instance.close()
    second.instance.close()


async def test_a_primitive_of_the_worker_s_own_loop_is_recognised_too() -> None:
    event = asyncio.Event()
    waiter = asyncio.create_task(event.wait())
    await asyncio.sleep(0)

    async def flow(ctx: Context) -> None:
        await event.wait()

    with Driver(flow) as d:
        assert "made outside this run's code" in str(d.error)
    event.set()
    await waiter


def test_waking_another_run_s_code_directly_is_an_error_in_the_one_that_does_it() -> None:
    event = asyncio.Event()

    async def waits(ctx: Context) -> None:
        await event.wait()

    async def wakes(ctx: Context) -> None:
        event.set()

    first = Driver(waits, run_id="run-1").start()
    second = Driver(wakes, run_id="run-2").start()
    assert "run run-1 from another run" in str(second.error)
    first.instance.close()
    second.instance.close()


def test_workflow_code_cannot_drive_another_instance() -> None:
    async def flow(ctx: Context) -> None:
        other.start()

    other = Driver(flow, run_id="run-2")
    with Driver(flow) as d:
        assert "an executor does that" in str(d.error)
    assert asyncio.events._get_running_loop() is None
