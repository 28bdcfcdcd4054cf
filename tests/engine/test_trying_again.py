"""A step's own tries: counted from the journal, spaced by its policy, over a crash as well."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.harness import START, Harness

from ironflow.context import Context, Retry, step, workflow
from ironflow.errors import StepFailed, StepTimeout
from ironflow.model import journal as j
from ironflow.model.fold import fold
from ironflow.model.retry import NonRetryableError, RetryAfterError, RetryPolicy


def flow_of(retry: Retry | int | None = None, **options: Any) -> Any:
    if retry is not None:
        options["retry"] = retry

    @step(name="try", **options)
    async def body() -> Any: ...

    @workflow(name="flow")
    async def flow(ctx: Context) -> Any:
        return await body()

    return flow


def test_p22_by_default_a_step_has_one_try() -> None:
    h = Harness(flow_of()).fresh().fail("try")
    assert h.steps() == ["started try", "failed try"]
    assert (h.state, str(h.error)) == ("failed", "boom")
    assert RetryPolicy().max_attempts == 1


def test_p22_three_attempts_are_three_tries_with_two_records_between_them() -> None:
    h = Harness(flow_of(Retry(3, backoff="1s", factor=3, jitter=0))).fresh()
    waited = []
    while h.state == "running":
        h.later(10).fail("try")
        if h.state == "running":
            told = h.last(j.STEP_RETRYING)
            waited.append((told["attempt"], told["of"], told["due"] - h.now, told["error"]["message"]))
            assert h.plan.wake_at == told["due"]
            assert h.later(told["due"] - h.now - 1).settle().running == {}
            h.later(1).settle()
    assert waited == [(1, 3, 1_000, "boom"), (2, 3, 3_000, "boom")]
    assert h.steps() == ["started try", "retrying try"] * 2 + ["started try", "failed try"]
    assert [one.number for one in fold(h.journal).steps["main/1:try"].tries] == [1, 2, 3]


def test_p23_only_errors_the_policy_covers_are_tried_again() -> None:
    cases: list[tuple[Any, BaseException, bool]] = [
        ("any", ValueError("x"), True),
        ("timeout", ValueError("x"), False),
        ("timeout", StepTimeout("late"), True),
        ("llm", ValueError("x"), True),
        ("connector", ValueError("x"), False),
        (KeyError, LookupError("x"), False),
        ((LookupError, "connector"), KeyError("x"), True),
    ]
    for on, error, again in cases:
        h = Harness(flow_of(Retry(2, on=on), kind="llm")).fresh().fail("try", error)
        assert (h.state == "running") is again, (on, error)


def test_p24_a_crash_in_mid_retry_keeps_count_and_due_time() -> None:
    h = Harness(flow_of(Retry(3, backoff="4s", jitter=0))).fresh().fail("try")
    due = h.last(j.STEP_RETRYING)["due"]
    h.later(1_000).recover()
    assert (h.running, h.plan.wake_at) == ({}, due)
    h.later(due - h.now).settle().recover().fail("try")
    assert h.last(j.STEP_RETRYING)["attempt"] == 2
    h.recover().later(60_000).settle().fail("try")
    assert h.state == "failed"
    assert [number for _, number, _ in h.started] == [1, 2, 2, 3]


def test_chance_spreads_the_delays_and_the_due_time_is_what_is_journaled() -> None:
    dues = []
    for chance in (0.0, 0.5, 0.999999):
        h = Harness(flow_of(Retry(2, backoff="4s", jitter=0.2)), chance=chance).fresh().fail("try")
        dues.append(h.last(j.STEP_RETRYING)["due"] - START)
        again = h.recover()
        assert again.plan.wake_at == START + dues[-1]
    assert dues == [3_200, 4_000, 4_800]


def test_g33_an_error_that_names_a_delay_is_obeyed_up_to_the_policy_s_maximum() -> None:
    for after, delay in (("2s", 2_000), ("1h", 60_000)):
        h = Harness(flow_of(Retry(2, max_backoff="1m"))).fresh().fail("try", RetryAfterError("busy", after=after))
        assert h.last(j.STEP_RETRYING)["due"] == START + delay


def test_g33_a_final_error_gets_no_second_try() -> None:
    h = Harness(flow_of(5)).fresh().fail("try", NonRetryableError("no such customer"))
    assert h.state == "failed"
    assert isinstance(h.error, NonRetryableError)


def test_a_long_back_off_gives_the_slot_back_and_a_short_one_keeps_it() -> None:
    short = Harness(flow_of(Retry(2, backoff="5s", jitter=0))).fresh().fail("try")
    assert (short.state, short.plan.leave) == ("running", None)
    long = Harness(flow_of(Retry(2, backoff="6s", jitter=0))).fresh().fail("try")
    assert (long.state, long.waits) == ("sleeping", {"main/1:try": START + 6_000})
    assert long.plan.leave is not None
    assert [row.kind for row in long.plan.leave.waits] == ["retry_backoff"]
    long.later(6_000).replay()
    assert (long.new(), long.started[-1][1]) == (["run_resumed", "started try"], 2)


def test_a_parked_run_tries_again_when_its_back_off_is_over() -> None:
    h = Harness(flow_of(Retry(2, backoff="6s", jitter=0))).fresh().fail("try").later(6_000).wake()
    assert h.new() == ["run_resumed", "started try"]
    assert h.end("try", "ok").output == "ok"


def test_a_long_back_off_keeps_the_slot_while_something_else_executes() -> None:
    @step
    async def other() -> None: ...

    @step(retry=Retry(2, backoff="10s", jitter=0))
    async def flaky() -> None: ...

    @workflow
    async def flow(ctx: Context) -> None:
        await asyncio.gather(other(), flaky())

    h = Harness(flow).fresh().fail("flaky")
    assert (h.state, h.names()) == ("running", ["other"])
    h.later(8_000).end("other")  # what is left of the back-off is short by now
    assert h.state == "running"
    h.later(2_000).settle()
    assert h.names() == ["flaky"]


def test_a_body_that_was_cancelled_by_its_own_code_does_not_cancel_the_workflow() -> None:
    h = Harness(flow_of(1)).fresh().fail("try", asyncio.CancelledError())
    assert h.state == "failed"
    assert isinstance(h.error, StepFailed)


def test_each_try_gets_arguments_of_its_own() -> None:
    seen: list[list[int]] = []

    @step(retry=Retry(2, backoff=0))
    async def spoil(items: list[int]) -> None:
        seen.append(list(items))
        items.append(99)
        raise ValueError("once more")

    @workflow
    async def flow(ctx: Context) -> list[int]:
        mine = [1]
        try:
            await spoil(mine)
        except ValueError:
            pass
        return mine

    h = Harness(flow).fresh().to_end()
    assert seen == [[1], [1]]
    assert h.output == [1]


def test_what_the_workflow_changes_after_the_call_does_not_reach_the_body() -> None:
    seen: list[list[int]] = []

    @step
    async def look(items: list[int]) -> None:
        seen.append(items)

    @step
    async def other() -> None: ...

    @workflow
    async def flow(ctx: Context) -> None:
        mine = [1]
        call = asyncio.ensure_future(look(mine))
        await other()
        mine.append(2)
        await call

    Harness(flow).fresh().end("other").to_end()
    assert seen == [[1]]


@pytest.mark.parametrize("crash", [False, True])
def test_an_error_is_the_same_live_and_replayed(crash: bool) -> None:
    @step
    async def other() -> None: ...

    @workflow
    async def flow(ctx: Context) -> list[Any]:
        try:
            await other()
        except OSError as error:
            await other()
            return [type(error).__name__, error.errno, str(error), error.__notes__]
        return []

    problem = OSError(5, "broken")
    problem.add_note("disk 7")
    h = Harness(flow).fresh().fail("other", problem)
    if crash:
        h.recover()
    assert h.end("other").output == ["OSError", 5, "[Errno 5] broken", ["disk 7"]]
