"""What steps, timers and notes are called: by scope and index, taken where the call is written."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context, step
from ironflow.engine.requests import StartTimer, StepCall
from ironflow.engine.workflow_task import is_limit
from ironflow.errors import DefinitionError


def test_a_step_is_named_by_its_scope_its_index_and_its_name() -> None:
    async def flow(ctx: Context) -> None:
        await work("a")
        await work("b")

    with Driver(flow) as d:
        d.complete_all()
        assert d.asked_ids(StepCall) == ["main/1:work", "main/2:work"]


def test_the_id_is_taken_at_the_call_and_not_at_the_await() -> None:
    async def flow(ctx: Context) -> None:
        first, second = work("first"), work("second")
        await second
        await first

    with Driver(flow) as d:
        d.complete_all()
        assert d.asked_ids(StepCall) == ["main/2:work", "main/1:work"]


def test_tasks_get_child_scopes_in_the_order_of_their_creation() -> None:
    async def pair(label: str) -> None:
        await work(label)
        await asyncio.gather(work(label), work(label))

    async def flow(ctx: Context) -> None:
        await asyncio.gather(pair("a"), pair("b"))

    with Driver(flow) as d:
        d.complete(id="main.2/1:work").complete_all()
        first = ["main.1/1:work", "main.2/1:work", "main.2/2:work", "main.2/3:work"]
        assert d.asked_ids(StepCall) == [*first, "main.1/2:work", "main.1/3:work"]


def test_timers_and_notes_count_apart_so_that_adding_them_renames_no_step() -> None:
    async def flow(ctx: Context) -> None:
        ctx.set_status("before")
        async with asyncio.timeout(60):
            await work()
        await ctx.sleep("1s")
        ctx.warn("careful")
        await work()

    with Driver(flow) as d:
        d.complete().fire().complete()
        assert d.asked_ids(StepCall) == ["main/1:work", "main/2:work"]
        assert d.asked_ids(StartTimer) == ["main/l1", "main/t1"]
        assert [note.id for note in d.notes] == ["main/n1", "main/n2"]


def test_what_is_slept_through_and_what_limits_something_count_apart() -> None:
    async def flow(ctx: Context) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(90, print)
        async with asyncio.timeout(80):
            asyncio.create_task(asyncio.wait_for(ctx.sleep("1m"), 70))  # noqa: RUF006
            await asyncio.wait([asyncio.create_task(asyncio.sleep(10))], timeout=60)
        await ctx.sleep_until(ctx.now())

    with Driver(flow) as d:
        asked = [(r.id, r.due - 1_000, r.limit) for r in d.asked if isinstance(r, StartTimer)]
        assert sorted(asked) == [
            ("main.1/l1", 70_000, True), ("main.2/t1", 10_000, False), ("main/l1", 90_000, True),
            ("main/l2", 80_000, True), ("main/l3", 60_000, True), ("main/t1", 60_000, False),
        ]  # fmt: skip
        assert [is_limit(key) for key, _, _ in asked] == [limit for _, _, limit in asked]
        d.fire("main.2/t1")
        assert d.asked_ids(StartTimer)[-1] == "main/t2"


def test_replacing_a_task_s_context_does_not_rename_its_steps() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.create_task(work(), context=contextvars.Context())

    with Driver(flow) as d:
        assert d.open == ["main/1:work"]


def test_a_bar_in_a_name_is_refused() -> None:
    with pytest.raises(DefinitionError, match="cannot be the name"):
        step(name="a|b")(lambda: 1)


def test_wait_for_names_steps_alike_on_every_python() -> None:
    # On 3.11 wait_for wraps its coroutine in a task; on later versions it awaits it in place.
    async def pair() -> None:
        await work()
        await asyncio.gather(work_in_task(), work_in_task())

    async def work_in_task() -> None:
        await work()

    async def flow(ctx: Context) -> None:
        await asyncio.wait_for(pair(), 10)
        await work()
        await asyncio.create_task(work_in_task())

    with Driver(flow) as d:
        d.complete_all()
        assert d.asked_ids(StepCall) == [
            "main/1:work", "main.1/1:work", "main.2/1:work", "main/2:work", "main.3/1:work",
        ]  # fmt: skip


def test_wait_for_without_time_left_takes_no_child_scope_either() -> None:
    async def plain() -> None:
        await work()

    async def flow(ctx: Context) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(plain(), 0)
        await asyncio.create_task(plain())

    with Driver(flow) as d:
        assert d.open == ["main.1/1:work"]


def test_sets_of_tasks_iterate_alike_in_every_instance_of_a_run() -> None:
    async def flow(ctx: Context) -> Any:
        tasks = {asyncio.create_task(named(n)) for n in range(40)}
        junk.append([object() for _ in range(len(junk) * 7)])  # moves addresses about
        return [task.get_name() for task in tasks] + [hash(f) - hash(min(tasks, key=hash)) for f in futures()]

    def futures() -> list[asyncio.Future[Any]]:
        return list({asyncio.get_running_loop().create_future() for _ in range(20)})

    async def named(n: int) -> None: ...

    junk: list[Any] = []
    orders = []
    for _ in range(5):
        with Driver(flow) as d:
            orders.append(d.value)
    assert all(order == orders[0] for order in orders)


def test_instances_of_different_runs_do_not_share_hashes() -> None:
    # asyncio keeps all tasks of the process in one set; equal hashes would make it slow with many parked
    # instances.
    async def flow(ctx: Context) -> int:
        return hash(asyncio.current_task())

    hashes = set()
    for seed in range(1, 200):
        with Driver(flow, seed=seed) as d:
            hashes.add(d.value % 4096)
    assert len(hashes) > 150


def test_as_completed_starts_coroutines_in_the_order_they_are_listed() -> None:
    async def one(n: int) -> int:
        return await work(n)  # type: ignore[no-any-return]

    async def flow(ctx: Context) -> list[int]:
        return [await each for each in asyncio.as_completed([one(n) for n in range(20)])]

    with Driver(flow) as d:
        calls = [r for r in d.asked if isinstance(r, StepCall)]
        assert [(c.id, c.args) for c in calls] == [(f"main.{n + 1}/1:work", (n,)) for n in range(20)]
        for key in reversed(d.open):
            d.complete(key, id=key)
        assert d.value == [f"main.{n}/1:work" for n in range(20, 0, -1)]


def test_as_completed_over_an_iterator_of_coroutines_is_refused_with_the_way_out() -> None:
    async def one(n: int) -> None: ...

    async def flow(ctx: Context) -> None:
        for each in asyncio.as_completed(iter([one(1)])):
            await each

    with Driver(flow) as d:
        assert "ctx.as_completed" in str(d.error)


def test_calls_made_by_a_plain_callback_are_counted_in_a_scope_of_their_own() -> None:
    async def flow(ctx: Context) -> None:
        loop = asyncio.get_running_loop()
        made = loop.create_future()
        loop.call_soon(lambda: made.set_result(work()))
        await (await made)

    with Driver(flow) as d:
        assert d.open == ["callbacks/1:work"]


def test_task_names_do_not_depend_on_what_else_the_process_did() -> None:
    async def flow(ctx: Context) -> list[str]:
        async def name() -> str:
            task = asyncio.current_task()
            assert task is not None
            return task.get_name()

        return await asyncio.gather(name(), asyncio.create_task(name(), name="mine"))

    with Driver(flow) as d:
        assert d.value == ["main.2", "mine"]
