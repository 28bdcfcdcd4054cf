"""`@step` and `@workflow`: what they accept, what they refuse, and what the engine gets of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from datetime import date
from typing import Any, Protocol

import pytest

from ironflow import testing
from ironflow.context import (
    Context,
    Done,
    Lane,
    NotDone,
    Reconciled,
    Retry,
    Unknown,
    step,
    step_info,
    workflow,
)
from ironflow.context.info import StepInfo, current
from ironflow.errors import DefinitionError, InvalidDuration, StepOutsideWorkflow


@step(retry=Retry(5, backoff="2s", on=("timeout", LookupError)), timeout="1m", heartbeat_timeout=5, kind="llm")
async def charge(order: int) -> str:
    """Charge a card."""
    return f"charged {order}"


def test_options_reach_the_engine_in_milliseconds() -> None:
    spec = charge.spec
    assert (spec.name, spec.kind, spec.is_async) == ("charge", "llm", True)
    assert (spec.timeout_ms, spec.heartbeat_timeout_ms) == (60_000, 5_000)
    assert (spec.retry.max_attempts, spec.retry.backoff_ms, spec.retry.on) == (
        5,
        2_000,
        ("timeout", LookupError),
    )


def test_a_step_looks_like_its_function_and_keeps_it_in_reach() -> None:
    assert (charge.__name__, charge.__doc__) == ("charge", "Charge a card.")
    assert list(inspect.signature(charge).parameters) == ["order"]
    coroutine = charge.fn(1)
    with pytest.raises(StopIteration, match="charged 1"):
        coroutine.send(None)
    assert repr(charge) == "<Step charge>"


def test_using_replaces_the_options_given_and_keeps_the_others() -> None:
    other = charge.using(timeout="5s", name="charge quickly")
    assert (other.spec.timeout_ms, other.spec.kind, other.name) == (5_000, "llm", "charge quickly")
    assert charge.spec.timeout_ms == 60_000
    assert charge.using(retry=2).spec.retry.max_attempts == 2


def test_calling_a_step_outside_a_workflow_names_the_plain_function() -> None:
    with pytest.raises(StepOutsideWorkflow, match=r"charge\.fn\(…\)"):
        charge(1)


async def test_calling_a_step_in_the_body_of_another_says_in_which() -> None:
    token = current.set(info())
    try:
        with pytest.raises(StepOutsideWorkflow, match=r"inside the body of step outer.*charge\.fn\(…\)"):
            charge(1)
    finally:
        current.reset(token)


def info(**more: Any) -> StepInfo:
    return StepInfo(
        run_id="r",
        root_run_id="r",
        step_id="main/1:outer",
        name="outer",
        attempt=1,
        fence=3,
        **more,
    )


def test_step_info_is_there_in_a_body_and_nowhere_else() -> None:
    with pytest.raises(StepOutsideWorkflow, match="no step is running"):
        step_info()
    beats: list[Any] = []
    token = current.set(info(on_heartbeat=beats.append))
    try:
        assert step_info().fence == 3
        step_info().heartbeat({"row": 5})
        assert beats == [{"row": 5}]
        assert step_info().cancelled is False
    finally:
        current.reset(token)
    info().heartbeat()  # nobody listens: nothing happens


def test_a_workflow_that_forgot_its_context_is_told_to_take_it_and_not_to_gather_inputs() -> None:
    async def nothing() -> None:
        pass

    with pytest.raises(DefinitionError, match=r"defined with \(\).*Write nothing\(ctx: ironflow\.Context\)"):
        workflow(nothing)  # type: ignore[type-var]


def test_a_unit_test_gives_a_plain_call_its_step_info() -> None:
    @step
    def pay(cents: int) -> tuple[int, str]:
        info = step_info()
        info.heartbeat(cents)
        return info.attempt, info.call_key

    beats: list[Any] = []
    with testing.step_info(attempt=2, run_id="r", name="pay", on_heartbeat=beats.append) as given:
        assert pay.fn(7) == (2, given.call_key)
        assert (given.step_id, given.root_run_id) == ("main/1:pay", "r")
    assert beats == [7]
    with pytest.raises(StepOutsideWorkflow, match=r"with ironflow\.testing\.step_info\(\)"):
        pay.fn(7)


def test_reconcile_is_remembered_also_by_variants_and_only_once() -> None:
    @step
    def transfer(amount: int) -> str:
        return "sent"

    @transfer.reconcile
    def find(amount: int) -> Reconciled[str]:
        return Done("found") if amount else NotDone() if amount is None else Unknown()

    assert transfer.spec.reconcile is find
    assert transfer.using(timeout=1).spec.reconcile is find
    with pytest.raises(DefinitionError, match="already has"):
        transfer.reconcile(find)
    assert find(5) == Done("found")


def generator() -> Any:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Callable_:  # noqa: N801 - a callable object without a name of its own
    async def __call__(self, n: int) -> int:
        return n


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda: step(lambda: 1), "needs a name"),
        (lambda: step(Callable_()), "needs a name"),
        (lambda: step(name="")(plain), "the name of a step is empty"),
        (lambda: step(name="a|b")(plain), "cannot be the name"),
        (lambda: step(name="a\nb")(plain), "the name of a step .* not printable"),
        (lambda: step(name="x" * 201)(plain), "201 characters long"),
        (lambda: step(retires=3)(plain), "a step has no option 'retires'. Did you mean retry"),  # type: ignore[call-overload]
        (lambda: step(at_most_onze=True)(plain), "'at_most_onze'. Did you mean at_most_once"),  # type: ignore[call-overload]
        (lambda: charge.using(time_out=5), "'time_out'. Did you mean timeout"),  # type: ignore[call-arg]
        (lambda: workflow(zzz=1)(handler), "'zzz'. There are name, version"),  # type: ignore[call-overload]
        (lambda: step(workflow(handler)), "is a workflow already, and cannot be a step"),  # type: ignore[call-overload]
        (lambda: workflow(forgot), "takes .n: int. first; the first parameter of a workflow is its context"),
        (lambda: workflow(forgot_both), "takes .order: .*Order.* first"),
        (lambda: workflow(forgot_list), "takes .names: list.str.. first"),
        (lambda: step(generator), "is a generator"),
        (lambda: step(async_generator), "is a generator"),
        (lambda: step(5), "must be a function"),
        (lambda: step(method), "is a method"),
        (lambda: step(kind="transaction")(plain), "kind must be one of"),
        (lambda: step(on_cancel="maybe")(plain), "on_cancel must be one of"),
        (lambda: step(retry=0)(plain), "starts at 1"),
        (lambda: step(retry=True)(plain), "starts at 1"),
        (lambda: workflow(name="w")(lambda: 1), "takes the context and at most one input"),
        (lambda: workflow(three), "takes the context and at most one input"),
        (lambda: workflow(keyword_only), "takes the context and at most one input"),
        (lambda: workflow(lambda ctx: 1), "needs a name"),
        (lambda: workflow(retry_mode="again")(handler), "retry_mode must be one of"),
        (lambda: workflow(worker_tags="gpu")(handler), "sequence of names"),
        (lambda: workflow(version="1\n2")(handler), "version .* not printable"),
        (lambda: workflow(compatible=["x" * 65])(handler), "compatible is 65 characters"),
        (lambda: workflow(worker_tags=["two words"])(handler), "'two words' is no tag"),
        (lambda: workflow(events=["order.paid"])(handler), "has no option 'events'"),  # type: ignore[call-overload]
        (lambda: workflow(cron=["0 * * * *"])(handler), "has no option 'cron'"),  # type: ignore[call-overload]
        (lambda: workflow(max_recoveries=-1)(handler), "from 0"),
        (lambda: workflow(priority="high")(handler), "priority must be a whole number"),  # type: ignore[call-overload]
        (lambda: workflow(priority=1.5)(handler), "priority must be a whole number"),  # type: ignore[call-overload]
        (lambda: workflow(priority=True)(handler), "priority must be a whole number"),
        (lambda: workflow(priority=10**30)(handler), "priority must be a whole number from −100 to 100"),
        (lambda: workflow(priority=-101)(handler), "priority must be a whole number from −100 to 100"),
        (lambda: workflow(strict_inputs="no")(handler), "strict_inputs must be True or False, not 'no'"),  # type: ignore[call-overload]
        (lambda: step(at_most_once="yes")(plain), "at_most_once must be True or False, not 'yes'"),  # type: ignore[call-overload]
        (lambda: step(at_most_once=1)(plain), "at_most_once must be True or False, not 1"),  # type: ignore[call-overload]
        (lambda: charge.using(at_most_once=None), "step charge: at_most_once must be"),  # type: ignore[arg-type]
        (lambda: step(kind=["llm"])(plain), "kind must be one of"),  # type: ignore[call-overload]
        (lambda: step(on_cancel=None)(plain), "on_cancel must be one of"),  # type: ignore[call-overload]
        (lambda: step(retry="3")(plain), "starts at 1"),  # type: ignore[call-overload]
        (lambda: step(retry=10**30)(plain), "retry counts tries .* up to"),
        (lambda: Retry(2**31), "retry counts tries .* up to"),
        (lambda: step(name=5)(plain), "the name of a step must be text"),  # type: ignore[call-overload]
        (lambda: workflow(retry=None)(handler), "starts at 1"),  # type: ignore[call-overload]
        (lambda: workflow(version=2)(handler), "version must be text"),  # type: ignore[call-overload]
        (lambda: workflow(compatible=5)(handler), "compatible must be a sequence of names, not 5"),  # type: ignore[call-overload]
        (lambda: workflow(compatible=[1])(handler), "compatible must be text"),  # type: ignore[call-overload]
        (lambda: workflow(worker_tags=5)(handler), "worker_tags must be a sequence of names, not 5"),  # type: ignore[call-overload]
        (lambda: workflow(worker_tags=[["gpu"]])(handler), "worker_tags: .* is no tag"),  # type: ignore[call-overload]
        (lambda: workflow(on_exhausted=True)(handler), "on_exhausted must be one of"),  # type: ignore[call-overload]
        (lambda: workflow(on_divergence=["fail"])(handler), "on_divergence must be one of"),  # type: ignore[call-overload]
        (lambda: Lane(3, key="customer"), "a lane's key must be a function"),  # type: ignore[arg-type]
        (lambda: workflow(max_recoveries=2**70)(handler), "from 0 to"),
        (lambda: workflow(max_recoveries=1.5)(handler), "from 0 to"),  # type: ignore[call-overload]
        (lambda: workflow(max_recoveries="3")(handler), "from 0 to"),  # type: ignore[call-overload]
        (lambda: workflow(lane=0)(handler), "from 1"),
        (lambda: workflow(lane="3")(handler), "from 1"),  # type: ignore[call-overload]
        (lambda: Lane(True), "from 1"),
        (lambda: Retry(on="sometimes"), "on must be one of"),
        (lambda: Retry(on=5), "takes words or exception types"),
        (lambda: Retry(jitter=2), "jitter"),
        (lambda: Retry(factor=0.5), "factor"),
        (lambda: Retry(factor=float("inf")), "factor"),
    ],
)
def test_a_definition_that_breaks_a_rule_is_refused_at_decoration(define: Callable[[], Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        define()


def test_what_is_said_of_an_option_names_the_function_that_has_it() -> None:
    for define, place in [
        (lambda: step(kind="robot")(plain), "step plain: kind"),
        (lambda: step(name="own", at_most_once="yes")(plain), "step own: at_most_once"),
        (lambda: workflow(priority=500)(handler), "workflow handler: priority"),
        (lambda: workflow(name="own", lane=0)(handler), "workflow own: a lane's limit"),
        (lambda: workflow(worker_tags="gpu")(handler), "workflow handler: worker_tags"),
    ]:
        with pytest.raises(DefinitionError, match=f"^{place}"):
            define()  # type: ignore[no-untyped-call]
    with pytest.raises(InvalidDuration, match=r"^step plain: timeout"):
        step(timeout="soon")(plain)
    with pytest.raises(InvalidDuration, match=r"^workflow handler: timeout"):
        workflow(timeout=-1)(handler)


def test_a_duration_that_means_nothing_is_refused_at_decoration() -> None:
    with pytest.raises(InvalidDuration):
        step(timeout="soon")(plain)


def plain(n: int) -> int:
    return n


def method(self: Any, n: int) -> int:
    return n


def three(ctx: Context, a: int, b: int) -> None: ...


async def forgot(n: int) -> int:
    return n


class Order: ...


def forgot_both(order: Order, n: int) -> None: ...


def forgot_list(names: list[str]) -> None: ...


def keyword_only(ctx: Context, *, a: int) -> None: ...


def handler(ctx: Context, source: dict[str, int]) -> list[str]:
    return []


def test_partials_and_callable_objects_can_be_steps() -> None:
    assert step(functools.partial(plain, 1)).name == "plain"
    assert step(name="object")(Callable_()).spec.is_async
    with pytest.raises(StepOutsideWorkflow, match=r"STEP\.fn"):
        step(name="object")(Callable_())(1)


class Clock(Protocol):
    def now(self) -> Any: ...


@pytest.mark.parametrize(
    "annotation", [Context, "Context", "ironflow.Context", Any, "Any", object, "Nowhere", Clock], ids=str
)
def test_a_context_may_be_annotated_as_anything_it_is(annotation: Any) -> None:
    def handler(ctx) -> None: ...  # type: ignore[no-untyped-def]

    assert workflow(handler).name == "handler"
    handler.__annotations__["ctx"] = annotation
    assert workflow(handler).name == "handler"


def test_a_workflow_that_is_called_says_how_it_is_started() -> None:
    made: Any = workflow(handler)
    with pytest.raises(DefinitionError, match=r"was called.*ironflow\.run\(handler, …\)"):
        made({"a": 1})


def test_workflow_options_reach_the_engine() -> None:
    made = workflow(
        name="w",
        version="2",
        compatible=["1"],
        retry=3,
        lane=2,
        timeout="1h",
        worker_tags=["gpu"],
        priority=5,
    )(handler)
    spec = made.spec
    assert (made.name, spec.version, spec.compatible, spec.timeout_ms) == ("w", "2", ("1",), 3_600_000)
    assert (spec.retry.max_attempts, spec.retry.backoff_ms, spec.retry.factor) == (3, 30_000, 4.0)
    assert (spec.worker_tags, spec.priority, spec.is_async, spec.has_input) == (("gpu",), 5, False, True)
    assert spec.lane is not None
    assert spec.lane.limit == 2
    assert workflow(retry=Retry(2, backoff="1s"))(handler).spec.retry.backoff_ms == 1_000
    assert repr(made) == "<Workflow w>"
    assert repr(Lane(2)) == "Lane(2)"


def test_codecs_follow_the_annotations_and_are_built_when_first_used() -> None:
    made = workflow(handler)
    assert made.spec.input.decode(made.spec.input.encode({"a": 1})) == {"a": 1}
    assert made.spec.output.decode(made.spec.output.encode(["x"])) == ["x"]
    assert charge.spec.result.decode(charge.spec.result.encode("x")) == "x"
    assert charge.spec.arguments is charge.spec.arguments


def test_a_workflow_without_input_has_the_codec_of_none() -> None:
    @workflow
    async def nothing(ctx: Context) -> None: ...

    assert not nothing.spec.has_input
    assert nothing.spec.input.decode(nothing.spec.input.encode(None)) is None


def test_one_annotation_that_cannot_be_resolved_leaves_the_others_typed() -> None:
    async def partly(ctx: Context, when: date) -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821, UP037
        return when

    def noted(connection: Any, when: date, note: "Nowhere") -> date:  # type: ignore[name-defined]  # noqa: F821, UP037
        return when

    day = date(2026, 2, 28)
    made = workflow(partly).spec
    assert made.input.decode(made.input.encode(day)) == day
    stored = step(noted).transactional
    assert stored.arguments.decode(stored.arguments.encode((day, "x"), {})) == ((day, "x"), {})
    assert stored.result.decode(stored.result.encode(day)) == day


def test_annotations_that_cannot_be_resolved_count_as_untyped() -> None:
    def odd(n: "Nowhere") -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821, UP037
        return n

    assert step(odd).spec.result.decode(step(odd).spec.result.encode({"a": 1})) == {"a": 1}
