"""What workflow code may ask of its event loop: every method asyncio knows is answered the same in every replay, or
refused in one sentence; none of them touches the worker's own loop.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context
from ironflow.engine.workflow_loop import active_loops
from ironflow.errors import ForbiddenInWorkflow

Loop = asyncio.AbstractEventLoop


def nothing(*_: object) -> None: ...


async def no_time() -> str:
    return "done"


#: Each method that is answered, and a call of it. All others are refused: a name that is missing here was decided on by
#: nobody, as is one that a newer Python adds.
ANSWERED: dict[str, Callable[[Loop], Any]] = {
    "call_soon": lambda loop: loop.call_soon(nothing).cancelled(),
    "call_soon_threadsafe": lambda loop: loop.call_soon_threadsafe(nothing, 1).cancelled(),
    "call_later": lambda loop: loop.call_later(60, nothing).when(),
    "call_at": lambda loop: loop.call_at(10**400, nothing).cancel(),
    "time": lambda loop: loop.time(),
    "create_future": lambda loop: loop.create_future().set_result(1),
    "create_task": lambda loop: loop.create_task(no_time()).done(),
    "get_debug": lambda loop: loop.get_debug(),
    "get_task_factory": lambda loop: loop.get_task_factory(),
    "get_exception_handler": lambda loop: loop.get_exception_handler(),
    "is_running": lambda loop: loop.is_running(),
    "is_closed": lambda loop: loop.is_closed(),
    "call_exception_handler": lambda loop: loop.call_exception_handler({"message": "was never retrieved"}),
}
KNOWN = sorted(name for name in dir(asyncio.BaseEventLoop) if not name.startswith("_"))


def undisturbed(d: Driver) -> Driver:
    """Start an instance as a worker does, from a task of its own loop, and see that this task is what it was."""

    async def worker() -> None:
        here, task = asyncio.get_running_loop(), asyncio.current_task()
        d.start()
        assert (asyncio.get_running_loop(), asyncio.current_task()) == (here, task)
        await asyncio.sleep(0)
        assert asyncio.current_task() is task
        d.complete_all()

    asyncio.run(worker())
    assert active_loops == {}
    return d


@pytest.mark.parametrize("name", [name for name in KNOWN if name not in ANSWERED])
def test_what_cannot_be_replayed_is_refused_and_harms_nobody(name: str) -> None:
    async def fails(ctx: Context) -> None:
        getattr(asyncio.get_running_loop(), name)(None, None)

    async def goes_on(ctx: Context) -> str:
        try:
            getattr(asyncio.get_running_loop(), name)()
        except ForbiddenInWorkflow:
            await work()
        return "went on"

    def in_a_thread(ctx: Context) -> str:
        try:
            getattr(asyncio.get_running_loop(), name)()
        except ForbiddenInWorkflow:
            ctx.wait(work())
        return "went on"

    failed = undisturbed(Driver(fails))
    assert isinstance(failed.error, ForbiddenInWorkflow)
    assert str(failed.error).startswith(f"loop.{name}() was called in workflow code. ")
    assert "I/O belongs in a step: await ctx.step(…)" in str(failed.error)
    failed.instance.close()
    for handler in (goes_on, in_a_thread):
        one = undisturbed(Driver(handler))
        assert (one.value, [request.id for request in one.asked]) == ("went on", ["main/1:work"])
        one.instance.close()


@pytest.mark.parametrize("name", ANSWERED)
def test_what_is_answered_is_answered_the_same_in_a_replay(name: str) -> None:
    answers: list[object] = []

    async def flow(ctx: Context) -> None:
        await work()
        answers.append(ANSWERED[name](asyncio.get_running_loop()))
        await work()

    lives = [undisturbed(Driver(flow)) for _ in range(2)]
    first, second = ([(type(request), request.id) for request in d.asked] for d in lives)
    assert first == second
    assert answers[0] == answers[1]
    for d in lives:
        assert d.value is None
        d.instance.close()


def test_an_end_of_the_loop_is_refused_after_a_step_as_well_as_before_it() -> None:
    async def closes(ctx: Context) -> None:
        await work()
        asyncio.get_running_loop().close()

    d = undisturbed(Driver(closes))
    assert isinstance(d.error, ForbiddenInWorkflow)
    d.instance.close()


_NEWER_PYTHON = """
import asyncio
asyncio.AbstractEventLoop.teleport = lambda self: "somewhere else in every replay"
from tests.workflow.driving import Driver
from ironflow.errors import ForbiddenInWorkflow

async def flow(ctx):
    asyncio.get_running_loop().teleport()

with Driver(flow) as d:
    assert isinstance(d.error, ForbiddenInWorkflow), d.instance.outcome
print("refused")
"""


def test_a_method_of_a_newer_python_is_refused() -> None:
    ran = subprocess.run([sys.executable, "-c", _NEWER_PYTHON], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.returncode) == ("refused\n", 0), ran.stderr


class Odd(Exception):
    """Takes no notes."""

    def add_note(self, note: str) -> None:
        raise TypeError(note)


class Nameless:
    """Says nothing of itself."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError

    def __call__(self) -> None:
        raise Odd("as it is")


@pytest.mark.parametrize("delay", [None, -1])
def test_whatever_a_callback_is_and_raises_fails_its_run_and_no_more(delay: int | None) -> None:
    async def flow(ctx: Context) -> None:
        loop = asyncio.get_running_loop()
        if delay is None:
            loop.call_soon(Nameless())
        else:
            loop.call_later(delay, Nameless())
        await work()

    d = undisturbed(Driver(flow))
    assert isinstance(d.error, Odd)
    d.instance.close()
