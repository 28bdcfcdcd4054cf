"""One run's workflow code, held as a value: feed it a fact, get the requests it makes.

The instance is sans-IO. It knows no store, no clock and no thread; the executor tells it what happened and
when, and does what it asks. It does not know either whether a fact is new or comes from the journal (it is
told, so that log lines are not repeated), which is why replay cannot drift from live execution: there is only
one path.
"""

from __future__ import annotations

import linecache
import logging
import re
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from ironflow.engine.loop_base import text_of
from ironflow.engine.requests import Completed, Fact, Failed, Fired, Opened, Request, StartTimer
from ironflow.engine.workflow_loop import WorkflowLoop
from ironflow.engine.workflow_task import WorkflowTask, WorkflowTimer
from ironflow.errors import ForbiddenInWorkflow, StepNotAwaited

if TYPE_CHECKING:
    from ironflow.engine.definitions import WorkflowSpec


class RunInfo:
    """What workflow code may know about its run.

    `seed` feeds `ctx.random` and `ctx.uuid4`, the same in every segment. `patches` are the ids recorded by
    `ctx.patched`; the instance adds to the set. `attempt` is 1 + the run's automatic retries.
    """

    __slots__ = ("attempt", "patches", "root_run_id", "run_id", "seed", "workflow_name")

    def __init__(
        self, run_id: str, root_run_id: str, workflow_name: str, attempt: int, seed: int, patches: set[str]
    ) -> None:
        self.run_id = run_id
        self.root_run_id = root_run_id
        self.workflow_name = workflow_name
        self.attempt = attempt
        self.seed = seed
        self.patches = patches


class UnknownFact(KeyError):
    """A fact answers nothing this code has asked: the code and the journal do not belong together."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(id)
        self.id = id
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.id}: {self.reason}"


class Returned:
    """The workflow ended with a value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Returned({self.value!r})"


class Raised:
    """The workflow ended with an error."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"Raised({self.error!r})"


class Instance:
    """The code of one run in one segment.

    Parameters:
        spec: the workflow.
        input: its decoded input (ignored by a workflow that takes none).
        info: facts about the run.
        strict: raise where the code does something nondeterministic, instead of warning once.

    Attributes:
        outcome: how the workflow ended, or None while it goes on.
        loop: its event loop; context calls reach the instance through it.
        held_log: log records made since the last `release_log`.
    """

    def __init__(self, spec: WorkflowSpec, input: Any, info: RunInfo, *, strict: bool = False) -> None:
        self.spec = spec
        self.input = input
        self.info = info
        self.outcome: Returned | Raised | None = None
        # The methods it seems to lack are set after its class: each refuses.
        self.loop = WorkflowLoop(info.run_id, info.seed, strict=strict)  # type: ignore[abstract]
        self.held_log: list[tuple[Any, Any]] = []
        self._main: WorkflowTask | None = None

    @property
    def open(self) -> dict[str, Opened]:
        """Requests made and neither answered nor withdrawn, oldest first."""
        return self.loop.open

    @property
    def unreported(self) -> list[str]:
        """Failures of tasks nobody awaited and calls nobody awaited, one sentence each; complete once
        ended.
        """
        return self.loop.unreported

    @property
    def parkable(self) -> bool:
        """Whether the instance may be kept in memory while its run waits: a synchronous handler holds a
        thread.
        """
        return self.spec.is_async

    # ---- driving

    def start(self, at_ms: int, replaying: bool = False) -> list[Request]:
        """Begin the workflow at `at_ms` (milliseconds since the epoch) and return what it asks for first."""
        if self._main is not None:
            raise RuntimeError(f"the instance of run {self.info.run_id} was started twice")
        loop = self.loop
        loop.now_ms = max(loop.now_ms, at_ms)
        loop.replaying = replaying
        loop.activation(self._begin, None)
        return self._answer()

    def activate(self, fact: Fact, at_ms: int, replaying: bool = False) -> list[Request]:
        """Feed one fact that happened at `at_ms`, run until nothing is ready, return the requests in order.

        A fact for a request that the code has withdrawn is ignored, live as in replay: the body may have ended just as
        it was cancelled. A fact for anything else that is not open raises `UnknownFact`.
        """
        loop = self.loop
        request = loop.open.get(fact.id)
        if request is None:
            if fact.id in loop.withdrawn:
                return []
            raise UnknownFact(fact.id, "the workflow has not asked for this")
        if (request.__class__ is StartTimer) is not (fact.__class__ is Fired):
            raise UnknownFact(fact.id, f"{fact!r} does not answer {request!r}")
        del loop.open[fact.id]
        if at_ms > loop.now_ms:  # time never runs backwards within a run, whatever the clocks did
            loop.now_ms = at_ms
        loop.replaying = replaying
        waiter = request.waiter
        request.waiter = None
        if fact.__class__ is Completed:
            loop.activation(waiter.set_result, fact.value)
        elif fact.__class__ is Failed:
            loop.activation(_fail(waiter), fact.error)
        elif waiter.__class__ is WorkflowTimer:
            loop.activation(loop.fire, waiter)
        else:
            loop.activation(waiter.set_result, None)
        return self._answer()

    def close(self) -> None:
        """End the code here and now. What it does on its way out is not asked for, not journaled, and does
        not count.

        Safe to call twice, and after the end. Held log lines come out: they are of no other use any more.
        """
        self.loop.end()
        self._main = None
        self.release_log()

    def release_log(self) -> None:
        """Emit the log records held so far. To be called after the commit that follows an activation: a line
        about something that was then not committed would tell of an event that did not happen. A handler that
        raises is told of on stderr, as logging's own are: the code that logged the line is long past it.
        """
        held, self.held_log = self.held_log, []
        for logger, record in held:
            try:
                logger.handle(record)
            except Exception:
                logging.Handler().handleError(record)

    # ---- inside

    def _begin(self, _: None) -> None:
        self._main = self.loop.start_task(self._run_main(), self.loop.root_scope, Context())

    async def _run_main(self) -> Any:
        try:
            return await self.spec.main(self, self.input)
        finally:
            self.loop.halt()

    def _answer(self) -> list[Request]:
        loop = self.loop
        if self.outcome is None and (loop.stopped or loop.fault is not None):
            self._finish()
        requests = loop.requests
        loop.requests = []
        return requests

    def _finish(self) -> None:
        """Main has ended, and with it everything: what is still asked for is withdrawn, in the order it was
        asked.
        """
        loop = self.loop
        loop.halt()
        self.outcome = self._outcome()
        for request in list(loop.open.values()):
            loop.withdraw(request)
        exits = loop.tasks.report(loop.unreported)
        if exits is not None and isinstance(self.outcome, Returned):
            self.outcome = Raised(exits)
        names = [f"{call.name} ({call.place})" for call in loop.unstarted.values()]
        loop.unreported.extend(f"the call of {name} was never awaited" for name in names)
        if names and isinstance(self.outcome, Returned):
            self.outcome = Raised(self._not_awaited("the workflow returned", names))
        elif names and isinstance(self.outcome, Raised) and _took_a_call_for_a_value(self.outcome.error):
            error = self.outcome.error
            forgotten = self._not_awaited(f"the workflow failed ({type(error).__name__}: {error})", names)
            forgotten.__cause__ = error
            self.outcome = Raised(forgotten)

    def _not_awaited(self, what: str, names: list[str]) -> StepNotAwaited:
        hint = "Did you forget `await`? Write it before the call, or hand the call to a task; alone it does nothing."
        if not self.spec.is_async:
            hint = "Did you forget `ctx.wait(…)`? Write it around the call; alone it does nothing."
        return StepNotAwaited(f"{what}, and never awaited its call of {', '.join(names)}", hint=hint)

    def _outcome(self) -> Returned | Raised:
        if self.loop.fault is not None:
            return Raised(self.loop.fault)
        assert self._main is not None
        try:
            return Returned(self._main.result())
        except BaseException as error:
            return Raised(_explain(error))

    def stuck_report(self) -> str:
        """Where every unfinished task waits, in creation order: the answer to "why does nothing happen?"."""
        lines: list[str] = []
        for task in self.loop.tasks:
            if not task.done():
                lines.append(f"task {task.get_name()}")
                lines.extend(_waiting_at(task.get_coro()))
        return "\n".join(lines)


def _fail(future: Any) -> Callable[[BaseException], None]:
    def act(error: BaseException) -> None:
        # These would end coroutines instead of being raised in them. A future refuses the one; with the other, code is
        # closed from the inside out, and what it catches and does then counts for nothing.
        if isinstance(error, StopIteration | GeneratorExit):
            error, cause = RuntimeError(f"the step raised {text_of(error, repr)}"), error
            error.__cause__ = cause
        future.set_exception(error)
        future._log_traceback = False  # whether anyone awaits it is the journal's concern, not the collector's

    return act


#: How Python names a call of the context in its complaints about what one cannot do with it.
_CALL = re.compile(r"\bCall\b")


def _took_a_call_for_a_value(error: BaseException) -> bool:
    """Whether code failed because it computed with the call of a step instead of its result."""
    return isinstance(error, TypeError | AttributeError) and _CALL.search(text_of(error)) is not None


def _explain(error: BaseException) -> BaseException:
    """asyncio's own complaint about a primitive of another loop, said in terms of runs."""
    if isinstance(error, RuntimeError) and "is bound to a different event loop" in text_of(error):
        primitive = text_of(error).split(" is bound", 1)[0]
        explained = ForbiddenInWorkflow(
            f"{primitive} was made outside this run's code and is shared with another run or loop",
            hint="Make it inside the workflow; to limit runs against each other, use a lane.",
        )
        explained.__cause__ = error
        return explained
    return error


def _waiting_at(awaited: Any) -> list[str]:
    """The frames from a coroutine down to what it waits for, one line (and its source) each, Ironflow's left out."""
    lines: list[str] = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        frame = frame or getattr(awaited, "ag_frame", None)
        if frame is None:
            lines.append(f"  waiting for {_named(awaited)}")
            break
        code = frame.f_code
        if not str(frame.f_globals.get("__name__")).startswith("ironflow."):
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_qualname}')
            source = linecache.getline(code.co_filename, frame.f_lineno).strip()
            if source:
                lines.append(f"    {source}")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return lines


def _named(awaited: Any) -> str:
    name = getattr(awaited, "__name__", None)
    if name is not None:
        return f"the call of {name}"
    if "Future" in type(awaited).__name__:
        return "a future that no step, timer or other task will complete"
    return repr(awaited)
