"""Values at the edge of the engine: what cannot be stored is refused once, with its path; notes are journaled once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.engine.harness import Harness
from tests.engine.letters import a, b

from ironflow.context import Context, Retry, step, workflow
from ironflow.errors import InvalidInput, PayloadRejected, PayloadTooLarge
from ironflow.model import journal as j
from ironflow.model.fold import fold


@step(retry=Retry(5, backoff=0))
async def tried(*what: Any) -> Any: ...


@workflow(retry=5)
async def one(ctx: Context) -> Any:
    return await tried()


BAD = [
    ("x" * 3_000_000, PayloadTooLarge, "main/1:tried result"),
    ({"rates": [1.0, float("nan")]}, PayloadRejected, "main/1:tried result.rates[1]"),
    ({"lock": threading.Lock()}, PayloadRejected, "main/1:tried result.lock"),
]


@pytest.mark.parametrize(("value", "error", "path"), BAD)
def test_a_result_that_cannot_be_stored_fails_the_run_once_with_its_path(
    value: Any, error: type[Exception], path: str
) -> None:
    h = Harness(one).fresh().end("tried", value)
    assert h.state == "failed"
    assert isinstance(h.error, error)
    assert path in str(h.error)
    assert len(h.started) == 1


OUTPUTS = [
    ("x" * 3_000_000, PayloadTooLarge, "flow output takes 3,000,002 bytes, the limit is 2,097,152"),
    ([1, float("inf")], PayloadRejected, "flow output[1]"),
    ({"lock": threading.Lock()}, PayloadRejected, "flow output.lock"),
]


@pytest.mark.parametrize(("value", "error", "path"), OUTPUTS)
@pytest.mark.parametrize("early", [False, True])
def test_an_output_that_cannot_be_stored_fails_the_run_once_with_its_path(
    value: Any, error: type[Exception], path: str, early: bool
) -> None:
    @workflow(retry=5)
    async def flow(ctx: Context) -> Any:
        if early:
            ctx.set_output(value)
        await a()
        return value

    h = Harness(flow).fresh()
    if not early:
        h.recover().end("a")
    assert (h.state, h.row.attempt) == ("failed", 1)
    assert isinstance(h.error, error)
    # Of a preliminary one it names the call: the code has gone on, and its author would look at the `return`.
    assert (path.replace("flow output", "ctx.set_output of flow") if early else path) in str(h.error)


def test_a_note_that_cannot_be_stored_fails_the_run_and_stops_what_it_executes() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        call = asyncio.ensure_future(a())
        await b()
        ctx.set_output(object())
        ctx.set_output(object())
        await asyncio.gather(call, b("never begun"))

    h = Harness(flow).fresh().end("b")
    assert (h.new(), h.names(), len(h.stopped)) == (["completed b"], ["a"], 1)
    h.end("a")
    assert h.new() == ["cancelled a", "run_failed"]
    assert isinstance(h.error, PayloadRejected)


def test_a_run_whose_end_is_decided_is_told_nothing_more() -> None:
    went_on: list[str] = []

    @workflow
    async def flow(ctx: Context) -> Any:
        call = asyncio.ensure_future(b())
        await a()
        ctx.set_output(object())
        await call
        went_on.append("after b")

    h = Harness(flow).fresh().end("a", settle=False).end("b")
    assert (h.state, went_on) == ("failed", [])


@pytest.mark.parametrize("arguments", [(object(),), ([float("nan")],), (threading.Lock(),)])
def test_arguments_that_cannot_be_stored_fail_at_the_call_and_replay_alike(arguments: tuple[Any, ...]) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        try:
            await a(*arguments)
        except PayloadRejected as error:
            return await b(error.path)

    h = Harness(flow).fresh()
    assert h.new() == ["run_created", "run_started", "failed a", "started b"]
    h.recover()
    assert h.new() == ["run_resumed", "interrupted b", "started b"]
    assert "main/1:a args." in str(fold(h.journal).steps["main/1:a"].error), "it names the call"
    assert h.end("b", "told").output == "told"
    assert fold(h.journal).steps["main/1:a"].state == "failed"
    assert fold(h.journal).steps["main/1:a"].tries == []


def test_a_call_that_is_refused_after_a_step_is_told_in_the_same_commit() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        await b()
        try:
            await a(object())
        except PayloadRejected:
            return "caught"

    h = Harness(flow).fresh().end("b")
    assert h.new() == ["completed b", "failed a", "run_succeeded"]


def test_a_call_that_does_not_fit_the_signature_fails_at_the_call() -> None:
    @step
    async def two(x: int, y: int) -> int: ...

    @workflow
    async def flow(ctx: Context) -> Any:
        try:
            await two(1)  # type: ignore[call-arg]
        except InvalidInput:
            return "caught"

    assert Harness(flow).fresh().output == "caught"


def test_a_thousand_refused_calls_in_a_row_are_no_deeper_than_one() -> None:
    @workflow
    async def flow(ctx: Context) -> int:
        caught = 0
        for _ in range(3_000):
            try:
                await a(object())
            except PayloadRejected:
                caught += 1
        return caught

    h = Harness(flow)
    h.check = lambda: None  # type: ignore[method-assign]
    assert h.fresh().output == 3_000


def test_a_refused_call_that_fails_its_group_cancels_the_calls_that_were_made_with_it() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.parallel([a(object()), b(1), b(2)])
        except PayloadRejected:
            return await a("after")

    h = Harness(flow).fresh()
    assert h.new() == ["run_created", "run_started", "failed a", "started a"]
    assert h.names() == ["a"]


def test_a_refused_call_that_was_cancelled_before_it_was_told_leaves_no_trace() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        calls = [asyncio.ensure_future(call) for call in (a(object()), a(object()))]
        done, pending = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        for call in pending:
            call.cancel()
        return [len(done), len(pending), type(done.pop().exception()).__name__]

    h = Harness(flow).fresh()
    assert h.output == [1, 1, "PayloadRejected"]
    assert h.steps() == ["failed a"]


def test_the_workflow_sees_a_result_as_every_replay_will() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        mine = await a()
        mine["added"] = True
        return [mine, await b()]

    value = {"k": [1]}
    h = Harness(flow).fresh().end("a", value)
    assert value == {"k": [1]}
    h.recover()
    assert h.end("b").output == [{"k": [1], "added": True}, None]


def test_a_value_that_comes_with_its_text_is_not_read_again() -> None:
    h = Harness(one).fresh()
    marker = object()
    step_run = h.running.pop("main/1:tried")
    h.execution.ended(step_run, h.now, '"text"', None, marker)
    assert h.execution.instance.outcome.value is marker


# ---- notes


async def _noting(ctx: Context) -> Any:
    ctx.set_status("begun")
    ctx.skip("check", "trusted customer")
    await a()
    ctx.warn("late")
    ctx.set_output({"so far": 1})
    await b()


noting = workflow(name="noting")(_noting)


def test_r18_notes_are_journaled_once_however_often_the_run_resumes() -> None:
    h = Harness(noting).fresh().recover().end("a").recover().recover().end("b")
    notes = [kind for kind in h.kinds() if kind in (j.STATUS_SET, j.STEP_SKIPPED, j.WARNING, j.OUTPUT_SET)]
    assert notes == [j.STATUS_SET, j.STEP_SKIPPED, j.WARNING, j.OUTPUT_SET]
    assert (h.row.status_text, h.row.warnings) == ("begun", 1)


def test_notes_join_the_commit_of_what_caused_them() -> None:
    h = Harness(noting).fresh().end("a")
    assert h.new() == ["completed a", "warning main/n2", "output_set main/n3", "started b"]


def test_a_run_that_warned_ends_as_warning() -> None:
    h = Harness(noting).fresh().end("a").recover().end("b")
    assert h.state == "warning"


def test_an_output_that_was_set_stands_in_for_a_returned_none_and_gives_way_to_a_value() -> None:
    async def returning(ctx: Context) -> Any:
        ctx.set_output("early")
        return "late"

    assert Harness(noting).fresh().end("a").recover().end("b").output == {"so far": 1}
    assert Harness(workflow(returning)).fresh().output == "late"


def test_a_skipped_step_is_shown_with_its_state() -> None:
    h = Harness(noting).fresh()
    assert fold(h.journal).steps["main/1:check"].state == "skipped"


def test_a_worker_s_name_is_stored_whatever_is_in_it() -> None:
    h = Harness(noting).fresh()
    h.execution.open(9, h.now, 'a "quoted" \\ name')
    assert h.execution.facts().events[0].data()["worker"] == 'a "quoted" \\ name'
