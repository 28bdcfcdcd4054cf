"""Compensations: newest first, each a journaled step, over crashes and failures of their own."""

from __future__ import annotations

from typing import Any

from tests.engine.harness import START, Harness

from ironflow.context import Context, Retry, step, workflow
from ironflow.engine.reconcile import Unknown
from ironflow.errors import PayloadRejected, RunTimeout, StepInterrupted
from ironflow.model import journal as j


@step
async def book(what: str) -> str:
    return what


@step
async def unbook(what: str) -> None: ...


async def _trip(ctx: Context) -> Any:
    for what in ("flight", "hotel"):
        await book(what)
        ctx.compensate(unbook, what)
    return await book("car")


trip = workflow(name="trip")(_trip)


def failing() -> Harness:
    h = Harness(trip).fresh().end("book", "flight").end("book", "hotel")
    return h.fail("book", LookupError("no car"))


def undone(h: Harness) -> list[str]:
    return [str(h.running[key].arguments()[0][0]) for key in h.running]


def test_g32_a_failed_run_is_undone_newest_first_one_at_a_time() -> None:
    h = failing()
    assert h.new() == ["failed book", "run_compensating", "started unbook"]
    assert (h.state, h.row.compensating_for, undone(h)) == ("cancelling", "failed", ["hotel"])
    h.end("unbook")
    assert h.new() == ["completed unbook", "started unbook"]
    assert undone(h) == ["flight"]
    h.end("unbook")
    assert h.new() == ["completed unbook", "run_failed"]
    assert isinstance(h.error, LookupError)


def test_a_compensation_is_journaled_with_the_commit_that_follows_the_effect() -> None:
    h = Harness(trip).fresh().end("book", "flight")
    assert h.new() == ["completed book", "compensation_registered unbook", "started book"]
    assert h.row.compensations == 1


def test_a_run_that_ends_well_is_not_undone() -> None:
    h = Harness(trip).fresh().end("book", "flight").end("book", "hotel").end("book", "car")
    assert h.output == "car"
    assert not [kind for kind in h.steps() if "unbook" in kind]


def test_a_crash_while_a_run_is_undone_goes_on_with_what_is_left() -> None:
    h = failing().end("unbook").recover()
    assert h.new() == ["run_resumed", "interrupted unbook", "started unbook"]
    assert (h.state, undone(h)) == ("cancelling", ["flight"])
    h.end("unbook")
    assert isinstance(h.error, LookupError)
    assert h.steps().count("completed unbook") == 2


def test_a_crash_before_the_first_compensation_started_loses_neither_it_nor_the_error() -> None:
    h = failing()
    h.recover(at=h.commits[-2])
    h.fail("book", LookupError("no car")).recover().end("unbook").end("unbook")
    assert isinstance(h.error, LookupError)


def test_a_run_that_is_being_undone_fails_even_if_its_code_was_mended_meanwhile() -> None:
    async def mended(ctx: Context) -> Any:
        try:
            return await _trip(ctx)
        except LookupError:
            return await book("train")

    h = failing().recover(workflow(name="trip")(mended))
    assert undone(h) == ["hotel"]
    h.end("unbook").end("unbook")
    assert isinstance(h.error, LookupError)


def test_a_run_that_is_being_undone_says_so_where_its_code_no_longer_knows_a_compensation() -> None:
    async def forgot(ctx: Context) -> Any:
        await book("flight")
        await book("hotel")
        return await book("car")

    h = failing().recover(workflow(name="trip")(forgot))
    assert h.state == "failed"
    assert "unbook the code asks for no compensation" in h.result["error"]["message"]


def test_a_compensation_that_fails_is_recorded_and_keeps_no_other_from_running() -> None:
    h = failing().fail("unbook", OSError("closed"))
    assert undone(h) == ["flight"]
    h.recover().end("unbook")
    (key, told), *others = h.result["undo_errors"].items()
    assert (others, told["type"], told["message"]) == ([], "builtins.OSError", "closed")
    assert key.endswith(":unbook")
    assert isinstance(h.error, LookupError)


def test_a_compensation_is_tried_again_by_its_policy_also_after_a_crash_and_after_the_deadline() -> None:
    undo = unbook.using(retry=Retry(3, backoff="10s", jitter=0))

    @workflow
    async def flow(ctx: Context) -> Any:
        await book("x")
        ctx.compensate(undo, "x")
        await book("y")

    h = Harness(flow, deadline_at=START + 1_000).fresh().end("book", "x").later(1_000).settle().end("book", "y")
    h.fail("unbook")
    assert (h.state, h.plan.wake_at) == ("cancelling", h.now + 10_000)
    h.later(9_999).settle()
    assert h.running == {}
    h.later(1).settle().fail("unbook").recover()
    assert h.running == {}
    h.later(20_000).settle().fail("unbook")
    assert isinstance(h.error, RunTimeout)
    assert len(h.result["undo_errors"]) == 1
    assert h.steps().count("retrying unbook") == 2


def test_a_compensation_cut_off_that_nobody_knows_of_is_told_with_the_end_and_holds_no_run() -> None:
    undo = unbook.using()

    @undo.reconcile
    def found(what: str) -> Unknown:
        return Unknown()

    @workflow
    async def flow(ctx: Context) -> Any:
        for what in ("flight", "hotel"):
            await book(what)
            ctx.compensate(undo, what)
        await book("car")

    for error in (None, OSError("no answer")):
        h = Harness(flow).fresh().end("book", "flight").end("book", "hotel").fail("book", LookupError("no car"))
        h.recover().reconciled("unbook", Unknown(), error)
        assert (h.state, undone(h)) == ("cancelling", ["flight"])
        h.end("unbook")
        [told] = h.result["undo_errors"].values()
        assert told["type"] == ("builtins.OSError" if error else "ironflow.errors.StepInterrupted")
        assert isinstance(h.error, LookupError)


def test_a_compensation_cut_off_and_marked_at_most_once_is_recorded_as_such_and_not_repeated() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        ctx.compensate(unbook, "first")
        ctx.compensate(unbook.using(at_most_once=True), "second")
        raise ValueError("no")

    h = Harness(flow).fresh()
    assert undone(h) == ["second"]
    h.recover()
    assert undone(h) == ["first"]
    h.end("unbook")
    assert [told["type"] for told in h.result["undo_errors"].values()] == [
        f"{StepInterrupted.__module__}.StepInterrupted"
    ]


def test_a_cancelled_run_is_undone_and_its_code_goes_no_further() -> None:
    h = Harness(trip).fresh().end("book", "flight").cancel().replay()
    assert h.new() == ["run_resumed", "cancelled book", "started unbook"]
    assert undone(h) == ["flight"]
    h.end("unbook")
    assert (h.new(), h.state) == (["completed unbook", "run_cancelled"], "cancelled")


def test_a_crash_while_a_cancelled_run_is_undone_goes_on_with_what_is_left() -> None:
    h = Harness(trip).fresh().end("book", "flight").end("book", "hotel").cancel().replay()
    h.end("unbook").recover()
    assert undone(h) == ["flight"]
    assert h.end("unbook").state == "cancelled"


def test_a_cancelled_run_in_back_off_or_asleep_is_undone_and_neither_fires_nor_tries_again() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        ctx.compensate(unbook, "it")
        call = book.using(retry=Retry(2, backoff="10s"))("x")
        await ctx.first(call, ctx.sleep("1h"))
        await book("after")

    h = Harness(flow).fresh().fail("book")
    assert h.state == "sleeping"
    h.cancel().later(7_200_000).replay()
    assert h.new() == ["run_resumed", "cancelled book", "started unbook"]
    h.recover()
    assert h.end("unbook").state == "cancelled"


def test_an_at_most_once_step_of_a_cancelled_run_does_not_send_the_code_on() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        ctx.compensate(unbook, "it")
        try:
            await book.using(at_most_once=True)("x")
        except StepInterrupted:
            await book("fallback")

    h = Harness(flow).fresh().cancel().replay()
    assert h.names() == ["unbook"]


def test_a_run_that_was_undone_begins_anew_when_it_is_reopened_and_is_undone_anew() -> None:
    h = failing().fail("unbook").end("unbook")
    assert h.state == "failed"
    h.reopen(restart=True).replay()
    assert (h.names(), h.row.compensations) == (["book"], 0)
    h.end("book", "flight").fail("book")
    assert undone(h) == ["flight"]
    h.end("unbook")
    assert h.state == "failed"
    assert "undo_errors" not in h.result


def test_g32_an_attempt_that_is_followed_by_another_is_not_undone() -> None:
    h = Harness(workflow(name="trip", retry=2)(_trip)).fresh().end("book", "flight").fail("book")
    assert h.state == "retrying"
    h.later(60_000).replay().fail("book")
    assert h.state == "cancelling"
    assert undone(h) == ["flight"]
    assert h.kinds().count(j.COMPENSATION_REGISTERED) == 1


def test_compensations_and_warnings_of_a_restarted_attempt_are_counted_anew() -> None:
    async def warns(ctx: Context) -> Any:
        ctx.compensate(unbook, "it")
        if ctx.attempt == 1:
            ctx.compensate(unbook, "more")
            ctx.warn("first")
        return await book("x")

    h = Harness(workflow(name="w", retry=2, retry_mode="restart")(warns)).fresh().fail("book")
    assert (h.row.warnings, h.row.compensations) == (0, 0)
    h.later(60_000).replay().end("book", "x")
    assert (h.state, h.row.compensations) == ("completed", 1)


def test_a_compensation_whose_arguments_cannot_be_stored_fails_the_run_at_once() -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        ctx.compensate(unbook, object())  # type: ignore[arg-type]
        return await book("x")

    h = Harness(flow).fresh()
    assert h.state == "failed"
    assert isinstance(h.error, PayloadRejected)
    assert h.started == []
