"""Following a run by its journal: what is new since the last look, and what it adds up to.

The journal is the one source, whichever process executes the run: so a command that started a run, one that attached
to it and one that only watches all show the same. What it adds up to is the model's `Folder`, so what is shown while a
run is under way is what `runs get` says of it afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.fold import Folded, Folder, StepView
from ironflow.model.journal import Event
from ironflow.store.base import Store

#: How long a look at a quiet journal waits for the next one, seconds: from, to.
PAUSE = (0.05, 0.25)
#: Events one look brings at most, so that a long journal is shown as it is read.
PAGE = 500


async def events(
    store: Store, run_id: str, after: int = 0, wake: asyncio.Event | None = None
) -> AsyncGenerator[list[Event], None]:
    """Pages of a run's journal, as they come, for ever; an empty one when there was nothing new.

    Args:
        store: the database.
        run_id: the run.
        after: the last seq that is known already.
        wake: set by whoever knows that there is something new; the next look does not wait then.
    """
    pause = PAUSE[0]
    while True:
        page = await store.journal(run_id, after, PAGE)
        if page:
            after, pause = page[-1].seq, PAUSE[0]
        yield page
        if len(page) < PAGE:
            await _rest(wake, pause)
            pause = min(pause * 1.5, PAUSE[1])


async def _rest(wake: asyncio.Event | None, pause: float) -> None:
    if wake is None:
        await asyncio.sleep(pause)
        return
    try:
        await asyncio.wait_for(wake.wait(), pause)
        wake.clear()
    except TimeoutError:
        return


class Progress:
    """What the events so far add up to: the one fold of a journal, and what only somebody who watches wants to know."""

    __slots__ = ("_folder", "retries")

    def __init__(self) -> None:
        self._folder = Folder()
        #: how many tries of steps have failed and were followed by another one
        self.retries = 0

    @property
    def view(self) -> Folded:
        """The run as its journal tells it so far."""
        return self._folder.view

    @property
    def state(self) -> str:
        """The run's state."""
        return self.view.state

    @property
    def ended(self) -> bool:
        """Whether the run has ended, and was not opened again."""
        return self.view.ended_in_epoch

    def feed(self, event: Event) -> None:
        """Take one event in. Cheap: a run may have tens of thousands of steps."""
        self._folder.add(event)
        self.retries += event.kind == j.STEP_RETRYING

    def under_way(self) -> list[StepView]:
        """The steps whose body executes or waits for its next try, in the order in which they began."""
        return [step for step in self.view.open.values() if step.state in (steps.RUNNING, steps.RETRYING)]


#: The state of a step that an event tells, for the colour of its line.
STEP_STATES = {
    j.STEP_STARTED: steps.RUNNING,
    j.STEP_COMPLETED: steps.COMPLETED,
    j.STEP_FAILED: steps.FAILED,
    j.STEP_RETRYING: steps.RETRYING,
    j.STEP_INTERRUPTED: steps.INTERRUPTED,
    j.STEP_CANCELLED: steps.CANCELLED,
    j.STEP_SKIPPED: steps.SKIPPED,
}


#: The state of the run that an event tells, for the colour of its line; what a run is in is read from the fold alone.
_RUN_STATES = {
    j.RUN_CREATED: runs.PENDING,
    j.RUN_STARTED: runs.RUNNING,
    j.RUN_RESUMED: runs.RUNNING,
    j.RUN_RECOVERED: runs.PENDING,
    j.RUN_RELEASED: runs.PENDING,
    j.RUN_PAUSED: runs.PAUSED,
    j.RUN_UNPAUSED: runs.PENDING,
    j.RUN_RETRYING: runs.RETRYING,
    j.CANCEL_REQUESTED: runs.CANCELLING,
    j.RUN_COMPENSATING: runs.CANCELLING,
    j.RUN_REOPENED: runs.PENDING,
    j.RUN_SUCCEEDED: runs.COMPLETED,
    j.RUN_FAILED: runs.FAILED,
    j.RUN_CANCELLED: runs.CANCELLED,
}


def state_of(event: Event) -> str:
    """The state whose colour suits an event, "" where none does."""
    return STEP_STATES.get(event.kind) or _RUN_STATES.get(event.kind, "")
