"""Steps and workflows as the engine sees them: the author's function and everything decided about it.

Built once, at import of the author's module, so nothing here may be slow: annotations are resolved and codecs
built at first use, which is also when names defined further down in the module exist. How an annotation is read
is the codec's business; it is asked, so that a result and an argument of one type can never be read differently.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

from ironflow.errors import DefinitionError, InvalidInput, PayloadError, PayloadRejected
from ironflow.model.capacity import LARGEST_LIMIT
from ironflow.model.ids import check_text, join_tags
from ironflow.model.retry import RetryPolicy
from ironflow.model.step import TRANSACTION as TRANSACTION
from ironflow.store.base import WorkflowSeen

if TYPE_CHECKING:
    from ironflow.codec.arguments import Arguments
    from ironflow.codec.values import Codec
    from ironflow.engine.instance import Instance

OnCancel = Literal["wait", "abandon"]

#: What a run's priority may be; higher is dispatched first.
PRIORITIES = range(-100, 101)


class Lane:
    """A limit on how many runs of a workflow execute at once.

    Parameters:
        limit: runs that may execute at the same time; sleeping and waiting runs do not count.
        key: gives each input its own counter (one lane per customer, say); None: one for the whole workflow.
    """

    __slots__ = ("key", "limit")

    def __init__(self, limit: int, key: Callable[[Any], str] | None = None) -> None:
        given: Any = limit
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= LARGEST_LIMIT:
            raise DefinitionError(f"a lane's limit must be a whole number from 1 to {LARGEST_LIMIT:,}, not {given!r}")
        if key is not None and not callable(key):
            raise DefinitionError(f"a lane's key must be a function of the input, not {key!r}")
        self.limit = limit
        self.key = key

    def __repr__(self) -> str:
        return f"Lane({self.limit})" if self.key is None else f"Lane({self.limit}, key={self.key!r})"


class StepSpec:
    """A step: its body, its name and its options. Times in milliseconds.

    `arguments` and `result` are the codecs of what goes in and comes out. `reconcile`, set later by its
    decorator, answers for an interrupted body. `on_cancel` says whether a cancelled body's end is awaited.
    """

    __slots__ = (
        "_arguments",
        "_result",
        "at_most_once",
        "fn",
        "heartbeat_timeout_ms",
        "is_async",
        "kind",
        "name",
        "on_cancel",
        "reconcile",
        "retry",
        "timeout_ms",
    )

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        *,
        kind: str = "tool",
        retry: RetryPolicy | None = None,
        timeout_ms: int | None = None,
        heartbeat_timeout_ms: int | None = None,
        at_most_once: bool = False,
        on_cancel: OnCancel = "wait",
    ) -> None:
        self.fn = fn
        self.name = name
        self.kind = kind
        self.is_async = is_async_function(fn)
        self.retry = retry if retry is not None else _ONE_TRY
        self.timeout_ms = timeout_ms
        self.heartbeat_timeout_ms = heartbeat_timeout_ms
        self.at_most_once = at_most_once
        self.on_cancel = on_cancel
        self.reconcile: Callable[..., Any] | None = None
        self._arguments: Arguments | None = None
        self._result: Codec | None = None

    @property
    def arguments(self) -> Arguments:
        """The codec of what goes in; made at the first call."""
        if self._arguments is None:
            from ironflow.codec.arguments import Arguments

            # The connection is the engine's to give: it is no argument, and is not journaled.
            self._arguments = Arguments(self.fn, skip=1 if self.kind == TRANSACTION else 0)
        return self._arguments

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse arguments that do not fit the function, where they are given and not where they are needed.

        Raises:
            InvalidInput: the function cannot be called like this.
        """
        try:
            signature = inspect.signature(self.fn)
        except (TypeError, ValueError):  # some functions written in C have none
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            from ironflow.codec.arguments import wrong_call

            raise wrong_call(self.fn, signature, error) from None

    @property
    def result(self) -> Codec:
        """The codec of what comes out; made at the first call."""
        if self._result is None:
            from ironflow.codec.arguments import result_codec

            self._result = result_codec(self.fn)
        return self._result

    @property
    def plain(self) -> bool:
        """Whether the body is an `async def` without limits, which is simply awaited: the commonest kind."""
        return (
            self.is_async and self.timeout_ms is None and self.heartbeat_timeout_ms is None and self.kind != TRANSACTION
        )

    def __repr__(self) -> str:
        return f"StepSpec({self.name!r})"


class WorkflowSpec:
    """A workflow: its handler, its name and its options. Times in milliseconds.

    Parameters:
        fn: the author's function; `main`: what runs it for an instance and gives the coroutine of its result
            (the layer above supplies it, because it builds the context object authors see).
        version, compatible: recorded with a run; the run goes on under this version or one that lists it.
        retry, retry_mode: attempts of the whole run, and whether another one keeps the finished steps.
        on_exhausted, on_divergence: whether the run fails or pauses when its attempts are used up, or when its
            journal no longer fits the code.
        strict_inputs: an error rather than a warning when a finished step is called with other arguments.
        max_recoveries: lost leases after which the run fails; None: only the engine's own ceiling counts.
        lane, priority, worker_tags: where and when it runs.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        *,
        main: Callable[[Instance, Any], Coroutine[Any, Any, Any]],
        version: str = "1",
        compatible: tuple[str, ...] = (),
        retry: RetryPolicy | None = None,
        retry_mode: Literal["resume", "restart"] = "resume",
        on_exhausted: Literal["fail", "pause"] = "fail",
        on_divergence: Literal["pause", "fail"] = "pause",
        strict_inputs: bool = False,
        timeout_ms: int | None = None,
        max_recoveries: int | None = None,
        lane: Lane | None = None,
        priority: int = 0,
        worker_tags: tuple[str, ...] = (),
    ) -> None:
        self.fn = fn
        self.name = name
        self.main = main
        self.version = version
        self.compatible = compatible
        self.retry = retry if retry is not None else _ONE_TRY
        self.retry_mode = retry_mode
        self.on_exhausted = on_exhausted
        self.on_divergence = on_divergence
        self.strict_inputs = strict_inputs
        self.timeout_ms = timeout_ms
        self.max_recoveries = max_recoveries
        self.lane = lane
        self.priority = priority
        self.worker_tags = worker_tags
        self.is_async = is_async_function(fn)
        parameter = _input_parameter(fn, name)
        self._input_name = None if parameter is None else parameter.name
        self.has_input = parameter is not None
        #: the input of a run that is started without one; None: there is no default, or None itself is the input
        self.default: Any = None if parameter is None or parameter.default is parameter.empty else parameter.default

    @functools.cached_property
    def input(self) -> Codec:
        """The codec of the one input; of None for a workflow that takes none."""
        from ironflow.codec.annotations import resolve
        from ironflow.codec.values import codec_for

        if self._input_name is None:
            return codec_for(type(None))
        return codec_for(resolve(self.fn).get(self._input_name, Any))

    @functools.cached_property
    def output(self) -> Codec:
        """The codec of what the handler returns."""
        from ironflow.codec.arguments import result_codec

        return result_codec(self.fn)

    def given(self, value: Any) -> Any:
        """The input that a start means: the default of the signature stands for one that is left out, or None."""
        return self.default if value is None else value

    def lanes(self, value: Any) -> list[tuple[str, int]]:
        """The lanes that a run with this input counts in by its workflow's own limit, each with the limit."""
        if self.lane is None:
            return []
        key = self.lane_key(value)
        return [(f"workflow:{self.name}" if key is None else f"workflow:{self.name}:{key}", self.lane.limit)]

    def lane_key(self, value: Any) -> str | None:
        """Which of the workflow's lanes an input belongs to; None where that does not depend on it."""
        if self.lane is None or self.lane.key is None:
            return None
        key = str(self.lane.key(self.given(value)))
        check_text(key, "the lane's key", empty=True)
        return key

    def definition(self) -> dict[str, Any]:
        """What a start needs to know where the code is not; `declared.Declared` reads it.

        `lanes` is None where they depend on the input, and `keyed_limit` is then the limit of each of them;
        `input_schema` is None where the annotation has no JSON schema. `input_default` is in the form in which values
        are stored; None where there is none, or none that could be stored: then a start has to bring an input.
        """
        from ironflow.codec.schema import schema_of

        keyed = self.lane is not None and self.lane.key is not None
        limits = None if keyed else self.lanes(None)
        return {
            "priority": self.priority,
            "timeout_ms": self.timeout_ms,
            "max_recoveries": self.max_recoveries,
            "lanes": None if limits is None else [{"name": name, "limit": limit} for name, limit in limits],
            "keyed_limit": self.lane.limit if keyed and self.lane is not None else None,
            "input_schema": schema_of(self.input),
            "input_default": self._stored_default(),
            "doc": inspect.getdoc(self.fn),
            "compatible": list(self.compatible),
        }

    def _stored_default(self) -> Any:
        if self.default is None:
            return None
        try:
            return json.loads(self.input.encode(self.default, path="input"))
        except PayloadError:
            return None

    def __repr__(self) -> str:
        return f"WorkflowSpec({self.name!r}, version={self.version!r})"


def seen(spec: WorkflowSpec) -> WorkflowSeen:
    """What a worker that has this workflow leaves in the database of it."""
    return WorkflowSeen(spec.name, spec.version, join_tags(spec.worker_tags), json.dumps(spec.definition()))


def unfit(workflow: str, error: PayloadError, codec: Codec | None) -> InvalidInput:
    """What is said of an input that cannot be stored or read: the input is to be changed, and not the code.

    Args:
        workflow: its name.
        error: what the codec said.
        codec: of the input, where the code is at hand.
    """
    from ironflow.codec.schema import shape

    hint = error.hint or ""
    if hint == PayloadRejected.advice:
        hint = "" if codec is None else f"Expected: {shape(codec.annotation)}"
    where = str(error.details.get("path", "input"))
    return InvalidInput(
        f"the input does not fit workflow {workflow}: {error.message}",
        hint=hint,
        details={"errors": [{"at": where, "problem": error.message}]},
    )


_ONE_TRY = RetryPolicy()


def name_of(fn: Callable[..., Any], given: str | None, what: str) -> str:
    """The name a step or workflow goes by: the one given, or the function's own.

    Raises `DefinitionError` for a lambda or an object without a name, since its runs could not be told apart
    in the journal, and for `|`, which joins the parts of an idempotency key.
    """
    name = given
    if name is None:
        inner = fn.func if isinstance(fn, functools.partial) else fn
        name = getattr(inner, "__name__", None)
        if name is None or name == "<lambda>":
            raise DefinitionError(
                f"a {what} needs a name, and {fn!r} has none",
                hint=f'Give it one: {what}(name="…")(fn), or write a named function.',
            )
    check_name(name, what)
    return name


def check_name(name: Any, what: str) -> None:
    """Refuse names that cannot be journaled and found again: empty, too long, with `|`, with control characters."""
    try:
        check_text(name, f"the name of a {what}")
    except InvalidInput as error:
        raise DefinitionError(error.message, hint=error.hint) from None
    if "|" in name:
        raise DefinitionError(
            f"{name!r} cannot be the name of a {what}", hint="`|` separates the parts of an idempotency key."
        )


def check_function(fn: Any, what: str) -> None:
    """Refuse what cannot be called once and return one value."""
    if not callable(fn):
        raise DefinitionError(f"a {what} must be a function, not {fn!r}")
    if isinstance(getattr(fn, "spec", None), WorkflowSpec):
        raise DefinitionError(
            f"{fn!r} is a workflow already, and cannot be a {what}",
            hint="A workflow calls steps and plain functions: move what both need into one of these.",
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(
            f"{fn.__qualname__} is a generator; a {what} gives one result",
            hint="Return a list, or make a step of each item.",
        )


def is_async_function(fn: Any) -> bool:
    """Whether calling it gives a coroutine. Everybody asks here: an object with an `async def __call__` is easily
    missed, and would be called in a thread, where nobody awaits what it gives.
    """
    if inspect.iscoroutinefunction(fn):
        return True
    return inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - its own method, if it has one


def _input_parameter(fn: Callable[..., Any], name: str) -> inspect.Parameter | None:
    parameters = list(inspect.signature(fn).parameters.values())
    fine = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not 1 <= len(parameters) <= 2 or any(p.kind not in fine for p in parameters):
        from ironflow.codec.arguments import written

        shown = ", ".join(str(p) for p in written(inspect.Signature(parameters)).parameters.values())
        raise DefinitionError(
            f"workflow {name} is defined with ({shown}); it takes the context and at most one input",
            hint="Put several inputs into one dataclass or model: fields can be added later."
            if len(parameters) > 2
            else f"Write {name}(ctx: ironflow.Context) or, with an input, {name}(ctx: ironflow.Context, order: Order).",
        )
    return parameters[1] if len(parameters) == 2 else None
