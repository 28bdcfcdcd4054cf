"""The worker, as a segment sees it: where it commits, who runs bodies, and who is told how the segment ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ironflow.engine.bodies import Bodies, Body
from ironflow.engine.outside import Outside
from ironflow.engine.plan import Leave, StepRun

if TYPE_CHECKING:
    from ironflow.engine.segment import Segment


class Host(Protocol):
    """See the module's docstring."""

    bodies: Bodies

    @property
    def port(self) -> Outside:
        """Where it commits."""
        ...

    def left(self, segment: Segment, leave: Leave) -> None:
        """The segment committed its way out: the slot is free."""
        ...

    def lost(self, segment: Segment) -> None:
        """The segment no longer owns its run: the slot is free, nothing more is written."""
        ...

    async def undone(self, segment: Segment, step_id: str) -> None:
        """The commit of this transactional step came to nothing, and the run is to begin anew at its journal: give it
        back. The segment is lost afterwards.
        """
        ...

    def adopt(self, run_id: str, step: StepRun) -> Body | None:
        """The body of this very try, if this process still executes it."""
        ...
