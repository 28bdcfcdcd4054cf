"""Calls that do not fit, told where they are written: compensations, workflows, options."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.codec.arguments import Arguments
from ironflow.context import Context, Retry, step, workflow
from ironflow.errors import DefinitionError, InvalidInput


@step
async def refund(pid: str, *, cents: int = 0) -> None: ...


# ---- compensations

WRONG: list[Callable[[Any], None]] = [
    lambda ctx: ctx.compensate(refund, 3, 4),
    lambda ctx: ctx.compensate(refund, pid="x", euros=3),
    lambda ctx: ctx.compensate(refund.fn),
]


@pytest.mark.parametrize("register", WRONG)
def test_arguments_that_a_compensation_cannot_take_are_refused_in_the_line_that_gives_them(
    register: Callable[[Any], None],
) -> None:
    async def flow(ctx: Context) -> None:
        register(ctx)
        await work()

    with Driver(flow) as d:
        assert isinstance(d.error, InvalidInput)
        shown = "refund(pid: str, *, cents: int = 0) -> None cannot be called like this"
        assert str(d.error).startswith(shown)
        frames = traceback.extract_tb(d.error.__traceback__)
        assert (frames[-3].filename, frames[-3].name) == (__file__, "<lambda>")
        assert (d.notes, d.open) == ([], [])


def test_a_workflow_may_catch_that_and_its_other_notes_keep_their_ids() -> None:
    async def flow(ctx: Context) -> None:
        with pytest.raises(InvalidInput):
            ctx.compensate(refund)  # type: ignore[call-arg]
        ctx.compensate(refund, "p", cents=5)
        ctx.compensate(str)  # type: ignore[call-overload,unused-ignore]  # its signature is not known to Python
        await work()

    with Driver(flow) as d:
        assert [note.id for note in d.notes] == ["main/n1:refund", "main/n2:str"]


def test_a_signature_is_shown_as_it_was_written() -> None:
    arguments = Arguments(refund.fn)
    with pytest.raises(InvalidInput, match=r"^refund\(pid: str, \*, cents: int = 0\) -> None cannot be called"):
        arguments.encode((), {})
    with pytest.raises(InvalidInput, match=r"do not fit refund\(pid: str, \*, cents: int = 0\) -> None"):
        arguments.decode('["a", 1]')

    async def three(ctx: Context, order: int, note: str) -> None: ...

    with pytest.raises(DefinitionError, match=r"defined with \(ctx: Context, order: int, note: str\)"):
        workflow(three)  # type: ignore[arg-type, type-var]


# ---- workflows


@workflow
async def pay(ctx: Context, cents: int) -> int:
    return cents


@workflow
async def bare(ctx: Context) -> None: ...


@workflow
def sync_pay(ctx: Context, cents: int) -> int:
    return cents


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(DefinitionError) as caught:
        call()
    return str(caught.value)


CALLS: list[tuple[Any, str, str]] = [
    (pay, "`await pay.fn(ctx, …)` runs it as a part of this one.", "`ctx.wait(pay.fn(ctx, …))` runs it"),
    (bare, "`await bare.fn(ctx)` runs it as a part of this one.", "`ctx.wait(bare.fn(ctx))` runs it"),
    (sync_pay, "Make sync_pay an `async def`; then `await sync_pay.fn(ctx, …)`", "`sync_pay.fn(ctx, …)` runs it"),
]


@pytest.mark.parametrize(("called", "in_async", "in_sync"), CALLS, ids=["async", "no input", "sync"])
def test_a_workflow_that_is_called_in_another_says_how_its_code_runs_there(
    called: Any, in_async: str, in_sync: str
) -> None:
    async def outer(ctx: Context) -> str:
        return message(lambda: called(ctx, 1))

    def sync_outer(ctx: Context) -> str:
        return message(lambda: called(ctx, 1))

    for flow, hint in ((outer, in_async), (sync_outer, in_sync)):
        with Driver(flow) as d:
            assert f"{called.name} was called inside a workflow; there are no child workflows yet" in d.value
            assert hint in d.value
            assert "ironflow.run" not in d.value


def test_what_that_says_works() -> None:
    async def outer(ctx: Context) -> int:
        return await pay.fn(ctx, 5) + sync_pay.fn(ctx, 1)

    def sync_outer(ctx: Context) -> int:
        return ctx.wait(pay.fn(ctx, 5)) + sync_pay.fn(ctx, 1)

    for flow in (outer, sync_outer):
        with Driver(flow) as d:
            assert d.value == 6


def test_a_workflow_that_is_called_elsewhere_says_how_it_is_started() -> None:
    assert "Write ironflow.run(pay, …) or engine.start(pay, …)" in message(lambda: pay(1))  # type: ignore[operator]


# ---- options


@pytest.mark.parametrize(
    ("decorate", "told"),
    [
        (lambda: step(timeout=0), "step refund: timeout must be longer than zero, not 0"),
        (lambda: step(timeout="0s"), "step refund: timeout must be longer than zero, not '0s'"),
        (lambda: step(heartbeat_timeout=0.0), "step refund: heartbeat_timeout must be longer than zero"),
        (lambda: workflow(timeout=0)(pay.fn), "workflow pay: timeout must be longer than zero"),
        (lambda: Retry(factor="2"), "factor must be a number from 1, not '2'"),  # type: ignore[arg-type]
        (lambda: Retry(factor=True), "factor must be a number from 1, not True"),
        (lambda: Retry(factor=10**400), "factor must be a number from 1, not 1000"),
        (lambda: Retry(jitter=None), "jitter must be a number from 0 to 1, not None"),  # type: ignore[arg-type]
        (lambda: Retry(jitter=2), "jitter must be a number from 0 to 1, not 2"),
    ],
)
def test_an_option_that_means_nothing_is_refused_by_its_name(decorate: Callable[[], Any], told: str) -> None:
    def decorated() -> None:
        made = decorate()
        if callable(made):
            made(refund.fn)

    assert message(decorated).startswith(told)


def test_a_millisecond_is_time_enough() -> None:
    assert step(timeout="1ms")(refund.fn).spec.timeout_ms == 1
    assert Retry(factor=1, jitter=0).policy.factor == 1.0
