"""`@step`: a function becomes a unit of work whose result is journaled.

A step is called like the function it is, and only inside a workflow: elsewhere nothing would record it, and a step that
silently runs unrecorded is the kind of mistake that is found in production. The plain function stays in reach as
`charge.fn`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine
from threading import get_ident
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, overload

from ironflow.context.call import Call, JournaledStep, give_up
from ironflow.context.options import (
    StepOptions,
    checked_choice,
    checked_flag,
    optional_ms,
    options_of,
    refuse_unknown,
    step_policy,
)
from ironflow.engine import step_info
from ironflow.engine.definitions import TRANSACTION, StepSpec, check_function, name_of
from ironflow.engine.reconcile import Reconciled
from ironflow.engine.workflow_loop import active_loops
from ironflow.errors import DefinitionError, StepOutsideWorkflow
from ironflow.model.step import GIVEN_KINDS

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A function whose calls, in a workflow, are journaled.

    Attributes:
        fn: the plain function, for unit tests and for use inside other steps.
        name: how the step is called in the journal.
        spec: the engine's view of it.
    """

    def __init__(self, fn: Callable[..., Any], options: StepOptions) -> None:
        check_function(fn, "step")
        self.spec = _spec(fn, options)
        self.fn: Callable[P, Any] = fn
        self.name = self.spec.name
        self._options = options
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call of the step: await it. Raises `StepOutsideWorkflow` anywhere but in workflow code."""
        loop = active_loops.get(get_ident())
        if loop is None:
            _refuse_outside(self.name, f"{self.fn.__name__}.fn(…)" if hasattr(self.fn, "__name__") else "STEP.fn(…)")
        return JournaledStep(sys._getframe(1), loop, self.spec, args, kwargs)

    def using(self, **options: Unpack[StepOptions]) -> Step[P, R]:
        """The same step with other options: `charge.using(timeout="5s")(order)`. Given ones replace, others stay."""
        merged: StepOptions = {**self._options, **options}
        other: Step[P, R] = Step(self.fn, merged)
        other.spec.reconcile = self.spec.reconcile
        return other

    @functools.cached_property
    def transactional(self) -> StepSpec:
        """The engine's view of it when `ctx.transaction` calls it: a connection comes before its arguments."""
        own = self.spec
        return StepSpec(
            self.fn,
            own.name,
            kind=TRANSACTION,
            retry=own.retry,
            timeout_ms=own.timeout_ms,
            heartbeat_timeout_ms=own.heartbeat_timeout_ms,
            at_most_once=own.at_most_once,
            on_cancel=own.on_cancel,
        )

    def reconcile(
        self, fn: Callable[P, Reconciled[R] | Awaitable[Reconciled[R]]], /
    ) -> Callable[P, Reconciled[R] | Awaitable[Reconciled[R]]]:
        """Decorate the function that finds out what an interrupted body achieved.

        It gets the step's arguments and says `Done(value)`, `NotDone()` or `Unknown()`. Without it an interrupted step
        runs again (or raises `StepInterrupted`, if it is at most once).
        """
        if self.spec.reconcile is not None:
            raise DefinitionError(f"step {self.name} already has a function that reconciles it")
        self.spec.reconcile = fn
        return fn

    def __repr__(self) -> str:
        return f"<Step {self.name}>"


def _spec(fn: Callable[..., Any], options: StepOptions) -> StepSpec:
    refuse_unknown(options, StepOptions, "step")
    name = name_of(fn, options.get("name"), "step")
    parameters = inspect.signature(fn).parameters
    if next(iter(parameters), "") in ("self", "cls") and not inspect.ismethod(fn):
        raise DefinitionError(
            f"step {name} is a method; the object it belongs to cannot be journaled",
            hint="Make the step a function, and pass it the data it needs.",
        )
    with options_of("step", fn, name):
        return StepSpec(
            fn,
            name,
            kind=checked_choice(options.get("kind", "tool"), "kind", GIVEN_KINDS),
            retry=step_policy(options.get("retry", 1)),
            timeout_ms=optional_ms(options.get("timeout"), "timeout"),
            heartbeat_timeout_ms=optional_ms(options.get("heartbeat_timeout"), "heartbeat_timeout"),
            at_most_once=checked_flag(options.get("at_most_once", False), "at_most_once"),
            on_cancel=checked_choice(options.get("on_cancel", "wait"), "on_cancel", ("wait", "abandon")),
        )


def _refuse_outside(name: str, plain: str) -> NoReturn:
    info = step_info.current.get(None)
    if info is not None:
        raise StepOutsideWorkflow(
            f"step {name} was called inside the body of step {info.name}",
            hint=f"Call the plain function, {plain}, or let the workflow call both steps.",
        )
    raise StepOutsideWorkflow(
        f"step {name} was called outside a workflow",
        hint=f"Call the plain function, {plain}, or await the step inside a workflow.",
    )


@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(**options: Unpack[StepOptions]) -> _StepDecorator: ...
def step(fn: Callable[..., Any] | None = None, /, **options: Unpack[StepOptions]) -> Any:
    """Make a step of a function, `async def` or `def` (which then runs in a thread).

    Options:
        name: its name in the journal, by default the function's. Runs under way know the step by it.
        retry: a `Retry`, or the number of tries in total.
        timeout: how long one try may take.
        heartbeat_timeout: how long a try may go without a heartbeat.
        at_most_once: never repeat an interrupted body; the workflow gets `StepInterrupted` instead.
        kind: "tool", "llm" or "connector": the class that `Retry(on=…)` can name.
        on_cancel: "wait" for a cancelled body's end, or "abandon" it.
    """
    if fn is None:
        return lambda decorated: Step(decorated, options)
    return Step(fn, options)


class _StepDecorator(Protocol):
    """What `@step(...)` returns: a decorator that keeps parameters and result."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...


def _refuse_call(made: Any) -> NoReturn:
    """Say what to write to who has called the function before giving it away."""
    name = getattr(made, "__name__", "f")
    give_up(made)
    awaited = f"Write `await {name}(…)`, or" if isinstance(made, Call) else "Write"
    raise DefinitionError(
        f"a step must be a function, and this is what a call of {name} returned",
        hint=f"{awaited} `await ctx.step({name}, …)`: the function and its arguments.",
    )


def undecorated_spec(fn: Callable[..., Any], kind: str) -> StepSpec:
    """The spec of a plain function given to the context, remembered on the function where that is possible."""
    known: dict[str, StepSpec] | None = getattr(fn, "__dict__", {}).get("__ironflow_steps__")
    if known is not None and kind in known and known[kind].fn is fn:
        return known[kind]
    if inspect.isawaitable(fn):
        _refuse_call(fn)
    check_function(fn, "step")
    spec = StepSpec(fn, name_of(fn, None, "step"), kind=kind)
    if inspect.isfunction(fn):
        fn.__dict__.setdefault("__ironflow_steps__", {})[kind] = spec
    return spec
