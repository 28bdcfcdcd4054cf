"""The crowd: suspects that wait until this worker can start a process for them.

A worker starts few such processes at once (`worker.isolation`). A suspect that was given back for want of room would be
handed out again at once, and its journal would travel in vain with every round, for as long as the others take. So it
waits here, promised to this worker, for most of the time that the promise lasts; then others may have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from ironflow.model.capacity import RunHead
from ironflow.worker.isolation import Isolation

#: The share of its reservation for which a suspect waits. What is left must last until a process that starts late has
#: prolonged it for the first time, a third of that time later.
WAITING_SHARE: Final = 0.6

#: A run and its reservation.
Promise = tuple[str, str]


class Crowd:
    """See the module's docstring.

    Args:
        isolation: starts the processes.
        give_back: told of promises that are not taken.
    """

    def __init__(self, isolation: Isolation, give_back: Callable[[list[Promise]], None]) -> None:
        self._isolation = isolation
        self._give_back = give_back
        #: in the order in which they came
        self._waiting: dict[str, tuple[RunHead, asyncio.TimerHandle]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def admit(self, head: RunHead, ttl_ms: int) -> None:
        """A suspect was handed out; its promise lasts for so long, ms."""
        if self._isolation.has_room(head):
            self._isolation.start(head)
        elif head.run_id not in self._waiting and head.reservation is not None:
            timer = asyncio.get_running_loop().call_later(WAITING_SHARE * ttl_ms / 1000, self._too_long, head.run_id)
            self._waiting[head.run_id] = head, timer

    def move_up(self) -> None:
        """A process may have ended: start the next ones."""
        for head, timer in list(self._waiting.values()):
            if not self._isolation.has_room(head):
                return
            timer.cancel()
            del self._waiting[head.run_id]
            self._isolation.start(head)

    def disperse(self) -> list[Promise]:
        """Nobody waits any more; what was promised to them."""
        left = list(self._waiting.values())
        self._waiting.clear()
        for _, timer in left:
            timer.cancel()
        return [(head.run_id, head.reservation) for head, _ in left if head.reservation is not None]

    def _too_long(self, run_id: str) -> None:
        head, _ = self._waiting.pop(run_id)
        if head.reservation is not None:
            self._give_back([(run_id, head.reservation)])
