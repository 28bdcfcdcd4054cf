"""The ledger of one run in one segment: what its code has asked for, and what becomes journal of it.

What it owns: the workflow instance, its open steps and timers, and the plan that the next commit takes. What
it promises: every request is taken on in the order in which it was made; arguments are copied before the code
is told anything more, so that code and bodies share nothing; and an event gets its number when it is decided,
not when it is written.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ironflow.engine import notes, replay
from ironflow.engine.blame import revived
from ironflow.engine.definitions import WorkflowSpec
from ironflow.engine.history import History
from ironflow.engine.instance import Instance, Raised, RunInfo
from ironflow.engine.plan import BACKOFF, CLOSED, EXECUTING, REFUSED, STOPPING, WANTED, Plan, StepRun
from ironflow.engine.requests import (
    CancelStep,
    CancelTimer,
    Fact,
    Request,
    StartTimer,
    StepCall,
)
from ironflow.model import journal as j
from ironflow.model.capacity import RunHead
from ironflow.model.ids import seed_of
from ironflow.model.journal import Event

if TYPE_CHECKING:
    from ironflow.engine.undo import Undo

#: The largest encoded output, bytes, where the caller sets no other.
MAX_PAYLOAD_BYTES = 2_097_152


class Ledger:
    """See the module's docstring; `Execution` adds what happens and what is decided.

    Args:
        spec: the workflow.
        head: the run as it was taken.
        history: its journal, indexed; consumed when the segment opens.
        chance: gives numbers in [0, 1) for the jitter of retries. Not journaled: the due time is.
        strict: nondeterministic calls of the code raise instead of warning once.
        limit: the largest encoded output of the run, bytes.

    Attributes:
        slow: the last activation took so long that facts should be committed before the next one. The
            caller measures and sets it; no clock is read here.
        untold: facts that are journaled, and that the code has not been told.
    """

    # A thousand of these stay in memory parked: no dictionary for each.
    __slots__ = (
        "_execution_seq",
        "_known",
        "_opened",
        "_order",
        "chance",
        "compensations",
        "due",
        "executing",
        "head",
        "history",
        "hold",
        "instance",
        "last_limit",
        "last_seq",
        "leaving",
        "limit",
        "now",
        "output",
        "plan",
        "ready",
        "refused",
        "replaying",
        "slow",
        "spec",
        "steps",
        "stopping",
        "timers",
        "transactions",
        "undo",
        "undo_errors",
        "untold",
        "verdict",
        "wanted",
        "warnings",
    )

    def __init__(
        self,
        spec: WorkflowSpec,
        head: RunHead,
        history: History,
        *,
        chance: Callable[[], float],
        strict: bool = False,
        limit: int = MAX_PAYLOAD_BYTES,
        transactions: bool = True,
    ) -> None:
        self.spec = spec
        self.head = head
        self.history = history
        self.chance = chance
        self.limit = limit
        #: whether this process has the database that transactional steps write to
        self.transactions = transactions
        self.instance = self._instance(strict)
        #: the time of the last fact, ms
        self.now = history.started_at
        self.last_seq = history.last_seq
        self.steps: dict[str, StepRun] = {}
        self.stopping: dict[str, StepRun] = {}
        #: asked for or due again, not started yet, in order; may hold steps that were cancelled since
        self.wanted: list[StepRun] = []
        #: how many bodies execute
        self.executing = 0
        self.timers: dict[str, int] = {}
        #: due times of timers and back-offs, with the order of asking; withdrawn ones stay until they come up
        self.due: list[tuple[int, int, str]] = []
        #: a timeout (not a sleep) that fired last: the likely origin of a TimeoutError that names no step
        self.last_limit: str | None = None
        self.plan = Plan()
        self.compensations: dict[str, StepRun] = {}
        self.undo: Undo | None = None
        self.undo_errors: dict[str, str] = {}
        self.warnings = history.warnings
        self.output: str | None = None
        #: set where the end of the run does not come from the code: a deadline, an output that cannot be stored
        self.verdict: Raised | None = None
        if history.failing is not None:
            self.verdict = Raised(revived(history.failing))
        #: why the run pauses as soon as nothing of it executes
        self.hold: dict[str, Any] | None = None
        #: the worker is leaving: nothing new starts, and the run is given back once nothing executes
        self.leaving = False
        self.slow = False
        self.untold: list[tuple[Fact, int]] = []
        #: carried results that were asked for, by seq in the journal
        self.ready: list[tuple[int, str]] = []
        #: steps that fail without a body
        self.refused: list[tuple[StepRun, BaseException]] = []
        #: set while recorded facts are fed
        self.replaying: replay.Replay | None = None
        self._execution_seq = head.execution_seq
        self._order = 0
        self._known = bool(history.recorded or history.slots)
        self._opened = False

    def _instance(self, strict: bool) -> Instance:
        head, history, spec = self.head, self.history, self.spec
        seed = seed_of(head.run_id, history.generation)
        info = RunInfo(head.run_id, head.root_run_id, spec.name, head.attempt, seed, history.patches)
        return Instance(spec, replay.input_of(spec, history), info, strict=strict)

    # ---- what the code asks for

    def take(self, requests: list[Request]) -> None:
        """Take the requests of one activation on, in the order in which they were made."""
        for request in requests:
            if isinstance(request, StepCall):
                self._on_step(request)
            elif isinstance(request, StartTimer):
                self._on_timer(request)
            elif isinstance(request, CancelTimer):
                self.timers.pop(request.id, None)
            elif isinstance(request, CancelStep):
                self._on_cancel(request.id)
            else:
                notes.take(self, request)

    def _on_step(self, call: StepCall) -> None:
        step = StepRun(call)
        self.steps[call.id] = step
        try:
            step.keep_arguments(self.limit)
        except Exception as error:  # whatever storing them raised: the call fails, and only this call
            step.state = REFUSED
            self.refused.append((step, error))
        else:
            self.wanted.append(step)
        if self._known:
            replay.recall(self, step)

    def _on_timer(self, request: StartTimer) -> None:
        due = replay.due_of(self, request)
        self.timers[request.id] = due
        self.push(due, request.id)

    def _on_cancel(self, step_id: str) -> None:
        step = self.steps.pop(step_id, None)
        if step is None:
            return
        if self.replaying is not None:
            self.replaying.dropped.append(step_id)
        elif step.state == EXECUTING:
            self.stop(step)
            return
        elif step.state == BACKOFF or step.cut:
            self.journal(j.STEP_CANCELLED, step_id, None)
        step.close()

    def stop(self, step: StepRun) -> None:
        """Cancel a running body. Its end is awaited before the run may end, unless its author let it go."""
        self.plan.stop.append(step)
        self.executing -= 1
        if step.spec.on_cancel == "abandon":
            step.state = CLOSED  # and keeps its body, which the plan has yet to cancel
            self.journal(j.STEP_CANCELLED, step.id, '{"abandoned":true}')
        else:
            step.state = STOPPING
            self.stopping[step.id] = step

    def want(self, step: StepRun) -> None:
        """Begin a try of this step when the plan is settled."""
        step.state = WANTED
        self.wanted.append(step)

    def push(self, due: int, key: str) -> None:
        """Look at this timer or back-off again at `due`, ms; equal times keep the order of asking."""
        self._order += 1
        heapq.heappush(self.due, (due, self._order, key))

    def journal(self, kind: str, step_id: str | None, payload: str | None) -> None:
        """Add an event to the plan."""
        self.last_seq = seq = self.last_seq + 1
        self.plan.events.append(Event(seq, kind, step_id, payload, self._execution_seq))

    def begin(self, step: StepRun) -> None:
        """Journal the start of a try; its body runs after the commit."""
        step.state = EXECUTING
        self.executing += 1
        self.plan.start.append(step)
        if step.reconciling:  # what is asked about is the try before
            return
        step.cut = False
        payload = f'{{"input_hash":"{step.input_hash}"'
        if step.spec.kind != "tool":
            payload += f',"kind":"{step.spec.kind}"'
        if step.try_no > 1:
            payload += f',"try":{step.try_no}'
        self.journal(j.STEP_STARTED, step.id, payload + "}")

    def close(self) -> None:
        """Drop the instance: its code runs no further, on no loop."""
        self.instance.close()
