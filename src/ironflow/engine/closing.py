"""Ending workflow code that will not be continued here.

A suspended run's code sits at some `await` and has to go: the run moves to another worker, or waits for a
week. The journal is what brings it back, so nothing the code does on its way out counts. Still its `finally`
blocks must run somewhere; they run now, on the workflow loop, with every request refused, and not later in
the garbage collector.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from ironflow.engine.workflow_task import WorkflowTask

#: Code that catches its own closing and awaits again is asked this often before it is given up.
CLOSE_TRIES = 100

class WorkflowClosed(BaseException):
    """Raised where code waits when its instance is closed, and by every request it makes after that.

    Not an error, and not for users to catch. `GeneratorExit` would not do: Python closes nested coroutines
    from the inside out with it, and one that awaits in a `finally` is then cut off from its callers and left
    to the collector.
    """


#: What a coroutine of the engine's own must let through at once.
CLOSING = (GeneratorExit, WorkflowClosed)


def close_task(loop: asyncio.AbstractEventLoop, task: WorkflowTask) -> None:
    """End a pending task's coroutine, as that task and in its context."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch: this end is intended
    asyncio.tasks._enter_task(loop, task)
    try:
        task.context.run(_throw_until_ended, task.get_coro())
    finally:
        asyncio.tasks._leave_task(loop, task)


def _throw_until_ended(thrown_into: Any) -> None:
    for _ in range(CLOSE_TRIES):
        try:
            thrown_into.throw(WorkflowClosed())
        except BaseException:
            return  # however it ended, nobody is waiting for the result
        # It awaits something on its way out (a TaskGroup its tasks, say): once more, at that new place.
    _keep_for_ever(thrown_into)


def _keep_for_ever(unclosable: Any) -> None:
    """Were it collected, the interpreter would try to close it once more, at a time of its own choosing; the last such
    time is its exit, which would not end. So one reference is counted that nobody holds.
    """
    import ctypes  # rare enough to be loaded where it is needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(unclosable))


def close_generator(generator: AsyncGenerator[Any, Any]) -> None:
    """End an async generator that is still at some `yield`, outside of any task."""
    for _ in range(CLOSE_TRIES):
        if generator.ag_frame is None:  # type: ignore[attr-defined]
            return
        throwing: Any = generator.athrow(WorkflowClosed())
        try:
            throwing.send(None)
        except BaseException:
            continue  # it ended, or yielded once more
        _throw_until_ended(throwing)
    _keep_for_ever(generator)
