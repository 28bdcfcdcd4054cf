"""Code that no longer fits the journal is found out before anything of its new path is journaled or executed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.engine.harness import Harness
from tests.engine.letters import a, b, c

from ironflow.context import Context, step, workflow
from ironflow.errors import HandlerVersionMismatch, PayloadRejected, ReplayDivergence
from ironflow.model import journal as j


@step(kind="llm", name="b")
async def b_as_llm(*what: Any) -> Any: ...


def flow(fn: Any, **options: Any) -> Any:
    return workflow(name="flow", **options)(fn)


async def _two(ctx: Context) -> Any:
    await a()
    await b()
    return await c()


two = flow(_two)


def half() -> Harness:
    """a is finished, b executes."""
    return Harness(two).fresh().end("a")


async def renamed(ctx: Context) -> Any:
    await a()
    await c()


async def retyped(ctx: Context) -> Any:
    await a()
    await b_as_llm()


async def removed(ctx: Context) -> Any:
    await a()


async def added_before(ctx: Context) -> Any:
    await c()
    await a()
    await b()


async def never_reached(ctx: Context) -> Any:
    await ctx.sleep("1h")
    await a()
    await b()


async def skipped(ctx: Context) -> Any:
    await a()
    ctx.skip("b", "not needed any more")
    await c()


CASES = [
    (renamed, "main/2", "main/2:c", "main/2:b"),
    (retyped, "main/2:b", "kind llm", "kind tool"),
    (removed, "main/2:b", "nothing any more (it has returned)", "a step that has begun"),
    (added_before, "main/1", "main/1:c", "main/1:a"),
    (never_reached, "main/1:a", "a sleep (main/t1) instead", "step_completed at seq 4"),
    (skipped, "main/2:b", "a skipped step", "an executed step"),
]


@pytest.mark.parametrize(("code", "place", "expected", "recorded"), CASES, ids=[case[0].__name__ for case in CASES])
def test_r20_changed_code_pauses_the_run_with_place_expected_and_recorded(
    code: Any, place: str, expected: str, recorded: str
) -> None:
    h = half()
    h.recover(flow(code))
    assert h.new() == ["run_paused"]
    assert (h.state, h.row.reason) == ("paused", "REPLAY_DIVERGENCE")
    told = h.last(j.RUN_PAUSED)
    assert (told["step_id"], told["expected"], told["recorded"]) == (place, expected, recorded)
    assert h.running == {}


def test_after_the_fix_a_diverged_run_goes_on_where_it_was() -> None:
    h = half()
    h.recover(flow(renamed)).resume().replay(two)
    assert h.new() == ["run_resumed", "interrupted b", "started b"]
    assert h.end("b").end("c", "done").output == "done"


def test_a_workflow_may_choose_to_fail_at_a_divergence() -> None:
    h = half()
    h.recover(flow(renamed, on_divergence="fail"))
    assert (h.new(), h.state) == (["run_failed"], "failed")
    assert h.result["error"]["type"].endswith("ReplayDivergence")


def test_a_removed_sleep_that_the_run_is_in_is_a_divergence() -> None:
    async def napping(ctx: Context) -> Any:
        await a()
        await ctx.sleep("1h")

    h = Harness(flow(napping)).fresh().end("a")
    h.later(3_600_000).replay(flow(removed))
    assert (h.state, h.last(j.RUN_PAUSED)["recorded"]) == ("paused", "a sleep")


def test_a_compensation_that_the_code_no_longer_registers_is_a_divergence() -> None:
    async def undoable(ctx: Context) -> Any:
        ctx.compensate(c)
        await a()

    h = Harness(flow(undoable)).fresh()
    h.recover(flow(removed))
    assert (h.state, h.last(j.RUN_PAUSED)["recorded"]) == ("paused", "a compensation")


def test_a_step_that_the_new_code_awaits_and_the_old_cancelled_is_a_divergence() -> None:
    async def cancels(ctx: Context) -> Any:
        call = asyncio.ensure_future(a())
        await b()
        call.cancel()
        await c()

    async def awaits(ctx: Context) -> Any:
        call = asyncio.ensure_future(a())
        await b()
        await asyncio.gather(c(), call)

    h = Harness(flow(cancels)).fresh().end("b").end("a")
    assert h.steps()[-1] == "cancelled a"
    h.recover(flow(awaits))
    assert h.state == "paused"


def test_a_skipped_step_that_is_now_executed_is_a_divergence() -> None:
    h = Harness(flow(skipped)).fresh().end("a")
    h.recover(two)
    assert h.last(j.RUN_PAUSED)["recorded"] == "a skipped step"


def test_a_result_that_no_longer_fits_its_annotation_is_a_divergence_and_no_failure() -> None:
    @step(name="a")
    async def a_int() -> int: ...

    async def typed(ctx: Context) -> Any:
        await a_int()
        await b()

    h = Harness(two).fresh().end("a", "text")
    h.recover(flow(typed))
    assert (h.state, h.last(j.RUN_PAUSED)["step_id"]) == ("paused", "main/1:a")


def test_an_input_that_no_longer_fits_is_a_divergence_once_the_run_has_begun() -> None:
    async def takes_text(ctx: Context, value: str) -> Any:
        await a()

    async def takes_int(ctx: Context, value: int) -> Any:
        await a()

    h = Harness(flow(takes_text), "text").fresh()
    h.recover(flow(takes_int))
    assert h.state == "paused"
    unbegun = Harness(flow(takes_int), "text").queued().replay()
    assert unbegun.state == "failed"


def test_nothing_of_the_new_path_is_journaled_although_it_noted_and_refused_before_the_divergence_was_found() -> None:
    async def noisy(ctx: Context) -> Any:
        ctx.set_status("new")
        ctx.warn("new")
        await a()
        await c(object())

    h = half()
    before = list(h.journal)
    h.recover(flow(noisy))
    assert [event.kind for event in h.journal[len(before) :]] == ["run_recovered", "run_paused"]


# ---- inputs


async def _pair(ctx: Context) -> Any:
    one, other = await a(1), await a(2)
    return [one, other, await b()]


async def _swapped(ctx: Context) -> Any:
    one, other = await a(2), await a(1)
    return [one, other, await b()]


async def _changed(ctx: Context) -> Any:
    one, other = await a(1), await a(3)
    return [one, other, await b()]


def pair() -> Harness:
    return Harness(flow(_pair)).fresh().end("a", "one").end("a", "two")


def test_swapped_inputs_are_a_divergence_or_a_result_would_go_to_the_wrong_call() -> None:
    h = pair()
    h.recover(flow(_swapped))
    assert (h.state, h.last(j.RUN_PAUSED)["expected"]) == ("paused", "the input recorded for main/2:a")


def test_a_changed_input_of_a_finished_step_is_warned_of_and_its_result_stands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    h = pair()
    with caplog.at_level(logging.WARNING, "ironflow.replay"):
        h.recover(flow(_changed))
    assert "main/2:a finished with other inputs" in caplog.text
    assert h.end("b").output == ["one", "two", None]


def test_strict_inputs_make_a_changed_input_a_divergence() -> None:
    h = pair()
    h.recover(flow(_changed, strict_inputs=True))
    assert (h.state, h.last(j.RUN_PAUSED)["step_id"]) == ("paused", "main/2:a")


def test_an_unfinished_step_may_get_another_input(caplog: pytest.LogCaptureFixture) -> None:
    async def other(ctx: Context) -> Any:
        one, other = await a(1), await a(4)
        return [one, other, await b()]

    h = Harness(flow(_pair, strict_inputs=True)).fresh().end("a", "one")
    h.recover(flow(other, strict_inputs=True))
    assert h.names() == ["a"]
    assert caplog.text == ""


def test_an_interrupted_step_whose_input_can_no_longer_be_stored_fails_and_does_not_run() -> None:
    async def broken(ctx: Context) -> Any:
        await a()
        try:
            await b(object())
        except PayloadRejected:
            return "refused"

    h = half().recover(flow(broken))
    assert h.new() == ["run_resumed", "interrupted b", "failed b", "run_succeeded"]


def test_results_that_a_resumed_attempt_carries_may_belong_to_other_inputs_but_not_to_each_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def attempt_two(code: Any) -> Harness:
        h = Harness(flow(_pair, retry=2, strict_inputs=True)).fresh().end("a", "one").end("a", "two")
        return h.end("b", error=ValueError("x")).later(60_000).replay(flow(code, retry=2, strict_inputs=True))

    assert (attempt_two(_changed).names(), caplog.text) == (["b"], "")
    assert attempt_two(_swapped).state == "paused"


# ---- versions and patches


def test_r21_an_incompatible_version_fails_the_run_before_anything_of_it_is_replayed() -> None:
    h = half()
    h.recover(flow(_two, version="2"))
    assert h.new() == ["run_failed"]
    assert isinstance(h.error, HandlerVersionMismatch)


def test_r22_a_compatible_version_goes_on() -> None:
    h = half()
    h.recover(flow(_two, version="2", compatible=["1"]))
    assert h.names() == ["b"]


async def _patched(ctx: Context) -> Any:
    await a()
    if ctx.patched("c instead of b"):
        return await c()
    await b()
    return await c()


def test_patched_keeps_a_run_that_passed_on_its_old_path() -> None:
    h = half()
    h.recover(flow(_patched))
    assert h.names() == ["b"]
    assert h.end("b").end("c", "old").output == "old"


def test_patched_takes_a_new_run_and_every_replay_of_it_to_the_new_path() -> None:
    h = Harness(flow(_patched)).fresh().end("a")
    assert h.new() == ["completed a", "value_recorded c instead of b", "started c"]
    h.recover()
    assert (h.names(), j.VALUE_RECORDED in [event.kind for event in h.plan.events]) == (["c"], False)
    assert h.end("c", "new").output == "new"


def test_patched_may_be_the_first_thing_a_run_asks() -> None:
    async def first(ctx: Context) -> Any:
        return await (c() if ctx.patched("first") else a())

    assert Harness(flow(first)).fresh().names() == ["c"]
    old = Harness(two).fresh()
    assert old.recover(flow(first)).names() == ["a"]


def test_patched_takes_the_new_path_where_an_old_run_gets_there_first_with_the_new_code() -> None:
    h = Harness(two).fresh()
    h.recover(flow(_patched)).end("a")
    assert h.names() == ["c"]


def test_patched_is_asked_anew_by_a_restart_and_kept_by_a_resumed_attempt() -> None:
    async def failing(ctx: Context) -> Any:
        await a()
        raise ValueError("again")

    async def failing_patched(ctx: Context) -> Any:
        await a()
        return "new" if ctx.patched("p") else "old"

    for mode, answer in (("resume", "old"), ("restart", "new")):
        options: dict[str, Any] = {"retry": 2, "retry_mode": mode}
        h = Harness(flow(failing, **options)).fresh().end("a")
        assert h.state == "retrying"
        h.replay(flow(failing_patched, **options))
        if h.running:
            h.end("a")
        assert h.output == answer


def test_a_divergence_while_a_run_is_undone_fails_it_because_it_cannot_be_paused_any_more() -> None:
    async def undoable(ctx: Context) -> Any:
        ctx.compensate(c)
        await a()
        await b()

    h = Harness(flow(undoable)).fresh().end("a").cancel().replay(flow(renamed))
    assert h.state == "failed"
    assert isinstance(h.error, ReplayDivergence) or "ReplayDivergence" in h.result["error"]["type"]
