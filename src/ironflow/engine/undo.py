"""Undoing a run: its compensations, newest first, one at a time, each a journaled step.

They run after the code has ended or was told to end, so nothing of them is fed to the code. One that fails
does not keep the others from running: its error is recorded, and told with the end of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ironflow.codec.exceptions import encode_error
from ironflow.engine import replay
from ironflow.engine.history import ENDED, INTERRUPTED, STARTED
from ironflow.engine.instance import Raised
from ironflow.engine.plan import CLOSED, WANTED, StepRun
from ironflow.model import journal as j
from ironflow.model import run as runs

if TYPE_CHECKING:
    from ironflow.engine.execution import Execution


class Undo:
    """What is left to undo, oldest first, and what is being undone."""

    __slots__ = ("current", "left")

    def __init__(self, steps: list[StepRun]) -> None:
        self.left = steps
        self.current: StepRun | None = None


def begin(e: Execution, failed: Raised | None) -> None:
    """Find what is left to undo. A run that fails says so in the journal first: after a crash its error must
    stand even if the code, mended meanwhile, would not raise it again.
    """
    steps = [step for key, step in e.compensations.items() if e.history.state(key) != ENDED]
    if not steps:
        return
    e.undo = Undo(steps)
    if e.head.state != runs.CANCELLING and failed is not None:
        e.journal(j.RUN_COMPENSATING, None, f'{{"error":{encode_error(failed.error)}}}')
        e.plan.state = runs.CANCELLING
        e.plan.change({"compensating_for": runs.FAILED})


def advance(e: Execution, undo: Undo) -> bool:
    """Take the next compensation on; True once none is left."""
    while True:
        step = undo.current
        if step is not None and step.state != CLOSED:
            if step.state == WANTED:
                e.begin(step)
            return False
        if not undo.left:
            return True
        undo.current = undo.left.pop()
        _take_up(e, undo.current)


def _take_up(e: Execution, step: StepRun) -> None:
    e.steps[step.id] = step
    record = e.history.recorded.get(step.id)
    if record is None:
        return
    replay.restore(e, step, record)
    if record.state in (STARTED, INTERRUPTED):
        replay.cut_off(e, step, record.state)
        e.answer()
