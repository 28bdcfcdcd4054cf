"""A run without store and worker: an `Execution` driven by hand, with the journal in a list.

After every commit the journal is folded and compared with the run's row as the plans have changed it, so that
each scenario of these tests also proves that the journal alone tells the state.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ironflow.codec.exceptions import decode_error
from ironflow.codec.values import encode_any, parse
from ironflow.context.workflows import Workflow
from ironflow.engine import ending
from ironflow.engine.execution import Execution
from ironflow.engine.history import History
from ironflow.engine.plan import RETRY, SUSPENSION, Plan, StepRun, owner_transition
from ironflow.errors import IronflowError
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.capacity import RunHead
from ironflow.model.fold import Folded, fold
from ironflow.model.ids import idempotency_key
from ironflow.model.journal import Event
from ironflow.model.operator import reopen, resume
from ironflow.model.run import RunRow
from ironflow.model.transition import Locked

START = 1_000_000
#: Every execution that was made, to be closed when its test is over: a dropped one would run user code.
made: list[Execution] = []
RUN = "run-1"
#: Columns that the journal must tell.
COMPARED = ("state", "attempt", "retry_count", "warnings", "compensations", "status_text", "reason")


class Harness:
    """Drives one run. `now` is in ms; `running` are the bodies that were started and have not ended."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        value: Any = None,
        *,
        chance: float = 0.5,
        deadline_at: int | None = None,
        limit: int = 2_097_152,
        version: str | None = None,
    ) -> None:
        self.workflow = workflow
        self.value = value
        self.chance = chance
        self.limit = limit
        self.journal: list[Event] = []
        self.now = START
        self.row = RunRow(RUN, workflow.name, version or workflow.spec.version, runs.PENDING, workflow.name, RUN, START)
        self.row.deadline_at = deadline_at
        #: how long the journal was after each commit: where a crash can cut it
        self.commits: list[int] = []
        self.running: dict[str, StepRun] = {}
        self.started: list[tuple[str, int, str]] = []
        self.stopped: list[str] = []
        self.abandoned: dict[str, StepRun] = {}
        self.waits: dict[str, int | None] = {}
        self.queued_at = START
        self.plan: Plan
        self.execution: Any = None

    # ---- segments

    def fresh(self) -> Harness:
        """Start the run on the spot: creation and first commit are one."""
        created = f'{{"t":{self.now},"input":{encode_any(self.value)}}}'
        history = History()
        history.input, history.started_at = parse(created)["input"], self.now
        self.execution = self._execution(history)
        self.execution.created(created)
        return self._open()

    def queued(self) -> Harness:
        """Create the run in the queue, without a segment."""
        self._append(j.RUN_CREATED, {"t": self.now, "input": json.loads(encode_any(self.value))})
        return self

    def replay(
        self, workflow: Workflow[Any, Any] | None = None, *, adopted: tuple[tuple[str, int], ...] = ()
    ) -> Harness:
        """A new segment on another worker: everything but the journal is lost."""
        if workflow is not None:
            self.workflow = workflow
        self.running = {key: step for key, step in self.running.items() if (key, step.try_no) in adopted}
        self.stopped.clear()
        last_seq = len(self.journal)
        head = self._head()
        try:
            ending.check_version(self.workflow.spec, head)
            self.execution = self._execution(History.of(self.journal))
            return self._open(adopted)
        except IronflowError as error:
            plan = ending.refused(self.workflow.spec, head, last_seq, self.row.execution_seq + 1, error)
            self.row.execution_seq += 1
            if self.row.state != runs.CANCELLING:
                self.row.state = runs.RUNNING
            return self._commit(plan)

    def wake(self) -> Harness:
        """The next segment of a run that slept, on the worker that kept it in memory."""
        assert self.row.state in runs.SUSPENDED
        self.execution.head = self._head()
        return self._open()

    def recover(self, workflow: Workflow[Any, Any] | None = None, *, at: int | None = None) -> Harness:
        """The owner dies, after the commit that made the journal `at` long; another worker takes over."""
        if at is not None:
            del self.journal[at:]
        self.row = self._row_of(fold(self.journal))
        if self.row.state in (runs.RUNNING, runs.CANCELLING):
            self.row.execution_seq += 1
            self.row.lease_recoveries += 1
            self.row.consecutive_recoveries += 1
            self._append(j.RUN_RECOVERED, {"charged": True})
            if self.row.state == runs.RUNNING:
                self.row.state = runs.PENDING
        return self.replay(workflow)

    def _head(self) -> RunHead:
        row = self.row
        return RunHead(
            RUN, row.workflow, row.version, row.state, row.route, RUN, START, row.execution_seq, 0, row.attempt,
            0, row.consecutive_recoveries, row.charged_recoveries, row.compensating_for, row.deadline_at,
        )  # fmt: skip

    def _execution(self, history: History) -> Execution:
        if self.execution is not None:
            self.execution.close()
        execution = Execution(
            self.workflow.spec, self._head(), history, chance=lambda: self.chance, strict=True, limit=self.limit
        )
        made.append(execution)
        return execution

    def _open(self, adopted: tuple[tuple[str, int], ...] = ()) -> Harness:
        seq = self.row.execution_seq + 1
        self.execution.open(seq, self.now, "worker", adopted)
        plan = self.execution.settle(self.now)
        self.row.execution_seq = seq
        self.waits.clear()
        if self.row.state != runs.CANCELLING:
            self.row.state = runs.RUNNING
        self.execution.head.execution_seq, self.execution.head.state = seq, self.row.state
        return self._commit(plan)

    # ---- commits

    def settle(self) -> Harness:
        return self._commit(self.execution.settle(self.now))

    def _commit(self, plan: Plan) -> Harness:
        self.plan = plan
        change = owner_transition(plan, self._head(), "token")
        for event in plan.events:
            event.at = self.now
        self.journal += plan.events
        if plan.events:
            self.commits.append(len(self.journal))
        if change.state is not None and change.state != self.row.state:
            runs.check(RUN, self.row.state, change.state)
            self.row.state = change.state
        for name, value in (change.changes or {}).items():
            setattr(self.row, name, value)
        if self.row.state == runs.CANCELLING and self.execution is not None:
            self.execution.head.state = runs.CANCELLING
        for step in plan.start:
            self.running[step.id] = step
            self.started.append((step.id, step.try_no, idempotency_key(RUN, step.id, step.try_no)))
        self.stopped += [step.id for step in plan.stop]
        for step in plan.stop:
            if step.spec.on_cancel == "abandon":
                self.abandoned[step.id] = self.running.pop(step.id, step)
        if plan.leave is not None:
            assert not self.running, "a segment left with bodies running"
            self.waits = {row.step_id: row.due_at for row in plan.leave.waits}
            if plan.leave.kind == RETRY:
                self.queued_at = plan.leave.due or 0
            if plan.leave.kind != SUSPENSION and self.execution is not None:
                self.execution.close()
        self.check()
        return self

    def _append(self, kind: str, data: dict[str, Any]) -> None:
        event = Event(len(self.journal) + 1, kind, None, json.dumps(data), self.row.execution_seq, self.now)
        self.journal.append(event)
        self.commits.append(len(self.journal))

    def check(self) -> None:
        """The journal is sound, and tells the row."""
        view = fold(self.journal)
        assert view.breaches == []
        told = {name: getattr(view, name) for name in COMPARED}
        assert told == {name: getattr(self.row, name) for name in COMPARED}
        open_tries = {step.step_id for step in view.steps.values() if step.state == steps.RUNNING}
        doubtful = {step.id for step in self.running.values() if step.reconciling}
        doubtful |= {key for key in self.running if key in view.steps and view.steps[key].state == "interrupted"}
        assert open_tries <= self.running.keys()
        assert self.running.keys() - open_tries <= doubtful

    def _row_of(self, view: Folded) -> RunRow:
        row = RunRow(
            RUN, self.row.workflow, self.row.version, view.state, self.row.route, RUN, START,
            execution_seq=view.execution_seq, deadline_at=self.row.deadline_at,
        )  # fmt: skip
        for name in (*COMPARED, "epoch", "lease_recoveries", "consecutive_recoveries"):
            setattr(row, name, getattr(view, name))
        row.charged_recoveries = view.consecutive_recoveries
        return row

    # ---- what people do

    def command(self, kind: str, data: dict[str, Any], state: str) -> Harness:
        """A change of ownership from outside."""
        self.row.execution_seq += 1
        self._append(kind, data)
        self.row.state = state
        self.row.reason = data.get("reason")
        return self

    def cancel(self) -> Harness:
        assert self.row.compensations > 0, "without compensations nothing executes any more"
        return self.command(j.CANCEL_REQUESTED, {"compensate": True}, runs.CANCELLING)

    def pause(self) -> Harness:
        return self.command(j.RUN_PAUSED, {"reason": "PAUSED_BY_OPERATOR"}, runs.PAUSED)

    def resume(self) -> Harness:
        return self._decided(resume(self._locked(), "ann"))

    def reopen(self, *, restart: bool = False) -> Harness:
        failed = self.result.get("failed_steps", [])
        return self._decided(reopen(self._locked(), "ann", failed, restart=restart))

    def _locked(self) -> Locked:
        return Locked(self.row, len(self.journal), None, None, [], self.now)

    def _decided(self, change: Any) -> Harness:
        self.row.execution_seq = change.new_execution_seq or self.row.execution_seq
        for event in change.events:
            self._append(event.kind, event.data())
        self.row.state = change.state
        for name, value in (change.changes or {}).items():
            setattr(self.row, name, value)
        self.check()
        return self

    # ---- bodies

    def find(self, name: str) -> str:
        return next(s for s in self.running if name in (s, j.name_of(s)))

    def end(
        self, name: str, value: Any = None, error: BaseException | None = None, *, settle: bool = True, **more: Any
    ) -> Harness:
        """The body of the step with this name (or id) ends."""
        step = self.running.pop(self.find(name))
        text = None
        if error is None:
            try:
                text = step.spec.result.encode(value, path=f"{step.id} result", limit=self.limit)
            except IronflowError as refused:
                error = refused
        self.execution.ended(step, self.now, text, error, **more)
        return self.settle() if settle else self

    def fail(self, name: str, error: BaseException | None = None) -> Harness:
        return self.end(name, error=error or ValueError("boom"))

    def reconciled(self, name: str, answer: Any = None, error: BaseException | None = None) -> Harness:
        step = self.running.pop(self.find(name))
        assert step.reconciling
        self.execution.reconciled(step, self.now, answer, error)
        return self.settle()

    def run_body(self, step_id: str, *, settle: bool = True) -> Harness:
        """Execute the body for real (it must not need a loop's I/O) and feed its end."""
        step = self.running[step_id]
        args, kwargs = step.arguments()
        try:
            value = step.spec.fn(*args, **kwargs)
            if asyncio.iscoroutine(value):
                value = asyncio.run(value)
        except Exception as error:
            return self.end(step_id, error=error, settle=settle)
        return self.end(step_id, value, settle=settle)

    def to_end(self) -> Harness:
        """Run bodies in the order of their start until nothing executes."""
        while self.running:
            self.run_body(next(iter(self.running)))
        return self

    def later(self, ms: int) -> Harness:
        self.now += ms
        return self

    # ---- what there is to see

    @property
    def state(self) -> str:
        return self.row.state

    @property
    def result(self) -> dict[str, Any]:
        """The payload of the terminal event."""
        assert self.row.state in runs.TERMINAL, self.row.state
        return self.last(j.RUN_SUCCEEDED, j.RUN_FAILED, j.RUN_CANCELLED)

    @property
    def output(self) -> Any:
        assert self.row.state in (runs.COMPLETED, runs.WARNING), self.result
        return self.result["output"]

    @property
    def error(self) -> BaseException:
        return decode_error(parse(json.dumps(self.result["error"])))

    def last(self, *kinds: str) -> dict[str, Any]:
        """The payload of the last event of these kinds."""
        return next(event.data() for event in reversed(self.journal) if event.kind in kinds)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.journal]

    def new(self) -> list[str]:
        """Kinds and names of the last plan's events."""
        return [shown(event) for event in self.plan.events]

    def steps(self) -> list[str]:
        """Kind and name of every step event."""
        return [shown(event) for event in self.journal if event.kind.startswith("step_")]

    def names(self) -> list[str]:
        return [j.name_of(step_id) for step_id in self.running]


def shown(event: Event) -> str:
    if event.step_id is None:
        return event.kind
    return f"{event.kind.removeprefix('step_')} {j.name_of(event.step_id)}"
