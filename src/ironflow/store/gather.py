"""How a backlog becomes batches: the one rule by which every writer of either database fills a transaction.

Owns the bounds of a transaction and the order inside a run: a batch holds at most one transition of a run, so that the
second one is judged by what the first one wrote. Promises that an item is moved a bounded number of times, whatever
waits with it. Pure: it knows no writer.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

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


class Backlog(Generic[Item]):
    """What waits to be written, in the order in which it came."""

    __slots__ = ("_after", "_behind", "_line")

    def __init__(self) -> None:
        #: what may go now: the first transition of each run
        self._line: deque[Item] = deque()
        #: for each run in the line, its further transitions; None where there never was one
        self._behind: dict[str, deque[Item] | None] = {}
        #: from the first job on: nothing goes before a job that came after it
        self._after: deque[Item] = deque()

    def __bool__(self) -> bool:
        return bool(self._line or self._after)

    def append(self, item: Item) -> None:
        """Put an item behind all others."""
        if self._after or isinstance(item[0], Job):
            self._after.append(item)
        else:
            self._place(item, item[0])

    def extend(self, items: Iterable[Item]) -> None:
        """Put these behind all others, in their order."""
        for item in items:
            self.append(item)

    def next_batch(self) -> list[Item]:
        """Take the next batch: a job alone, or transitions of different runs within the bounds. There must be one.

        A second transition of a run stays in front of the others, so that it meets what the first one wrote.
        """
        if not self._line:
            first = self._after.popleft()
            if isinstance(first[0], Job):
                return [first]
            self._place(first, first[0])
            while self._after and not isinstance(change := self._after[0][0], Job):
                self._place(self._after.popleft(), change)
        batch: list[Item] = []
        following: list[Item] = []
        size = 0
        while self._line and len(batch) < BATCH_ROWS and size < BATCH_BYTES:
            item = self._line.popleft()
            change = item[0]
            assert isinstance(change, Transition)  # jobs never come into the line
            if behind := self._behind[change.run_id]:
                following.append(behind.popleft())
            else:
                del self._behind[change.run_id]
            batch.append(item)
            size += payload_size(change)
        self._line.extendleft(reversed(following))
        return batch

    def take_all(self) -> list[Item]:
        """Take everything, when nothing more is written: the order means nothing then."""
        left = [*self._line, *self._after]
        for behind in self._behind.values():
            left += behind or ()
        self._line.clear()
        self._behind.clear()
        self._after.clear()
        return left

    def _place(self, item: Item, change: Transition) -> None:
        if change.run_id not in self._behind:
            self._behind[change.run_id] = None
            self._line.append(item)
            return
        behind = self._behind[change.run_id]
        if behind is None:
            behind = self._behind[change.run_id] = deque()
        behind.append(item)
