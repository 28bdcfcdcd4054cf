"""The body of a step in a unit test: `charge.fn(order)` where the body asks `step_info()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from ironflow.engine.step_info import StepInfo, current


@contextmanager
def step_info(
    *,
    run_id: str = "test-run",
    root_run_id: str | None = None,
    step_id: str | None = None,
    name: str = "step",
    attempt: int = 1,
    fence: int = 1,
    generation: int = 1,
    deadline: datetime | None = None,
    last_heartbeat: Any = None,
    on_heartbeat: Callable[[Any], None] | None = None,
) -> Iterator[StepInfo]:
    """Let plain calls of a step's function, made inside the block, find a `step_info()`.

        with ironflow.testing.step_info(attempt=2):
            assert charge.fn(order)

    It is the first try of a step of an ordinary run, but for what is given. It holds in this thread and in tasks that
    are made inside the block.

    Args:
        run_id, root_run_id, step_id, name, attempt, fence, generation, deadline, last_heartbeat: see `StepInfo`.
        on_heartbeat: is called with the details of each heartbeat that the body sends.

    Returns:
        the info: `info.cancelled = True` plays a cancellation.
    """
    info = StepInfo(
        run_id=run_id,
        root_run_id=run_id if root_run_id is None else root_run_id,
        step_id=f"main/1:{name}" if step_id is None else step_id,
        name=name,
        attempt=attempt,
        fence=fence,
        generation=generation,
        deadline=deadline,
        last_heartbeat=last_heartbeat,
        on_heartbeat=on_heartbeat,
    )
    token = current.set(info)
    try:
        yield info
    finally:
        current.reset(token)
