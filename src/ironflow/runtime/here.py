"""Starting a run in this very process, past the queue: the way of most runs of an engine with a worker.

Promises that nobody is passed: a run that others stand in front of, in the queue or in a lane, goes through the queue.
"""

from __future__ import annotations

from collections.abc import Sequence

from ironflow.codec.values import parse
from ironflow.engine.history import History
from ironflow.model.run import RunRow
from ironflow.worker.worker import Worker


async def start_here(worker: Worker | None, row: RunRow, created: str, lanes: Sequence[tuple[str, int]]) -> str | None:
    """Begin a new run in this process.

    Args:
        worker: of this process, if it has one.
        row: of the run.
        created: the payload of its first event.
        lanes: in which it counts.

    Returns:
        what the store answered; None where that cannot be, and nothing was done.
    """
    if worker is None or not _fits(worker, row, lanes):
        return None
    history = History()
    history.input, history.started_at = parse(created)["input"], row.created_at
    return await worker.start_here(row, created, history)


def _fits(worker: Worker, row: RunRow, lanes: Sequence[tuple[str, int]]) -> bool:
    """Whether the run may skip the queue: a slot is free here, nobody waits for it, and no lane must be asked."""
    return (
        worker.free > 0
        and not worker.dispatcher.backlog
        and not lanes
        and row.scheduled_at is None
        and worker.session.can_take(row.route)
    )
