"""Transactional steps whose commit came to nothing: the connection broke, and by the database none of it took place.

What the code was told of the step since is not so, and cannot be taken back from it. So the segment ends, and its run
goes back into the queue as its journal has it. The next segment, most often of this very worker and some milliseconds
later, calls the body again. Nobody was lost, so nothing is charged to the run; and what else of it executes here goes
on, for the next segment to adopt.

Where that happens at each commit of a step, it is no accident any more: the pauses grow, and in the end the run is left
to its lease, whose loss counts.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ironflow.engine.segment import Segment
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")

#: How often one step may come to nothing in this process before its run is left to its lease.
TRIES = 10
#: Pauses before a run is given back: the first, doubled by each that follows, and the longest; seconds.
FIRST_S, LONGEST_S = 0.02, 1.0
#: More steps than this are not remembered; the oldest is forgotten.
MOST = 1_000


class Undone:
    """See the module's docstring."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        #: by run and step: how many of its commits came to nothing
        self._tries: dict[tuple[str, str], int] = {}

    async def give_back(self, segment: Segment, step_id: str) -> None:
        """Put the run of this segment back into the queue, as it was before this step's body was called."""
        run_id = segment.head.run_id
        tries = self._tries.pop((run_id, step_id), 0) + 1
        self._tries[run_id, step_id] = tries
        if len(self._tries) > MOST:
            del self._tries[next(iter(self._tries))]
        if tries > TRIES:
            log.warning("run %s is left to its lease: %d commits of step %s came to nothing", run_id, tries, step_id)
            return
        await asyncio.sleep(min(FIRST_S * 2 ** (tries - 1), LONGEST_S))
        if not self._worker.stopping:  # or it gives back by itself whatever it holds
            await self._worker.give_back(segment)
