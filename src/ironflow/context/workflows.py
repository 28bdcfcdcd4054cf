"""`@workflow`: a function becomes something that can be started, interrupted anywhere, and finished elsewhere.

Owns the options authors write and the check of each: a mistake is told at the line that holds it, when the module is
imported, and never by a run. What is made of them is the engine's `WorkflowSpec`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from threading import get_ident
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    get_origin,
    overload,
)

from ironflow.context.api import Context
from ironflow.context.options import (
    MOST_TIMES,
    Retry,
    as_lane,
    checked_choice,
    checked_flag,
    checked_names,
    checked_tags,
    checked_version,
    optional_ms,
    options_of,
    refuse_unknown,
    run_policy,
)
from ironflow.duration import Duration
from ironflow.engine.definitions import PRIORITIES, Lane, WorkflowSpec, check_function, name_of
from ironflow.engine.handler_thread import in_handler_thread, run_in_thread
from ironflow.engine.instance import Instance
from ironflow.engine.workflow_loop import active_loops
from ironflow.errors import DefinitionError

In = TypeVar("In")
Out = TypeVar("Out")


class Workflow(Generic[In, Out]):
    """A registered handler. `fn` is the author's function, `name` what runs are started by, `spec` the engine's view.

    It is not called: an engine starts it (`ironflow.run(ingest, source)`), so that every execution has a journal. A
    type checker reports a call; at run time it raises `DefinitionError`.
    """

    def __init__(self, fn: Callable[..., Any], options: WorkflowOptions) -> None:
        check_function(fn, "workflow")
        _check_context(fn)
        self.fn = fn
        name = name_of(fn, options.get("name"), "workflow")
        self.spec = WorkflowSpec(fn, name, main=self._main, **_checked_options(fn, name, options))
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

    if not TYPE_CHECKING:  # to a type checker a workflow is not callable, which is the better message

        def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
            name = getattr(self.fn, "__name__", self.name)
            if get_ident() in active_loops:
                raise DefinitionError(
                    f"workflow {self.name} was called inside a workflow; there are no child workflows yet",
                    hint=_as_a_part(self.spec, name),
                )
            raise DefinitionError(
                f"workflow {self.name} was called; a workflow is started, so that it has a journal",
                hint=f"Write ironflow.run({name}, …) or engine.start({name}, …). Its plain function is {name}.fn.",
            )

    def __repr__(self) -> str:
        return f"<Workflow {self.name}>"


def _as_a_part(spec: WorkflowSpec, name: str) -> str:
    """How a workflow's code runs inside another one's, which is the one that calls right now."""
    call = f"{name}.fn(ctx, …)" if spec.has_input else f"{name}.fn(ctx)"
    if in_handler_thread():
        call = f"ctx.wait({call})" if spec.is_async else call
    elif spec.is_async:
        call = f"await {call}"
    else:
        return f"Make {name} an `async def`; then `await {call}` runs it as a part of this one."
    return f"`{call}` runs it as a part of this one."


def _check_context(fn: Callable[..., Any]) -> None:
    """Refuse a handler that forgot the context: its input would be taken for it, and fail far from the mistake."""
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first is None or first.annotation is first.empty or _may_be_context(first.annotation, fn):
        return
    name, given = getattr(fn, "__name__", repr(fn)), first.annotation
    shown = f"{first.name}: {given if isinstance(given, str) else inspect.formatannotation(given)}"
    raise DefinitionError(
        f"workflow {name} takes ({shown}) first; the first parameter of a workflow is its context",
        hint=f"Write {name}(ctx: ironflow.Context, {shown}).",
    )


def _may_be_context(annotation: Any, fn: Callable[..., Any]) -> bool:
    """Whether a context could be what is annotated; in doubt it could."""
    if isinstance(annotation, str):
        if "Context" in annotation:
            return True
        try:
            annotation = eval(annotation, getattr(fn, "__globals__", {}))  # the author's own annotation
        except Exception:  # a name that exists for type checkers only, or is defined further down
            return True
    if annotation is Any:
        return True
    if not isinstance(annotation, type):
        return get_origin(annotation) is None
    try:
        return issubclass(Context, annotation) or issubclass(annotation, Context)
    except TypeError:  # a protocol that cannot be asked
        return True


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


class WorkflowOptions(TypedDict, total=False):
    """Options of `@workflow`; every one may be left out.

    name: what runs are started by; by default the function's name.
    version: this code's version, by default "1": a constant, so that an unrelated edit strands no run.
    compatible: recorded versions that this code can still continue.
    retry: attempts of the whole run, as a `Retry` or a number that counts the first; by default 1.
    retry_mode: whether a further attempt keeps the finished steps ("resume", the default) or executes all of them
        again ("restart").
    on_exhausted: whether the run fails (the default), or pauses for a person, after the last attempt.
    on_divergence: whether the run pauses (the default) or fails when the code no longer fits its journal.
    strict_inputs: treat a finished step called with other arguments as a divergence, not as a warning.
    timeout: how long a run may take from its creation; by default as long as it likes.
    max_recoveries: how many lost workers a run survives in total; None leaves it to the engine's ceiling.
    lane: how many runs execute at once, as a `Lane` or a number; by default as many as fit.
    priority: −100…100, higher is dispatched first; by default 0.
    worker_tags: tags that a worker must have to be given a run; at most 32, each of 1 to 64 ASCII letters, digits,
        or - _ . / = and colons.
    """

    name: str | None
    version: str
    compatible: Sequence[str]
    retry: Retry | int
    retry_mode: Literal["resume", "restart"]
    on_exhausted: Literal["fail", "pause"]
    on_divergence: Literal["pause", "fail"]
    strict_inputs: bool
    timeout: Duration | None
    max_recoveries: int | None
    lane: Lane | int | None
    priority: int
    worker_tags: Sequence[str]


@overload
def workflow(fn: Callable[[Context, In], Coroutine[Any, Any, Out]], /) -> Workflow[In, Out]: ...
@overload
def workflow(fn: Callable[[Context], Coroutine[Any, Any, Out]], /) -> Workflow[None, Out]: ...
@overload
def workflow(fn: Callable[[Context, In], Out], /) -> Workflow[In, Out]: ...
@overload
def workflow(fn: Callable[[Context], Out], /) -> Workflow[None, Out]: ...
@overload
def workflow(**options: Unpack[WorkflowOptions]) -> _WorkflowDecorator: ...
def workflow(fn: Callable[..., Any] | None = None, /, **options: Unpack[WorkflowOptions]) -> Any:
    """Make a workflow of a function that takes the context and at most one input.

    The function may be `async def`, or `def`, which then runs in a thread and waits with `ctx.wait(...)`. A default of
    its input, `n: int = 12`, is the input of a run that is started without one; None counts as none.

    Args:
        fn: the function, where the decorator stands without brackets.
        options: see :class:`WorkflowOptions`.

    Raises:
        DefinitionError: the function or an option breaks a rule, or there is no such option.
    """
    refuse_unknown(options, WorkflowOptions, "workflow")
    if fn is None:
        return lambda decorated: Workflow(decorated, options)
    return Workflow(fn, options)


def _checked_options(fn: Callable[..., Any], name: str, options: WorkflowOptions) -> dict[str, Any]:
    """The options but for the name, as a `WorkflowSpec` takes them."""
    with options_of("workflow", fn, name):
        return _taken(options)


def _taken(options: WorkflowOptions) -> dict[str, Any]:
    compatible = checked_names(options.get("compatible", ()), "compatible")
    return {
        "version": checked_version(options.get("version", "1")),
        "compatible": tuple(checked_version(v, "compatible") for v in compatible),
        "retry": run_policy(options.get("retry", 1)),
        "retry_mode": checked_choice(options.get("retry_mode", "resume"), "retry_mode", ("resume", "restart")),
        "on_exhausted": checked_choice(options.get("on_exhausted", "fail"), "on_exhausted", ("fail", "pause")),
        "on_divergence": checked_choice(options.get("on_divergence", "pause"), "on_divergence", ("pause", "fail")),
        "strict_inputs": checked_flag(options.get("strict_inputs", False), "strict_inputs"),
        "timeout_ms": optional_ms(options.get("timeout"), "timeout"),
        "max_recoveries": _checked_recoveries(options.get("max_recoveries")),
        "lane": as_lane(options.get("lane")),
        "priority": _checked_priority(options.get("priority", 0)),
        "worker_tags": checked_tags(options.get("worker_tags", ())),
    }


def _checked_priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in PRIORITIES:
        raise DefinitionError(f"priority must be a whole number from −100 to 100, not {value!r}")
    return value


def _checked_recoveries(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TIMES:
        raise DefinitionError(f"max_recoveries must be a whole number from 0 to {MOST_TIMES:,}, not {value!r}")
    return value
