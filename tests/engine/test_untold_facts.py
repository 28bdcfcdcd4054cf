"""A crash after a fact was committed, and before slow code was told of it: the next owner tells it as news."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.engine.harness import Harness

from ironflow.context import Context, Retry, step, workflow
from ironflow.engine.history import History
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.journal import Event


@step
async def a() -> Any: ...


@step(retry=Retry(2, backoff="1s", jitter=0))
async def b() -> Any: ...


@step
async def old() -> Any: ...


@step
async def new() -> Any: ...


def flow(fn: Any, **options: Any) -> Any:
    return workflow(name="flow", **options)(fn)


async def _patched(ctx: Context) -> Any:
    await a()
    ctx.log.warning("a has ended")
    return await (new() if ctx.patched("p") else old())


async def _unpatched(ctx: Context) -> Any:
    await a()
    ctx.log.warning("a has ended")
    return await old()


patched, unpatched = flow(_patched), flow(_unpatched)


def committed_first(h: Harness, name: str, value: Any = None, error: BaseException | None = None) -> Harness:
    """A body ends, and its end is committed before the code is told of it."""
    h.end(name, value, error, settle=False, defer=True)
    return h._commit(h.execution.facts())


def test_patched_gives_the_answer_after_a_crash_that_it_would_have_given_without() -> None:
    h = committed_first(Harness(patched).fresh(), "a")
    assert h.new() == ["completed a"]
    h.recover()
    assert h.new() == ["run_resumed", "value_recorded p", "started new"]
    assert h.recover().end("new", "new").output == "new"


def test_patched_gives_that_answer_behind_a_step_that_failed() -> None:
    async def caught(ctx: Context) -> Any:
        try:
            await a()
        except ValueError:
            return await (new() if ctx.patched("p") else old())

    h = committed_first(Harness(flow(caught)).fresh(), "a", error=ValueError("no"))
    assert h.recover().names() == ["new"]


def test_log_lines_of_an_activation_that_a_crash_cut_off_come_out_with_the_next_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    h = committed_first(Harness(patched).fresh(), "a")
    h.recover().execution.instance.release_log()
    assert [record.getMessage() for record in caplog.records] == ["a has ended"]
    h.recover().execution.instance.release_log()
    assert len(caplog.records) == 1


def test_a_place_that_the_old_code_has_passed_keeps_the_run_on_its_old_path() -> None:
    h = committed_first(Harness(unpatched).fresh(), "a").settle()
    assert h.recover(patched).names() == ["old"]


def test_a_run_that_its_worker_gave_back_has_passed_although_it_began_nothing() -> None:
    h = Harness(unpatched).fresh()
    h.execution.leaving = True
    committed_first(h, "a").settle()
    assert h.new() == ["run_released"]
    assert h.replay(patched).names() == ["old"]


def test_ends_that_follow_a_fact_do_not_mean_that_the_code_was_told() -> None:
    async def both(ctx: Context) -> Any:
        other = asyncio.ensure_future(b())
        await a()
        first = await (new() if ctx.patched("p") else old())
        return [first, await other]

    h = Harness(flow(both)).fresh()
    committed_first(committed_first(h, "a"), "b", error=ValueError("once more"))
    assert h.new() == ["retrying b"]
    assert h.recover().names() == ["new"]


def test_what_others_write_behind_a_fact_does_not_mean_that_the_code_was_told() -> None:
    h = committed_first(Harness(patched).fresh(), "a")
    h.running.clear()
    assert h.pause().resume().replay().names() == ["new"]


def test_a_fact_that_was_never_told_is_news_to_an_attempt_that_keeps_it() -> None:
    h = committed_first(Harness(patched).fresh(), "a")
    h.command(j.RUN_CANCELLED, {}, runs.CANCELLED)
    assert h.reopen().replay().names() == ["new"]


@pytest.mark.parametrize(
    ("kind", "payload", "told"),
    [
        (j.RUN_RESUMED, {"t": 1}, True),
        (j.STEP_STARTED, {}, True),
        (j.VALUE_RECORDED, {"patched": "p"}, True),
        (j.TIMER_FIRED, {"t": 1}, True),
        (j.STEP_COMPLETED, {"t": 1}, True),
        (j.STEP_COMPLETED, {"t": 1, "untold": True}, False),
        (j.STEP_CANCELLED, {}, False),
        (j.RUN_RECOVERED, {}, False),
        (j.RUN_RELEASED, {"session": "s"}, False),
        (j.RUN_RELEASED, {"t": 1}, True),
    ],
)
def test_what_stands_behind_a_fact_says_whether_it_was_told(kind: str, payload: dict[str, Any], told: bool) -> None:
    first = Event(1, j.STEP_COMPLETED, "main/1:a", '{"t":1,"untold":true,"result":null}')
    history = History.of([first, Event(2, kind, "main/2:b", json.dumps(payload))])
    assert history.facts[0].told is told


def test_only_facts_that_are_committed_first_say_so() -> None:
    marked = committed_first(Harness(patched).fresh(), "a").last(j.STEP_COMPLETED)
    plain = Harness(patched).fresh().end("a").last(j.STEP_COMPLETED)
    assert (marked.get("untold"), plain.get("untold")) == (True, None)
