"""A run without store and worker: an `Execution` driven by hand, with the journal in a list."""

from __future__ import annotations

import asyncio
from typing import Any

from ironflow.codec.values import encode_any, parse
from ironflow.context.workflows import Workflow
from ironflow.engine.execution import Execution
from ironflow.engine.history import History
from ironflow.engine.plan import Plan, StepRun
from ironflow.model import journal as j
from ironflow.model.capacity import RunHead
from ironflow.model.journal import Event

START = 1_000_000


class Harness:
    """Drives one run. `now` is in ms; `running` are the bodies that were started and have not ended."""

    def __init__(self, workflow: Workflow[Any, Any], value: Any = None, **head: Any) -> None:
        self.workflow = workflow
        self.value = value
        self.journal: list[Event] = []
        self.now = START
        self.seq = 0
        self.head_options = head
        self.running: dict[str, StepRun] = {}
        self.stopped: list[str] = []
        self.plan: Plan | None = None
        self.execution: Execution

    def head(self, **changes: Any) -> RunHead:
        options = {"attempt": 1, **self.head_options, **changes}
        return RunHead(
            "run-1",
            self.workflow.name,
            options.pop("version", self.workflow.spec.version),
            options.pop("state", "pending"),
            self.workflow.name,
            "run-1",
            START,
            self.seq,
            0,
            options["attempt"],
            0,
            0,
            0,
            None,
            options.get("deadline_at"),
        )

    def fresh(self) -> Plan:
        created = f'{{"t":{self.now},"input":{encode_any(self.value)}}}'
        history = History()
        history.input, history.started_at = parse(created)["input"], self.now
        self.execution = Execution(self.workflow.spec, self.head(), history, chance=lambda: 0.5)
        self.execution.created(created)
        return self._open()

    def replay(self, workflow: Workflow[Any, Any] | None = None, **head: Any) -> Plan:
        """A new segment on another worker: everything but the journal is lost."""
        if workflow is not None:
            self.workflow = workflow
        self.running.clear()
        self.execution = Execution(
            self.workflow.spec, self.head(**head), History.of(self.journal), chance=lambda: 0.5
        )
        return self._open()

    def _open(self, adopted: tuple[Any, ...] = ()) -> Plan:
        self.seq += 1
        self.execution.open(self.seq, self.now, "worker", adopted)
        return self.settle()

    def settle(self) -> Plan:
        plan = self.plan = self.execution.settle(self.now)
        self.journal += plan.events
        for step in plan.start:
            self.running[step.id] = step
        self.stopped += [step.id for step in plan.stop]
        return plan

    def end(self, name: str, value: Any = None, error: BaseException | None = None) -> Plan:
        """The body of the step with this name (or id) ends."""
        step_id = next(s for s in self.running if s == name or j.name_of(s) == name)
        step = self.running.pop(step_id)
        text = None if error is not None else step.spec.result.encode(value)
        self.execution.ended(step, self.now, text, error)
        return self.settle()

    def run_body(self, step_id: str) -> Plan:
        """Execute the body for real (it must not need a loop's I/O) and feed its end."""
        step = self.running.pop(step_id)
        args, kwargs = step.spec.arguments.decode(step.args_text or "")
        try:
            value = step.spec.fn(*args, **kwargs)
            if asyncio.iscoroutine(value):
                value = asyncio.run(value)
        except Exception as error:
            self.execution.ended(step, self.now, None, error)
        else:
            self.execution.ended(step, self.now, step.spec.result.encode(value), None)
        return self.settle()

    def to_end(self) -> Plan:
        """Run bodies in the order of their start until nothing executes."""
        while self.running:
            self.run_body(next(iter(self.running)))
        assert self.plan is not None
        return self.plan

    def kinds(self) -> list[str]:
        return [event.kind for event in self.journal]

    def steps(self) -> list[str]:
        """Kind and step of every step event, without ids."""
        return [
            f"{event.kind.removeprefix('step_')} {j.name_of(event.step_id or '')}"
            for event in self.journal
            if event.kind.startswith("step_")
        ]
