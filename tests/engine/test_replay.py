"""Replay: recorded results are returned, time and order are those of the journal, what was cut off is seen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.harness import START, Harness

from ironflow.context import Context, Done, NotDone, Retry, Unknown, step, workflow
from ironflow.engine.history import History
from ironflow.errors import StepInterrupted
from ironflow.model import journal as j
from ironflow.model.journal import Event

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@step
def count(label: str) -> int:
    """Different at every call: a recomputed result would be seen."""
    calls.append(label)
    return len(calls)


@step
async def a() -> str:
    return "a"


@step
async def b() -> str:
    return "b"


@step
async def c() -> str:
    return "c"


@step(at_most_once=True)
async def once() -> str:
    return "once"


@step
async def charge(amount: int) -> str:
    return f"receipt {amount}"


@charge.reconcile
def _ask(amount: int) -> Done[str] | NotDone | Unknown:
    raise AssertionError("the harness answers for it")


@workflow
async def line(ctx: Context) -> list[int]:
    return [await count(label) for label in "xyz"]


def test_p4_recorded_results_are_returned_and_never_computed_again() -> None:
    h = Harness(line).fresh().run_body("main/1:count")
    h.run_body("main/2:count").recover()
    assert h.names() == ["count"]
    assert list(h.running) == ["main/3:count"]
    assert h.to_end().output == [1, 2, 3]
    assert calls == ["x", "y", "z"]


def test_a_finished_run_driven_again_asks_for_nothing() -> None:
    h = Harness(line).fresh().to_end()
    before = len(calls)
    again = Harness(line)
    again.journal = h.journal[:-1]
    again.recover()
    assert (again.started, len(calls), again.output) == ([], before, [1, 2, 3])


def test_p1_the_end_of_a_step_and_the_start_of_the_next_are_one_commit() -> None:
    h = Harness(line).fresh()
    assert h.new() == ["run_created", "run_started", "started count"]
    h.run_body("main/1:count")
    assert h.new() == ["completed count", "started count"]
    h.to_end()
    assert h.new() == ["completed count", "run_succeeded"]
    assert [event.seq for event in h.journal] == list(range(1, len(h.journal) + 1))


def test_p2_a_body_starts_only_with_a_plan_that_journals_its_start() -> None:
    h = Harness(line).fresh()
    while h.running:
        started = [step.id for step in h.plan.start]
        assert [e.step_id for e in h.plan.events if e.kind == j.STEP_STARTED] == started
        h.run_body(next(iter(h.running)))


def test_p3_an_interrupted_step_runs_again_at_the_same_id_with_the_same_key_and_earlier_ones_do_not() -> None:
    h = Harness(line).fresh().run_body("main/1:count").recover()
    assert h.new() == ["run_resumed", "interrupted count", "started count"]
    assert h.started[1] == h.started[2]
    assert h.to_end().output == [1, 2, 3]


def test_a_step_started_after_a_failed_try_has_another_key() -> None:
    @step(retry=Retry(2, backoff=0))
    async def flaky() -> None: ...

    @workflow
    async def flow(ctx: Context) -> None:
        await flaky()

    h = Harness(flow).fresh().fail("flaky")
    h.settle()
    (_, one, first), (_, two, second) = h.started
    assert (one, two) == (1, 2)
    assert first != second
    h.recover()
    assert h.started[-1][2] == second


def test_all_bodies_that_ended_since_the_last_commit_join_the_next() -> None:
    @workflow
    async def fan(ctx: Context) -> list[int]:
        return await asyncio.gather(*(count(str(n)) for n in range(50)))

    h = Harness(fan).fresh()
    for step_id in list(h.running):
        h.run_body(step_id, settle=False)
    h.settle()
    assert len(h.commits) == 2
    assert h.output == list(range(1, 51))


@workflow
async def race(ctx: Context) -> list[str]:
    """What it does next depends on which of two ends first."""
    first, second = asyncio.ensure_future(a()), asyncio.ensure_future(b())
    await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    order = ["a"] if first.done() else ["b"]
    if not (first.done() and second.done()):
        order.append(await c())
    return order


def test_facts_that_ended_together_are_told_one_at_a_time_as_in_replay() -> None:
    h = Harness(race).fresh()
    h.end("b", "b", settle=False).end("a", "a")
    assert h.names() == ["c"]
    h.recover()
    assert h.names() == ["c"]
    assert h.end("c", "c").output == ["b", "c"]


def test_the_code_sees_the_time_of_its_facts_live_and_replayed() -> None:
    @workflow
    async def clock(ctx: Context) -> list[float]:
        seen = [ctx.now().timestamp()]
        for _ in range(3):
            await a()
            seen.append(asyncio.get_running_loop().time())
        return seen

    h = Harness(clock).fresh().later(1_000).end("a", "a").later(1_000).end("a", "a").later(60_000).recover()
    assert h.later(1_000).end("a", "a").output == [1000.0, 1001.0, 1002.0, 1063.0]


def test_time_never_runs_backwards_within_a_run() -> None:
    @workflow
    async def clock(ctx: Context) -> float:
        await a()
        await a()
        return asyncio.get_running_loop().time() * 1000

    h = Harness(clock).fresh().later(5_000).end("a", "a").later(-3_000).end("a", "a")
    assert h.output == START + 5_000
    assert [e.data()["t"] - START for e in h.journal if e.kind == j.STEP_COMPLETED] == [5_000, 5_000]


def test_the_clock_of_a_run_begins_with_its_first_segment_and_not_in_the_queue() -> None:
    @workflow
    async def limited(ctx: Context) -> str:
        async with asyncio.timeout(30):
            return await a()

    h = Harness(limited).queued().later(3_600_000).replay()
    assert h.names() == ["a"]
    h.later(1_000).recover()
    assert h.end("a", "a").output == "a"


# ---- what was cut off


def test_an_at_most_once_step_that_was_cut_off_raises_where_it_is_awaited() -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        try:
            return await once()
        except StepInterrupted:
            return "asked a person: " + await a()

    h = Harness(flow).fresh().recover()
    assert h.new() == ["run_resumed", "interrupted once", "failed once", "started a"]
    h.recover()
    assert h.end("a", "yes").output == "asked a person: yes"
    assert [key for key, _, _ in h.started].count("main/1:once") == 1


def test_an_at_most_once_step_is_not_executed_again_by_an_automatic_attempt() -> None:
    @workflow(retry=3)
    async def flow(ctx: Context) -> str:
        return await once()

    h = Harness(flow).fresh().recover()
    assert h.state == "failed"
    assert isinstance(h.error, StepInterrupted)
    h.reopen().replay()
    assert h.names() == ["once"]  # a person has decided


def test_an_attempt_after_an_at_most_once_step_was_cut_off_does_not_repeat_it() -> None:
    @workflow(retry=2)
    async def flow(ctx: Context) -> str:
        try:
            return await once()
        except StepInterrupted as error:
            raise RuntimeError("no receipt") from error

    h = Harness(flow).fresh().recover()
    assert (h.state, h.last(j.RUN_RETRYING)["failed_steps"]) == ("retrying", [])
    h.later(60_000).replay()
    assert (h.state, len(h.started)) == ("failed", 1)


def test_what_else_was_open_when_an_at_most_once_step_fails_is_cancelled_with_its_group() -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.parallel([once(), a()])
        except StepInterrupted:
            return await c()
        return "no"

    h = Harness(flow).fresh().recover()
    assert h.new() == ["run_resumed", "interrupted once", "interrupted a", "failed once", "cancelled a", "started c"]
    h.recover()
    assert h.names() == ["c"]


@workflow
async def pay(ctx: Context) -> str:
    return await charge(5)


def test_reconcile_that_finds_the_effect_completes_the_step_without_its_body() -> None:
    h = Harness(pay).fresh().recover()
    assert h.new() == ["run_resumed", "interrupted charge"]
    h.reconciled("charge", Done("receipt 5"))
    assert h.new() == ["completed charge", "run_succeeded"]
    assert h.output == "receipt 5"


def test_reconcile_that_finds_nothing_done_runs_the_body_again_under_the_same_key() -> None:
    h = Harness(pay).fresh().recover().reconciled("charge", NotDone())
    assert h.new() == ["started charge"]
    assert h.started[0] == h.started[-1]
    assert h.end("charge", "receipt 5").output == "receipt 5"


def test_reconcile_that_does_not_know_pauses_the_run_and_asks_again_when_it_is_resumed() -> None:
    h = Harness(pay).fresh().recover().reconciled("charge", Unknown())
    assert (h.state, h.row.reason) == ("paused", "STEP_OUTCOME_UNKNOWN")
    assert h.last(j.RUN_PAUSED)["step_id"] == "main/1:charge"
    h.resume().replay()
    assert h.new() == ["run_resumed"]
    assert h.running["main/1:charge"].reconciling
    assert h.reconciled("charge", Done("found")).output == "found"


def test_an_error_in_reconcile_says_nothing_of_the_effect_and_pauses_with_it() -> None:
    h = Harness(pay).fresh().recover().reconciled("charge", error=OSError("no answer"))
    assert h.state == "paused"
    assert h.last(j.RUN_PAUSED)["error"]["message"] == "no answer"
    assert h.steps() == ["started charge", "interrupted charge"]


def test_a_crash_while_reconcile_is_asked_asks_again_and_never_runs_the_body_unasked() -> None:
    h = Harness(pay).fresh().recover().recover()
    assert h.running["main/1:charge"].reconciling
    assert h.steps() == ["started charge", "interrupted charge"]


def test_reconcile_may_give_a_value_that_cannot_be_stored_which_fails_the_step() -> None:
    h = Harness(pay).fresh().recover().reconciled("charge", Done(7))
    assert h.state == "failed"
    assert "result" in str(h.error)


def test_reconcile_goes_before_at_most_once() -> None:
    @step(at_most_once=True)
    async def send() -> str: ...

    @send.reconcile
    def _() -> NotDone: ...

    @workflow
    async def flow(ctx: Context) -> str:
        return await send()

    h = Harness(flow).fresh().recover()
    assert h.running["main/1:send"].reconciling


def test_a_run_that_waits_for_a_person_lets_its_other_bodies_end_first_and_keeps_them() -> None:
    @workflow
    async def flow(ctx: Context) -> list[str]:
        return await asyncio.gather(charge(1), a())

    h = Harness(flow).fresh().recover().reconciled("charge", Unknown())
    assert (h.state, h.names(), h.stopped) == ("running", ["a"], [])
    h.end("a", "a")
    assert h.state == "paused"
    h.resume().replay().reconciled("charge", Done("r"))
    assert h.output == ["r", "a"]


def test_a_run_that_waits_for_a_person_fires_no_timer_and_begins_no_step() -> None:
    @workflow
    async def flow(ctx: Context) -> list[Any]:
        async def nap() -> str:
            await asyncio.sleep(5)
            return await b()

        return await asyncio.gather(charge(1), a(), nap())

    h = Harness(flow).fresh().recover().reconciled("charge", Unknown()).later(6_000).settle()
    assert (h.new(), h.names()) == ([], ["a"])
    assert h.end("a", "a").state == "paused"
    h.resume().replay()
    assert h.names() == ["charge", "b"]


def test_a_cancelled_reconcile_ends_the_step_as_cancelled() -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        call = asyncio.ensure_future(charge(1))
        await b()
        call.cancel()
        return await c()

    h = Harness(flow).fresh().recover().end("b", "b").end("c", "c")
    assert h.stopped == ["main/1:charge"] or "charge" in h.stopped[0]
    assert h.state == "running"
    assert h.reconciled("charge", NotDone()).output == "c"


def test_a_body_that_this_process_still_runs_is_adopted_and_not_started_again() -> None:
    h = Harness(line).fresh().pause().resume().replay(adopted=(("main/1:count", 1),))
    assert h.new() == ["run_resumed"]
    assert h.run_body("main/1:count").to_end().output == [1, 2, 3]
    assert [key for key in h.steps() if key == "started count"] == ["started count"] * 3
    assert calls == ["x", "y", "z"]


def test_what_the_reference_calls_a_fact_is_what_a_history_gives_to_the_workflow() -> None:
    payload = '{"t":1,"due":1,"patched":"p","error":{}}'
    assert {kind for kind in j.KINDS if History.of([Event(1, kind, "main/1:a", payload)]).facts} == j.FACT_KINDS


def test_an_adopted_body_that_fails_is_tried_again() -> None:
    @step(retry=Retry(2, backoff=1))
    async def flaky() -> str: ...

    @workflow
    async def flow(ctx: Context) -> str:
        return await flaky()

    h = Harness(flow).fresh().pause().resume().replay(adopted=(("main/1:flaky", 1),)).fail("flaky")
    assert h.new() == ["retrying flaky"]
    assert h.later(1_000).settle().end("flaky", "ok").output == "ok"


def test_another_try_of_the_same_step_is_not_taken_for_the_adopted_one() -> None:
    h = Harness(line).fresh().pause().resume().replay(adopted=(("main/1:count", 2),))
    assert h.new() == ["run_resumed", "interrupted count", "started count"]
