"""Bodies that outlived their segment: the run was taken from this worker while a step of it still executed here.

If the run was only paused, it may come back to this very process before the body ended, and then the new segment adopts
the body: it is never started a second time beside itself. If somebody else owns the run, the body is cancelled.
"""

from __future__ import annotations

from ironflow.engine.bodies import Body
from ironflow.engine.plan import StepRun
from ironflow.engine.segment import Segment

#: More of them than this are forgotten, oldest first; a forgotten one ends by itself and its result is dropped.
MOST = 1_000


class Orphans:
    """Bodies without a segment, by run, step and try: the identity under which a journal asks for them."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str, int], Body] = {}

    def keep(self, segment: Segment) -> None:
        """Take in what a lost segment left: bodies that run, and ends that no journal has."""
        run_id = segment.head.run_id
        for body in segment.unsettled():
            body.owner = None
            self._bodies[run_id, body.step.id, body.try_no] = body
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
        return [body for body in cancelled if body.task is not None and not body.task.done()]
