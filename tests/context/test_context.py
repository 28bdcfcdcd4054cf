"""The rest of `Context`: values that replay, notes that join the next commit, steps without decoration."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context, step
from ironflow.engine.requests import StartTimer, StepCall
from ironflow.errors import DefinitionError, ForbiddenInWorkflow, IronflowError


def plain(order: int) -> str:
    return "plain"


def test_now_is_the_time_of_the_last_fact_in_utc_to_the_millisecond() -> None:
    async def flow(ctx: Context) -> list[datetime]:
        before = ctx.now()
        await work()
        return [before, ctx.now()]

    d = Driver(flow)
    d.now = 1_767_225_599_999
    d.start().complete()
    assert d.value == [datetime(2025, 12, 31, 23, 59, 59, 999_000, UTC), datetime(2026, 1, 1, tzinfo=UTC)]
    d.instance.close()


def test_random_and_uuids_are_the_same_in_every_replay_and_differ_between_runs() -> None:
    async def flow(ctx: Context) -> Any:
        return ctx.random.random(), ctx.uuid4(), ctx.uuid4(), ctx.uuid4("invoice")

    def values(seed: int) -> Any:
        with Driver(flow, seed=seed) as d:
            return d.value

    assert values(1) == values(1)
    assert all(a != b for a, b in zip(values(1), values(2), strict=True))
    assert values(1)[1] != values(1)[2]
    assert [u.version for u in values(1)[1:]] == [4, 4, 4]


def test_drawing_uuids_leaves_random_numbers_as_they_were_and_a_named_uuid_leaves_both() -> None:
    async def flow(ctx: Context, drawn: bool) -> Any:
        if drawn:
            ctx.uuid4("another")
            ctx.uuid4()
        return ctx.random.random(), ctx.uuid4("invoice")

    with Driver(flow, False) as without, Driver(flow, True) as drawn:
        assert without.value == drawn.value


def test_a_new_run_takes_the_patched_path_and_records_that_once() -> None:
    async def flow(ctx: Context) -> Any:
        return ctx.patched("new tax"), ctx.patched("new tax")

    with Driver(flow) as d:
        assert d.value == (True, True)
        assert [(n.kind, n.payload) for n in d.notes] == [("value_recorded", {"patched": "new tax"})]
        assert d.info.patches == {"new tax"}


def test_a_run_that_recorded_the_patch_takes_it_again_while_replaying() -> None:
    async def flow(ctx: Context) -> bool:
        return ctx.patched("new tax")

    d = Driver(flow)
    d.info.patches.add("new tax")
    assert d.start(replaying=True).value is True
    assert d.notes == []
    d.instance.close()


def test_a_run_that_passed_the_place_with_old_code_keeps_the_old_path_for_good() -> None:
    async def flow(ctx: Context) -> Any:
        before = ctx.patched("new tax")
        await work()
        return before, ctx.patched("new tax")

    d = Driver(flow).start(replaying=True)
    assert d.complete(replaying=False).value == (False, False)
    assert d.info.patches == set()
    d.instance.close()


def test_durable_sleeps_count_from_their_await_and_are_never_early() -> None:
    async def flow(ctx: Context) -> None:
        rest = ctx.sleep("1m")
        await work()
        await rest
        await ctx.sleep_until(datetime(2030, 1, 1, 1, 0, 0, 1, tzinfo=timezone(timedelta(hours=1))))
        await ctx.sleep_until(datetime(1999, 1, 1, tzinfo=UTC))

    with Driver(flow) as d:
        d.now = 9_999
        d.complete().fire().fire().fire()
        dues = [r.due for r in d.asked if isinstance(r, StartTimer)]
        assert dues == [10_000 + 60_000, 1_893_456_000_001, 915_148_800_000]
        assert d.asked_ids(StartTimer) == ["main/t1", "main/t2", "main/t3"]


@pytest.mark.parametrize("misuse", [lambda c: c.sleep("soon"), lambda c: c.sleep(-1), lambda c: c.sleep_until(naive)])
def test_times_that_mean_nothing_are_refused(misuse: Callable[[Context], Any]) -> None:
    async def flow(ctx: Context) -> None:
        misuse(ctx)

    with Driver(flow) as d:
        assert isinstance(d.error, IronflowError)


naive = datetime(2030, 1, 1)  # noqa: DTZ001 - the point


def test_a_plain_function_becomes_a_step_under_its_name() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.step(plain, 1), await ctx.step(plain, order=2), await ctx.step(work, 3)

    with Driver(flow) as d:
        d.complete("a").complete("b").complete("c")
        assert d.value == ("a", "b", "c")
        assert d.asked_ids(StepCall) == ["main/1:plain", "main/2:plain", "main/3:work"]
        first, second, third = [r for r in d.asked if isinstance(r, StepCall)]
        assert first.step is second.step  # one spec, whose codecs are built once
        assert third.step is work.spec


def test_a_lambda_needs_a_name_and_can_be_given_one() -> None:
    async def flow(ctx: Context) -> Any:
        with pytest.raises(DefinitionError, match="needs a name"):
            ctx.step(lambda: 1)
        return await ctx.step(step(name="one")(lambda: 1))

    with Driver(flow) as d:
        assert d.open == ["main/1:one"]


def test_bound_methods_are_steps_of_their_own_object() -> None:
    class Shop:
        def sell(self, n: int) -> None: ...

    async def flow(ctx: Context) -> None:
        for shop in (Shop(), Shop()):
            await ctx.step(shop.sell, 1)

    with Driver(flow) as d:
        d.complete_all()
        specs = [r.step for r in d.asked if isinstance(r, StepCall)]
        assert specs[0].fn.__self__ is not specs[1].fn.__self__


def test_a_transaction_is_a_step_of_its_own_kind() -> None:
    def book(connection: Any, order: int) -> str:
        return "booked"

    async def flow(ctx: Context) -> Any:
        return await ctx.transaction(book, 5), await ctx.transaction(step(book), 6)

    with Driver(flow) as d:
        first, _ = d.complete("a").complete("b").asked
        assert isinstance(first, StepCall)
        assert (first.step.kind, first.args, d.value) == ("transaction", (5,), ("a", "b"))
        assert first.step.fn is book


def test_the_arguments_of_a_transaction_do_not_include_its_connection() -> None:
    def book(connection: Any, order: int, note: str = "") -> str:
        return "booked"

    async def flow(ctx: Context) -> None:
        await ctx.transaction(book, 5, note="x")

    with Driver(flow) as d:
        call = d.asked[0]
        assert isinstance(call, StepCall)
        text = call.step.arguments.encode(call.args, call.kwargs)
        args, kwargs = call.step.arguments.decode(text)
        assert book(object(), *args, **kwargs) == "booked"
        assert len(args) + len(kwargs) == 2


def test_notes_are_asked_in_order_with_their_payloads() -> None:
    async def flow(ctx: Context) -> None:
        ctx.compensate(work, "undo")
        ctx.compensate(plain, order=5)
        ctx.skip("send mail", "no address")
        ctx.set_status("half way")
        ctx.set_output({"so far": 1})
        ctx.warn("odd")
        await work()

    with Driver(flow) as d:
        assert [(n.kind, n.id, n.payload) for n in d.notes] == [
            ("compensation_registered", "main/n1:work", {"name": "work"}),
            ("compensation_registered", "main/n2:plain", {"name": "plain"}),
            ("step_skipped", "main/1:send mail", {"name": "send mail", "reason": "no address"}),
            ("status_set", "main/n3", {"text": "half way"}),
            ("output_set", "main/n4", {}),
            ("warning", "main/n5", {"message": "odd"}),
        ]
        calls = [note.call for note in d.notes[:2] if note.call is not None]
        assert [(one.args, one.kwargs) for one in calls] == [(("undo",), {}), ((), {"order": 5})]
        assert calls[0].step is work.spec
        assert d.notes[4].value == {"so far": 1}
        assert d.open == ["main/2:work"]  # a skipped step keeps the place its call would have had


@pytest.mark.parametrize(
    ("say", "longest", "named"),
    [
        (lambda c, text: c.set_status(text), 1_000, "a status is 1,001 characters long; 1,000 is the most"),
        (lambda c, text: c.warn(text), 10_000, "a warning is 10,001 characters"),
        (lambda c, text: c.skip("send mail", text), 1_000, "the reason of a skipped step is 1,001 characters"),
        (lambda c, text: c.patched(text), 200, "the id of a patch is 201 characters"),
        (lambda c, text: c.skip(text, "no address"), 200, "the name of a step is 201 characters"),
    ],
)
def test_what_a_workflow_says_of_itself_is_bounded(
    say: Callable[[Context, str], Any], longest: int, named: str
) -> None:
    async def flow(ctx: Context, length: int) -> None:
        say(ctx, "x" * length)

    with Driver(flow, longest) as fits:
        assert len(fits.notes) == 1
    with Driver(flow, longest + 1) as d:
        assert isinstance(d.error, DefinitionError)
        assert d.error.message.startswith(named)


def test_the_run_s_facts_are_there() -> None:
    async def flow(ctx: Context) -> Any:
        return ctx.run_id, ctx.root_run_id, ctx.workflow_name, ctx.attempt

    with Driver(flow) as d:
        assert d.value == ("run-1", "run-1", "flow", 1)


@pytest.mark.parametrize(
    "use",
    [
        lambda c: c.step(plain, 1),
        lambda c: c.sleep(1),
        lambda c: c.parallel([]),
        lambda c: c.set_status("x"),
        lambda c: c.patched("x"),
        lambda c: c.skip("x", "y"),
    ],
)
def test_a_context_that_escaped_its_workflow_refuses_to_be_used(use: Callable[[Context], Any]) -> None:
    escaped: list[Context] = []

    async def flow(ctx: Context) -> None:
        escaped.append(ctx)
        await work()

    with Driver(flow), pytest.raises(ForbiddenInWorkflow, match="outside its workflow code"):
        use(escaped[0])
