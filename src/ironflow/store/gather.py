"""How a backlog becomes batches: the one rule by which every writer of either database fills a transaction.

Owns the bounds of a transaction and the order inside a run: a batch holds at most one transition of a run, so that the
second one is judged by what the first one wrote. Pure: it takes items off a queue and knows no writer.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ironflow.model.transition import Transition
from ironflow.store.plan import payload_size

#: The bounds of one transaction: its length is what every other writer waits for.
BATCH_ROWS = 1_000
BATCH_BYTES = 4 * 1024 * 1024


class Job:
    """Work that shares its transaction with nobody."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call


#: What waits, and where its answer goes.
Item = TypeVar("Item", bound="tuple[Transition | Job, Future[Any]]")


def next_batch(backlog: deque[Item]) -> list[Item]:
    """Take the next batch off a backlog: a job alone, or transitions of different runs within the bounds.

    A second transition of a run stays in front of the backlog, so that it meets what the first one wrote.
    """
    if len(backlog) == 1:
        return [backlog.popleft()]
    batch: list[Item] = []
    later: list[Item] = []
    seen: set[str] = set()
    size = 0
    while backlog and len(batch) < BATCH_ROWS and size < BATCH_BYTES:
        item = backlog[0]
        what = item[0]
        if isinstance(what, Job):
            if not batch:
                batch.append(backlog.popleft())
            break
        backlog.popleft()
        if what.run_id in seen:
            later.append(item)
            continue
        seen.add(what.run_id)
        batch.append(item)
        size += payload_size(what)
    backlog.extendleft(reversed(later))
    return batch
