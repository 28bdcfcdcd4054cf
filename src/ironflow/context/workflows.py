"""`@workflow`: a function becomes something that can be started, interrupted anywhere, and finished
elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

from ironflow.context.api import Context
from ironflow.context.options import (
    Retry,
    as_lane,
    checked_choice,
    checked_names,
    optional_ms,
    run_policy,
)
from ironflow.duration import Duration
from ironflow.engine.definitions import Lane, WorkflowSpec, check_function, name_of
from ironflow.engine.handler_thread import run_in_thread
from ironflow.engine.instance import Instance
from ironflow.errors import DefinitionError

In = TypeVar("In")
Out = TypeVar("Out")


class Workflow(Generic[In, Out]):
    """A registered handler. `fn` is the author's function, `name` what runs are started by, `spec` the engine's view.

    It is not callable: an engine starts it (`ironflow.run(ingest, source)`), so that every execution has a journal.
    """

    def __init__(self, fn: Callable[..., Any], name: str | None, options: dict[str, Any]) -> None:
        check_function(fn, "workflow")
        self.fn = fn
        self.spec = WorkflowSpec(fn, name_of(fn, name, "workflow"), main=self._main, **options)
        self.name = self.spec.name
        wrapper: Any = self
        functools.update_wrapper(wrapper, fn)

    def _main(self, instance: Instance, input: Any) -> Coroutine[Any, Any, Any]:
        context = Context(instance)
        arguments = (context, input) if self.spec.has_input else (context,)
        if self.spec.is_async:
            coroutine: Coroutine[Any, Any, Any] = self.fn(*arguments)
            return coroutine
        return run_in_thread(instance, lambda: self.fn(*arguments))

    def __repr__(self) -> str:
        return f"<Workflow {self.name}>"


class _WorkflowDecorator(Protocol):
    """What `@workflow(...)` returns: a decorator that keeps the types of input and result."""

    @overload
    def __call__(self, fn: Callable[[Context, In], Coroutine[Any, Any, Out]], /) -> Workflow[In, Out]: ...
    @overload
    def __call__(self, fn: Callable[[Context], Coroutine[Any, Any, Out]], /) -> Workflow[None, Out]: ...
    @overload
    def __call__(self, fn: Callable[[Context, In], Out], /) -> Workflow[In, Out]: ...
    @overload
    def __call__(self, fn: Callable[[Context], Out], /) -> Workflow[None, Out]: ...


@overload
def workflow(fn: Callable[[Context, In], Coroutine[Any, Any, Out]], /) -> Workflow[In, Out]: ...
@overload
def workflow(fn: Callable[[Context], Coroutine[Any, Any, Out]], /) -> Workflow[None, Out]: ...
@overload
def workflow(fn: Callable[[Context, In], Out], /) -> Workflow[In, Out]: ...
@overload
def workflow(fn: Callable[[Context], Out], /) -> Workflow[None, Out]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: str = "1",
    compatible: Sequence[str] = (),
    retry: Retry | int = 1,
    retry_mode: Literal["resume", "restart"] = "resume",
    on_exhausted: Literal["fail", "pause"] = "fail",
    on_divergence: Literal["pause", "fail"] = "pause",
    strict_inputs: bool = False,
    timeout: Duration | None = None,
    max_recoveries: int | None = None,
    lane: Lane | int | None = None,
    priority: int = 0,
    worker_tags: Sequence[str] = (),
    events: Sequence[Any] = (),
    cron: Sequence[Any] = (),
) -> _WorkflowDecorator: ...
def workflow(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    compatible: Sequence[str] = (),
    retry: Retry | int = 1,
    retry_mode: Literal["resume", "restart"] = "resume",
    on_exhausted: Literal["fail", "pause"] = "fail",
    on_divergence: Literal["pause", "fail"] = "pause",
    strict_inputs: bool = False,
    timeout: Duration | None = None,
    max_recoveries: int | None = None,
    lane: Lane | int | None = None,
    priority: int = 0,
    worker_tags: Sequence[str] = (),
    events: Sequence[Any] = (),
    cron: Sequence[Any] = (),
) -> Any:
    """Make a workflow of a function that takes the context and at most one input.

    The function may be `async def`, or `def`, which then runs in a thread and waits with `ctx.wait(...)`.

    Options:
        name: what runs are started by; by default the function's name.
        version, compatible: this code's version, and the recorded versions it can still continue. The default
            is a constant, so that an unrelated edit strands no run.
        retry, retry_mode, on_exhausted: attempts of the whole run, whether a further one keeps the finished
            steps, and whether the run fails or pauses for a person after the last.
        on_divergence: what happens when the code no longer fits a run's journal.
        strict_inputs: treat a finished step called with other arguments as a divergence, not a warning.
        timeout: how long a run may take from its creation.
        max_recoveries: how many lost workers a run survives in total; None leaves it to the engine's ceiling.
        lane: how many runs execute at once, as a `Lane` or a number.
        priority, worker_tags: order of dispatch, and what a worker must offer.
        events, cron: what starts a run by itself.

    Raises `DefinitionError` where the function or an option breaks a rule.
    """
    options: dict[str, Any] = {
        "version": version,
        "compatible": checked_names(compatible, "compatible"),
        "retry": run_policy(retry),
        "retry_mode": checked_choice(retry_mode, "retry_mode", ("resume", "restart")),
        "on_exhausted": checked_choice(on_exhausted, "on_exhausted", ("fail", "pause")),
        "on_divergence": checked_choice(on_divergence, "on_divergence", ("pause", "fail")),
        "strict_inputs": strict_inputs,
        "timeout_ms": optional_ms(timeout, "timeout"),
        "max_recoveries": _checked_recoveries(max_recoveries),
        "lane": as_lane(lane),
        "priority": priority,
        "worker_tags": checked_names(worker_tags, "worker_tags"),
        "events": tuple(events),
        "cron": tuple(cron),
    }
    if fn is None:
        return lambda decorated: Workflow(decorated, name, options)
    return Workflow(fn, name, options)


def _checked_recoveries(value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or value < 0):
        raise DefinitionError(f"max_recoveries must be a whole number from 0, not {value!r}")
    return value
