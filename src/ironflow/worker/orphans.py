"""Bodies that outlived their segment: the run was taken from this worker while a step of it still executed here.

If the run was only paused, it may come back to this very process before the body ended, and then the new segment adopts
the body: it is never started a second time beside itself. If it is being cancelled, its body is told to end, and the
segment that undoes the run waits for that end first, where it is this process's. If somebody else owns the run, the
body is cancelled; and should the run come back here after all, it is opened only when that body has ended, or has had
its time for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ironflow.engine.bodies import Body
from ironflow.engine.plan import StepRun
from ironflow.engine.segment import Segment
from ironflow.model import journal as j

if TYPE_CHECKING:
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")

#: More of them than this are forgotten, oldest first; a forgotten one ends by itself and its result is dropped.
MOST = 1_000
#: How often a worker looks whose a run is by now that a person took from it in the middle of a body, seconds.
LOOK_AGAIN_S = 1.0
#: How long bodies that were told to end are waited for, seconds: they should not run beside their successors. A thread
#: may go on for ever.
ENDING_S = 1.5
#: What is done to a run that may come back to the process it was taken from: by people, or by that process itself,
#: which gave the run back because a transactional step has to begin anew.
MAY_COME_BACK = frozenset({j.RUN_PAUSED, j.RUN_UNPAUSED, j.CANCEL_REQUESTED, j.RUN_RELEASED})


class Orphans:
    """Bodies without a segment, by run, step and try: the identity under which a journal asks for them."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._bodies: dict[tuple[str, str, int], Body] = {}
        #: the segment that each run was lost in last: what is decided about an earlier one counts for nothing
        self._left: dict[str, int] = {}
        #: by run: bodies that were told to end, and have not
        self._ending: dict[str, set[asyncio.Task[None]]] = {}

    def keep(self, segment: Segment) -> None:
        """Take in what a lost segment left: bodies that run, and ends that no journal has."""
        run_id = segment.head.run_id
        self._left[run_id] = segment.head.execution_seq
        for body in segment.unsettled():
            body.owner = None
            self._bodies[run_id, body.step.id, body.try_no] = body
        for body in segment.bodies:
            if body.cancelled:
                self._ends(body)
        while len(self._bodies) > MOST:
            del self._bodies[next(iter(self._bodies))]

    def of(self, run_id: str) -> set[tuple[str, int]]:
        """The steps and tries of this run that may be adopted."""
        return {(step_id, try_no) for owner, step_id, try_no in self._bodies if owner == run_id}

    def adopt(self, run_id: str, step: StepRun) -> Body | None:
        """The body of this very try, if it still executes here (or ended while the run was paused)."""
        return self._bodies.pop((run_id, step.id, step.try_no), None)

    def cancel(self, run_id: str | None = None) -> list[Body]:
        """Cancel the bodies of one run, or all. Returns those that have not ended yet."""
        keys = [key for key in self._bodies if run_id in (None, key[0])]
        cancelled = [self._bodies.pop(key) for key in keys]
        for body in cancelled:
            body.cancel()
            self._ends(body)
        return [body for body in cancelled if body.task is not None and not body.task.done()]

    def _ends(self, body: Body) -> None:
        task, run_id = body.task, body.head.run_id
        if task is None or task.done():
            return
        self._ending.setdefault(run_id, set()).add(task)
        task.add_done_callback(lambda ended: self._ended(run_id, ended))

    def _ended(self, run_id: str, task: asyncio.Task[None]) -> None:
        tasks = self._ending.get(run_id, set())
        tasks.discard(task)
        if not tasks:
            self._ending.pop(run_id, None)

    async def ended(self, run_ids: Iterable[str]) -> None:
        """Wait until no body of these runs executes here that was told to end, or its time for that is over."""
        tasks = {task for run_id in run_ids for task in self._ending.get(run_id, ())}
        if tasks:
            await asyncio.wait(tasks, timeout=ENDING_S)

    async def look_after(self, run_id: str, execution_seq: int) -> None:
        """Decide what becomes of the bodies that a segment of this number left: kept while the run may come back."""
        kept = False
        try:
            while self.of(run_id) and (kept := await self._may_come_back(run_id, execution_seq)):
                if run_id in self._worker.segments or not self._executes(run_id):
                    break  # it came back; or its bodies have ended, and what they said waits for it
                # Who takes the run tells nobody here, and a body must not go on for long beside its successor.
                await asyncio.sleep(LOOK_AGAIN_S)
        except Exception as error:
            kept = False
            log.warning("why run %s was lost could not be read: %s", run_id, error)
        if self._left.get(run_id) == execution_seq:
            del self._left[run_id]
            if not kept:
                self.cancel(run_id)

    async def _may_come_back(self, run_id: str, execution_seq: int) -> bool:
        """Whether nobody executes the run elsewhere, so that it may come back here (or has: then it is adopted)."""
        worker = self._worker
        owner = await worker.port.owner(run_id, since=execution_seq)
        if run_id in worker.segments or run_id in worker.taking:
            return True  # asked behind the look: what came back meanwhile looks like somebody else's there
        if owner is None or not owner.kinds or not owner.kinds <= MAY_COME_BACK:
            return False
        if j.CANCEL_REQUESTED in owner.kinds:
            self._stop(run_id)
        return True

    def _executes(self, run_id: str) -> bool:
        """Whether a body of this run has not ended yet."""
        bodies = (body for (owner, _, _), body in self._bodies.items() if owner == run_id)
        return any(body.task is not None and not body.task.done() for body in bodies)

    def _stop(self, run_id: str) -> None:
        """Tell the bodies of a run to end, and keep them: whoever adopts one waits for its end and drops its result."""
        for (owner, _, _), body in self._bodies.items():
            if owner == run_id and not body.cancelled:
                body.cancel()
