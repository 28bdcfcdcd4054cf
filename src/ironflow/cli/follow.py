"""Following a run by its journal: what is new since the last look, and what it adds up to.

The journal is the one source, whichever process executes the run: so a command that started a run, one
that attached to it and one that only watches all show the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.journal import Event
from ironflow.store.base import Store

#: How long a look at a quiet journal waits for the next one, seconds: from, to.
PAUSE = (0.05, 0.25)
#: Events one look brings at most, so that a long journal is shown as it is read.
PAGE = 500


async def events(
    store: Store, run_id: str, after: int = 0, wake: asyncio.Event | None = None
) -> AsyncIterator[list[Event]]:
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


@dataclass(slots=True)
class Running:
    """A step whose body executes, or waits for its next try."""

    name: str
    since: int
    try_no: int
    due: int | None = None


@dataclass(slots=True)
class Progress:
    """What the events so far add up to. Cheap per event: a run may have tens of thousands of steps."""

    state: str = runs.PENDING
    done: int = 0
    failed: int = 0
    retries: int = 0
    recoveries: int = 0
    status_text: str | None = None
    due: int | None = None
    reason: str | None = None
    started_at: int | None = None
    last_at: int = 0
    warnings: int = 0
    ended: bool = False
    open: dict[str, Running] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)

    def feed(self, event: Event) -> None:
        """Take one event in."""
        self.last_at = event.at
        if self.started_at is None:
            self.started_at = event.at
        if event.kind.startswith("step_"):
            self._step(event)
        else:
            self._run(event)

    def _step(self, event: Event) -> None:
        step_id, kind = event.step_id or "", event.kind
        if kind == j.STEP_STARTED:
            number = event.data().get("try", 1)
            self.open[step_id] = Running(j.name_of(step_id), event.at, number)
            if step_id in self.finished:  # the next attempt executes it again
                self.finished.discard(step_id)
        elif kind == j.STEP_RETRYING:
            self.retries += 1
            if step_id in self.open:
                self.open[step_id].due = event.data().get("due")
        else:
            self.open.pop(step_id, None)
            if kind in (j.STEP_COMPLETED, j.STEP_FAILED) and step_id not in self.finished:
                self.finished.add(step_id)
                self.done += kind == j.STEP_COMPLETED
                self.failed += kind == j.STEP_FAILED

    def _run(self, event: Event) -> None:
        kind = event.kind
        if kind in _STATES:
            self.state = _STATES[kind]
            self.due = None
            if kind != j.RUN_STARTED:
                self.open = {k: v for k, v in self.open.items() if v.due is not None}
        if kind == j.RUN_RECOVERED:
            self.recoveries += 1
        elif kind in (j.RUN_SUSPENDED, j.RUN_RETRYING):
            data = event.data()
            self.state, self.due = data.get("state", self.state), data.get("due")
        elif kind == j.RUN_PAUSED:
            self.reason = event.data().get("reason")
        elif kind == j.RUN_UNPAUSED:
            self.state = event.data().get("state", self.state)
        elif kind == j.CANCEL_REQUESTED and event.data().get("compensate"):
            self.state = runs.CANCELLING
        elif kind == j.STATUS_SET:
            self.status_text = event.data().get("text")
        elif kind == j.WARNING:
            self.warnings += 1
        if kind == j.RUN_SUCCEEDED and self.warnings:
            self.state = runs.WARNING
        self.ended = kind in j.TERMINAL_KINDS or (self.ended and kind != j.RUN_REOPENED)


_STATES = {
    j.RUN_CREATED: runs.PENDING,
    j.RUN_STARTED: runs.RUNNING,
    j.RUN_RESUMED: runs.RUNNING,
    j.RUN_RECOVERED: runs.PENDING,
    j.RUN_RELEASED: runs.PENDING,
    j.RUN_PAUSED: runs.PAUSED,
    j.RUN_UNPAUSED: runs.PENDING,
    j.RUN_RETRYING: runs.RETRYING,
    j.RUN_REOPENED: runs.PENDING,
    j.RUN_SUCCEEDED: runs.COMPLETED,
    j.RUN_FAILED: runs.FAILED,
    j.RUN_CANCELLED: runs.CANCELLED,
}

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


def state_of(event: Event) -> str:
    """The state of the step or of the run that an event leads to, "" where it changes none."""
    return STEP_STATES.get(event.kind) or _STATES.get(event.kind, "")
