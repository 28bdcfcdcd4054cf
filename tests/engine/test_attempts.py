"""Attempts of a whole run: what they keep, what they execute again, and when there is none."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from tests.engine.harness import START, Harness
from tests.engine.letters import a, b, c

from ironflow.context import Context, Retry, step, workflow
from ironflow.errors import (
    DefinitionError,
    InvalidInput,
    PayloadRejected,
    PayloadTooLarge,
    StoreUnreachable,
    WorkflowStuck,
)
from ironflow.model import journal as j
from ironflow.model.retry import NonRetryableError, RetryAfterError


def flow(fn: Any, **options: Any) -> Any:
    return workflow(name="flow", **{"retry": 3, **options})(fn)


async def _abc(ctx: Context) -> Any:
    return [await a(), await b(), await c()]


def next_attempt(h: Harness) -> Harness:
    assert h.state == "retrying"
    return h.later(h.queued_at - h.now).replay()


def test_g31_r23_a_failed_attempt_is_followed_by_another_after_a_growing_delay() -> None:
    delays = []
    h = Harness(flow(_abc, retry=6)).fresh()
    for _ in range(5):
        h.fail("a")
        delays.append(h.queued_at - h.now)
        next_attempt(h)
    assert delays == [30_000, 120_000, 480_000, 900_000, 900_000]
    h.fail("a")
    assert (h.state, h.row.attempt, h.row.retry_count) == ("failed", 6, 5)


def test_r23_chance_spreads_the_delay_by_a_fifth() -> None:
    for chance, delay in ((0.0, 24_000), (0.9999999, 36_000)):
        h = Harness(flow(_abc), chance=chance).fresh().fail("a")
        assert h.queued_at - h.now == delay


def test_the_next_attempt_keeps_finished_steps_and_executes_the_blamed_one_again() -> None:
    h = Harness(flow(_abc)).fresh().end("a", 1).fail("b")
    assert h.last(j.RUN_RETRYING)["failed_steps"] == ["main/2:b"]
    next_attempt(h)
    assert h.new() == ["run_resumed", "started b"]
    assert h.started[-1][1] == 2  # a new try has a new idempotency key
    assert h.end("b", 2).end("c", 3).output == [1, 2, 3]


def test_a_crash_in_the_second_attempt_replays_both() -> None:
    h = next_attempt(Harness(flow(_abc)).fresh().end("a", 1).fail("b")).end("b", 2).recover()
    assert h.names() == ["c"]
    assert h.end("c", 3).output == [1, 2, 3]


def test_r24_a_restart_executes_every_step_again() -> None:
    h = Harness(flow(_abc, retry_mode="restart")).fresh().end("a", 1).fail("b")
    next_attempt(h)
    assert h.names() == ["a"]
    assert h.started[-1][1] == 2
    assert h.end("a", 10).recover().end("b", 2).end("c", 3).output == [10, 2, 3]


def test_carried_results_come_in_the_order_of_the_journal() -> None:
    async def order(ctx: Context) -> Any:
        seen: list[str] = []

        async def note(call: Any, name: str) -> None:
            await call
            seen.append(name)

        await asyncio.gather(*(note(call, name) for call, name in ((a(), "a"), (b(), "b"), (c(), "c"))))
        await b("last")
        return seen

    h = Harness(flow(order)).fresh().end("c").end("a").end("b").fail("b")
    assert next_attempt(h).end("b").output == ["c", "a", "b"]


def test_a_failure_that_was_caught_keeps_its_fallback_path() -> None:
    async def fallback(ctx: Context) -> Any:
        try:
            first = await a()
        except ValueError:
            first = await b()
        return [first, await c()]

    h = Harness(flow(fallback)).fresh().fail("a").end("b", "plan B").fail("c")
    assert h.last(j.RUN_RETRYING)["failed_steps"] == ["main/3:c"]
    assert next_attempt(h).names() == ["c"]
    assert h.end("c", "c").output == ["plan B", "c"]


def test_a_carried_result_that_is_asked_for_after_a_new_one_is_answered_at_once() -> None:
    async def saved(ctx: Context) -> Any:
        problem: ValueError | None = None
        try:
            await a()
        except ValueError as error:
            problem = error
        kept = await b()
        if problem is not None:
            raise RuntimeError("too late") from problem
        return [kept, await c()]

    h = next_attempt(Harness(flow(saved)).fresh().fail("a").end("b", "kept"))
    assert h.names() == ["a"]
    h.end("a")
    assert h.new() == ["completed a", "started c"]
    assert h.recover().end("c", "c").output == ["kept", "c"]


def test_blame_is_found_in_causes_contexts_and_groups() -> None:
    async def chained(ctx: Context) -> Any:
        try:
            await a()
        except ValueError as error:
            raise RuntimeError("wrapped") from error

    async def grouped(ctx: Context) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(a())
            group.create_task(b())

    async def replaced(ctx: Context) -> Any:
        try:
            await a()
        except ValueError:
            raise RuntimeError("instead") from None

    for code in (chained, replaced):
        assert Harness(flow(code)).fresh().fail("a").last(j.RUN_RETRYING)["failed_steps"] == ["main/1:a"]
    h = Harness(flow(grouped)).fresh().fail("a", KeyError("k")).end("b", error=asyncio.CancelledError())
    assert h.last(j.RUN_RETRYING)["failed_steps"] == ["main/1:a"]


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception that takes no attributes."""

    code: int


def test_blame_sticks_to_an_error_that_takes_no_attributes() -> None:
    h = Harness(flow(_abc)).fresh().fail("a", Frozen(7))
    assert h.last(j.RUN_RETRYING)["failed_steps"] == ["main/1:a"]


def test_a_carried_result_that_is_no_longer_wanted_when_its_turn_comes_is_not_told() -> None:
    async def racing(ctx: Context) -> Any:
        index, _ = await ctx.first(a(), b())
        await c()
        return index

    h = Harness(flow(racing)).fresh()
    h.end("b", settle=False, defer=True).end("a", settle=False, defer=True).settle()
    assert next_attempt(h.fail("c")).end("c").output == 1


def test_results_of_a_path_that_is_not_taken_again_are_no_divergence() -> None:
    async def by_attempt(ctx: Context) -> Any:
        await (a() if ctx.attempt == 1 else b())
        await c()

    h = next_attempt(Harness(flow(by_attempt)).fresh().end("a").fail("c"))
    assert h.names() == ["b"]
    h.end("b").end("c")
    assert h.state == "completed"


def test_a_compensation_of_a_path_that_is_not_taken_again_is_no_divergence() -> None:
    async def by_attempt(ctx: Context) -> Any:
        if ctx.attempt == 1:
            ctx.compensate(b)
        return await c()

    h = next_attempt(Harness(flow(by_attempt)).fresh().fail("c"))
    assert h.recover().end("c", "ok").output == "ok"


def test_a_resumed_attempt_sees_the_values_and_times_of_the_one_it_resumes() -> None:
    async def values(ctx: Context) -> Any:
        first = [str(ctx.uuid4()), ctx.random.random(), ctx.now().isoformat()]
        await a(first)
        await b()
        return first

    kept = Harness(flow(values, strict_inputs=True)).fresh()
    sent = kept.execution.steps["main/1:a"].call.args[0]
    kept.later(1_000).end("a").fail("b")
    assert next_attempt(kept).end("b").output == sent

    again = Harness(flow(values, retry_mode="restart")).fresh().end("a").fail("b")
    next_attempt(again).end("a").end("b")
    assert all(new != old for new, old in zip(again.output, sent, strict=True))


def test_a_timeout_of_a_resumed_attempt_counts_from_its_beginning() -> None:
    async def limited(ctx: Context) -> Any:
        await a()
        async with asyncio.timeout(20):
            return await b()

    h = next_attempt(Harness(flow(limited)).fresh().end("a").fail("b"))
    assert (h.names(), h.plan.wake_at) == (["b"], h.now + 20_000)
    h.later(19_000).recover()
    assert h.end("b", "in time").output == "in time"


def test_a_sleep_of_a_resumed_attempt_goes_on_from_the_last_kept_result() -> None:
    async def napping(ctx: Context) -> Any:
        await a()
        await asyncio.gather(asyncio.sleep(100), ctx.sleep(200), b())

    h = Harness(flow(napping)).fresh().later(1_000).end("a").fail("b")
    next_attempt(h).end("b")
    assert h.waits == {"main.1/t1": START + 101_000, "main/t1": START + 201_000}


def test_a_timeout_that_failed_the_run_is_not_replayed_into_the_next_attempt() -> None:
    async def limited(ctx: Context) -> Any:
        await asyncio.sleep(5)
        async with asyncio.timeout(20):
            return await b()

    h = Harness(flow(limited)).fresh().later(5_000).replay().later(20_000).settle()
    h.end("b", error=asyncio.CancelledError())
    assert h.last(j.RUN_RETRYING)["failed_steps"] == ["main/l1"]
    next_attempt(h)
    assert h.names() == ["b"]
    assert h.end("b", "in time").output == "in time"


def test_a_timeout_that_was_caught_keeps_its_fallback_path() -> None:
    async def limited(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(20):
                await b()
        except TimeoutError:
            await a()
        return await c()

    h = Harness(flow(limited)).fresh().later(20_000).settle().end("b", error=asyncio.CancelledError())
    assert next_attempt(h.end("a").fail("c")).names() == ["c"]


def test_a_sleep_of_the_failed_attempt_is_not_slept_again() -> None:
    async def nap(ctx: Context) -> Any:
        await ctx.sleep("1h")
        await asyncio.sleep(3_600)
        return await a()

    h = Harness(flow(nap)).fresh().later(3_600_000).replay().later(3_600_000).replay().fail("a")
    assert next_attempt(h).names() == ["a"]


@pytest.mark.parametrize(
    "error",
    [
        PayloadTooLarge("result", 3, 2),
        PayloadRejected("result.x", "NaN"),
        InvalidInput("bad"),
        DefinitionError("bad"),
        WorkflowStuck("bad"),
        NonRetryableError("final"),
    ],
)
def test_r25_a_failure_that_would_only_come_again_uses_no_attempt(error: Exception) -> None:
    h = Harness(flow(_abc)).fresh().fail("a", error)
    assert (h.state, h.row.attempt) == ("failed", 1)


def test_a_failure_of_the_world_uses_an_attempt_even_if_it_is_an_error_of_ours() -> None:
    h = Harness(flow(_abc)).fresh().fail("a", StoreUnreachable("down"))
    assert h.state == "retrying"


def test_only_errors_that_the_policy_covers_use_an_attempt() -> None:
    retry = Retry(3, on=OSError)
    assert Harness(flow(_abc, retry=retry)).fresh().fail("a", OSError()).state == "retrying"
    assert Harness(flow(_abc, retry=retry)).fresh().fail("a", ValueError()).state == "failed"


def test_an_error_that_names_a_delay_delays_the_attempt_up_to_the_maximum() -> None:
    for after, delay in (("10s", 10_000), ("1d", 60_000)):
        h = Harness(flow(_abc, retry=Retry(3, max_backoff="1m"))).fresh()
        h.fail("a", RetryAfterError("busy", after=after))
        assert h.queued_at - h.now == delay


def test_g32_a_run_whose_attempts_are_used_up_pauses_where_it_is_asked_to_and_goes_on_when_resumed() -> None:
    h = Harness(flow(_abc, retry=2, on_exhausted="pause")).fresh().end("a", 1).fail("b")
    next_attempt(h).fail("b", KeyError("still"))
    assert (h.state, h.row.reason) == ("paused", "ATTEMPTS_EXHAUSTED")
    assert h.last(j.RUN_PAUSED)["error"]["type"] == "builtins.KeyError"
    h.resume().replay()
    assert h.names() == ["b"]
    assert h.end("b", 2).recover().end("c", 3).output == [1, 2, 3]


def test_a_run_that_restarts_keeps_what_is_finished_when_its_pause_is_lifted() -> None:
    h = Harness(flow(_abc, retry=2, retry_mode="restart", on_exhausted="pause")).fresh().fail("a")
    next_attempt(h).end("a", 1).fail("b")
    h.resume().replay()
    assert h.names() == ["b"]


def test_a_restart_after_a_reopening_executes_again_what_that_had_kept() -> None:
    h = Harness(flow(_abc, retry=2, retry_mode="restart")).fresh().fail("a")
    next_attempt(h).end("a", 1).fail("b")
    h.reopen().replay().fail("b")
    assert next_attempt(h).names() == ["a"]


def test_a_deadline_uses_no_attempt() -> None:
    h = Harness(flow(_abc), deadline_at=START + 500).fresh().later(500).settle().end("a")
    assert (h.state, h.row.attempt) == ("failed", 1)


def test_a_run_resumed_after_its_attempts_were_used_up_has_all_of_them_again() -> None:
    h = Harness(flow(_abc, retry=2, on_exhausted="pause")).fresh().fail("a")
    next_attempt(h).fail("a")
    h.resume().replay().fail("a")
    assert h.state == "retrying"


def test_g36_a_reopened_run_keeps_finished_steps_and_has_its_attempts_again() -> None:
    h = Harness(flow(_abc, retry=2)).fresh().end("a", 1).fail("b")
    next_attempt(h).fail("b")
    assert (h.state, h.result["failed_steps"]) == ("failed", ["main/2:b"])
    h.reopen().replay()
    assert h.names() == ["b"]
    assert [number for key, number, _ in h.started if key == "main/2:b"] == [1, 2, 3]
    h.fail("b")
    assert h.state == "retrying"
    assert next_attempt(h).end("b", 2).end("c", 3).output == [1, 2, 3]


def test_a_step_retry_counts_anew_in_a_new_attempt_and_its_keys_go_on() -> None:
    @step(retry=Retry(2, backoff=0))
    async def flaky() -> Any: ...

    async def once(ctx: Context) -> Any:
        return await flaky()

    h = Harness(flow(once)).fresh().fail("flaky").fail("flaky")
    next_attempt(h).fail("flaky")
    assert h.last(j.STEP_RETRYING)["attempt"] == 1
    assert [number for _, number, _ in h.started] == [1, 2, 3, 4]


def test_g15_a_loss_uses_no_attempt_and_progress_is_told_once() -> None:
    h = Harness(flow(_abc)).fresh().recover()
    assert (h.row.attempt, h.row.retry_count, h.row.consecutive_recoveries) == (1, 0, 1)
    assert not h.plan.progress
    h.end("a")
    assert h.plan.progress
    h.end("b")
    assert not h.plan.progress
    assert Harness(flow(_abc)).fresh().end("a").plan.progress is False


def test_attempt_is_known_to_the_code() -> None:
    async def which(ctx: Context) -> Any:
        if ctx.attempt < 3:
            raise ValueError(str(ctx.attempt))
        return ctx.attempt

    h = Harness(flow(which)).fresh()
    next_attempt(next_attempt(h))
    assert h.output == 3
    assert h.now > START
