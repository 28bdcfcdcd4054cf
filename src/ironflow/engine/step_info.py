"""What a step's body may know about its own execution.

A body keeps the signature its author gave it; whatever else it needs (the idempotency key to send along, how
long it still has, whether anyone still wants the result) comes from `step_info()`. The executor puts one
`StepInfo` into a context variable for each try, so it is right in tasks and in threads the body starts with
its context.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from ironflow.errors import StepOutsideWorkflow
from ironflow.model.ids import call_key, idempotency_key


class StepInfo:
    """One try of one step, seen from inside its body.

    Attributes:
        run_id, root_run_id: the run, and the outermost run it belongs to.
        step_id: the id of this call in the run's journal.
        name: the step's name.
        attempt: 1 + the tries of this step that have ended, over the run's whole life. An interrupted try did
            not end, so its repetition has the same number, and with it the same key.
        idempotency_key: send it to whatever can recognise a repetition; equal for repetitions of one try (after a
            crash), new for every try that a retry policy or a person grants: that one is meant to be executed.
        call_key: the same for every try of this call, retries and recoveries included; new after a restart of the run,
            which makes every call anew. Send this one where a try that failed may have taken effect all the same (a
            bank that timed out), and the receiver must act once.
        fence: the segment's number; a later owner of the run has a higher one. Hand it to systems that can
            refuse older writers.
        deadline: when this try times out (aware), or None.
        last_heartbeat: the details of the last heartbeat of an earlier try, as long as the run stayed on its worker;
            None after a crash, so it may save work and must not be needed.
        cancelled: whether the result is no longer wanted; a long body should look at it now and then.
    """

    __slots__ = (
        "attempt",
        "cancelled",
        "deadline",
        "fence",
        "generation",
        "last_heartbeat",
        "latest",
        "name",
        "on_heartbeat",
        "root_run_id",
        "run_id",
        "step_id",
    )

    def __init__(
        self,
        *,
        run_id: str,
        root_run_id: str,
        step_id: str,
        name: str,
        attempt: int,
        fence: int,
        generation: int = 1,
        deadline: datetime | None = None,
        last_heartbeat: Any = None,
        on_heartbeat: Callable[[Any], None] | None = None,
    ) -> None:
        self.run_id = run_id
        self.root_run_id = root_run_id
        self.step_id = step_id
        self.name = name
        self.attempt = attempt
        self.fence = fence
        #: the attempt that last restarted the run; 1: none did
        self.generation = generation
        self.deadline = deadline
        self.last_heartbeat = last_heartbeat
        self.latest: Any = None
        self.on_heartbeat = on_heartbeat
        self.cancelled = False

    @property
    def idempotency_key(self) -> str:
        """See the class. Worked out when it is asked for: most bodies send nothing."""
        return idempotency_key(self.run_id, self.step_id, self.attempt)

    @property
    def call_key(self) -> str:
        """See the class."""
        return call_key(self.run_id, self.step_id, self.generation)

    def heartbeat(self, details: Any = None) -> None:
        """Say that the body is alive, and remember `details` (how far it has come) for a later try on this worker.

        Cheap enough for a loop's body, and callable from any thread.
        """
        self.latest = details
        if self.on_heartbeat is not None:
            self.on_heartbeat(details)


current: ContextVar[StepInfo] = ContextVar("ironflow_step_info")


def step_info() -> StepInfo:
    """The `StepInfo` of the step whose body is running here.

    Raises `StepOutsideWorkflow` anywhere else: in workflow code there is no step yet, and in plain calls
    (`charge.fn(...)` in a unit test) there is none at all.
    """
    info = current.get(None)
    if info is None:
        raise StepOutsideWorkflow(
            "step_info() was called where no step is running",
            hint="Call it inside a step's body; in a unit test, inside `with ironflow.testing.step_info():`.",
        )
    return info
