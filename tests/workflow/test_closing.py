"""Closing an instance: now, in order, with nothing of it leaving."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context
from ironflow.engine import closing

variable: ContextVar[int] = ContextVar("variable")


def test_finally_blocks_run_on_the_workflow_loop_in_order_of_creation() -> None:
    seen: list[Any] = []

    async def child(n: int) -> None:
        try:
            await work()
        finally:
            task = asyncio.current_task()
            assert task is not None
            seen.append((task.get_name(), asyncio.get_running_loop()))

    async def flow(ctx: Context) -> None:
        try:
            tasks = [asyncio.create_task(child(n)) for n in range(3)]
            await asyncio.wait(tasks)
        finally:
            seen.append(("main", asyncio.get_running_loop()))

    d = Driver(flow).start()
    d.instance.close()
    loop = d.instance.loop
    assert seen == [("main", loop), ("main.1", loop), ("main.2", loop), ("main.3", loop)]


def test_requests_made_on_the_way_out_are_refused_and_results_ignored() -> None:
    after: list[str] = []

    async def flow(ctx: Context) -> str:
        try:
            await work()
        finally:
            await work("not any more")
            after.append("reached")
        return "ignored"

    d = Driver(flow).start()
    d.instance.close()
    assert after == []
    assert d.instance.outcome is None
    assert d.instance.open == {}


def test_a_request_made_while_closing_is_refused_where_it_is_made() -> None:
    seen: list[Any] = []

    async def flow(ctx: Context) -> None:
        try:
            await work()
        finally:
            begun = work("refused")
            try:
                begun.send(None)
            except closing.WorkflowClosed:
                seen.append(list(d.instance.open))

    d = Driver(flow).start()
    d.instance.close()
    assert seen == [["main/1:work"]]


def test_timers_tasks_and_notes_are_refused_on_the_way_out_too() -> None:
    reached: list[str] = []

    async def flow(ctx: Context) -> None:
        try:
            await work()
        finally:
            for attempt in (lambda: asyncio.create_task(asyncio.sleep(0)), lambda: ctx.set_status("x")):
                try:
                    attempt()
                except closing.WorkflowClosed:
                    reached.append("refused")
            asyncio.get_running_loop().call_later(5, reached.append, "fired")

    d = Driver(flow).start()
    d.instance.close()
    assert reached == ["refused", "refused"]
    assert d.instance.loop.requests == []


def test_code_that_awaits_on_its_way_out_is_closed_again_until_it_ends() -> None:
    seen: list[str] = []

    async def flow(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:  # awaits its children when it is left
            group.create_task(work())
            try:
                await asyncio.Event().wait()
            finally:
                try:
                    await asyncio.Event().wait()
                finally:
                    seen.append("end")

    d = Driver(flow).start()
    d.instance.close()
    assert seen == ["end"]


async def waits() -> None:
    await asyncio.Event().wait()


async def makes_a_task() -> None:
    await asyncio.create_task(waits())


async def makes_a_step() -> None:
    await work()


@pytest.mark.parametrize("again", [waits, makes_a_task, makes_a_step])
def test_code_that_will_not_be_closed_is_given_up_and_never_runs_again(
    monkeypatch: pytest.MonkeyPatch, again: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(closing, "_keep_for_ever", kept.append)
    rounds = 0

    async def flow(ctx: Context) -> None:
        nonlocal rounds
        while rounds < 1_000:
            try:
                await again()
            except BaseException:
                rounds += 1

    d = Driver(flow).start()
    d.instance.close()
    # What is refused at once is refused as often, and then waits like everything else.
    assert rounds in (closing.CLOSE_TRIES, 2 * closing.CLOSE_TRIES)
    assert kept
    given_up = rounds
    d.instance.close()
    assert rounds == given_up
    rounds = 10_000  # let it end after all
    for one in kept:
        one.close()


STUBBORN = """
import asyncio, sys, ironflow

@ironflow.workflow
async def stubborn(ctx: ironflow.Context) -> None:
    while True:
        try:
            await asyncio.sleep(3_600)
        except BaseException:
            pass

async def main() -> None:
    async with ironflow.open(sys.argv[1], workflows=[stubborn]) as engine:
        run = await engine.start(stubborn)
        while (await engine.get(run.id)).state != "sleeping":
            await asyncio.sleep(0.01)

asyncio.run(main())
print("left")
"""


def test_a_process_that_holds_code_that_will_not_be_closed_ends(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", STUBBORN, f"sqlite:///{tmp_path}/a.db"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (told.returncode, told.stdout) == (0, "left\n"), told.stderr


def test_a_closed_instance_leaves_nothing_for_the_collector_to_run(recwarn: pytest.WarningsRecorder) -> None:
    seen: list[str] = []

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            seen.append("generator")

    async def child() -> None:
        try:
            await work()
        finally:
            seen.append("child")

    async def flow(ctx: Context) -> None:
        task = asyncio.create_task(child())
        async for _ in numbers():
            break
        await asyncio.wait([task])

    d = Driver(flow).start()
    d.instance.close()
    assert seen == ["child", "generator"]
    del d
    gc.collect()
    assert seen == ["child", "generator"]
    assert len(recwarn) == 0


def test_a_generator_that_awaits_while_closing_is_closed_all_the_same() -> None:
    seen: list[str] = []

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("end")

    async def flow(ctx: Context) -> None:
        async for _ in numbers():
            break
        await work()

    Driver(flow).start().instance.close()
    assert seen == ["end"]


def test_a_task_is_closed_in_its_own_context() -> None:
    seen: list[int] = []

    async def flow(ctx: Context) -> None:
        token = variable.set(5)
        try:
            await work()
        finally:
            seen.append(variable.get())
            variable.reset(token)
            seen.append(variable.get(0))

    Driver(flow).start().instance.close()
    assert seen == [5, 0]


def test_closing_twice_and_closing_after_the_end_do_nothing() -> None:
    async def flow(ctx: Context) -> int:
        return 1

    d = Driver(flow).start()
    d.instance.close()
    d.instance.close()
    assert d.value == 1
    with pytest.raises(RuntimeError, match="started twice"):
        Driver(flow).start().start()
