"""Segments that somebody else broke off: a program cancelled all tasks of the loop, and theirs were among them.

Nobody drives such a run any more, and its lease would be renewed for ever. Its segment cannot simply go on, because a
commit may have been under way whose answer nobody heard. So its bodies are told to end, and the run is given back under
its own fence: it is in the queue at once, nothing is charged to it, and whoever takes it next reads in the journal how
far it came.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from ironflow.tasks import GOES_ON_S, NOT_OURS
from ironflow.worker.orphans import ENDING_S

if TYPE_CHECKING:
    from ironflow.engine.bodies import Body
    from ironflow.engine.segment import Segment
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")


class BrokenOff:
    """See the module's docstring."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def watch(self, segment: Segment) -> None:
        """Look after a segment that has begun."""
        if segment.task is not None:
            segment.task.add_done_callback(partial(self._ended, segment))

    def _ended(self, segment: Segment, task: asyncio.Task[None]) -> None:
        if not task.cancelled() or not self._is_held(segment):
            return
        log.error("run %s was broken off %s; it is given back", segment.head.run_id, NOT_OURS)
        bodies = segment.unsettled()
        for body in bodies:
            body.cancel()
        task.get_loop().call_later(GOES_ON_S, self._begin_to_give_back, segment, bodies)

    def _is_held(self, segment: Segment) -> bool:
        # A worker that is leaving gives back by itself whatever it holds.
        return not self._worker.stopping and self._worker.segments.get(segment.head.run_id) is segment

    def _begin_to_give_back(self, segment: Segment, bodies: list[Body]) -> None:
        if self._is_held(segment):
            self._worker.spawn(self._give_back(segment, bodies))

    async def _give_back(self, segment: Segment, bodies: list[Body]) -> None:
        tasks = [body.task for body in bodies if body.task is not None and not body.task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=ENDING_S)
        if self._is_held(segment):
            self._worker.lost(segment)
            head, nominal = segment.head, self._worker.nominal
            nominal.add((head.run_id, head.execution_seq, segment.token_hash))
            nominal.reached()
