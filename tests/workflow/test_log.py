"""Log lines of workflow code come out once, after the commit they belong to."""

from __future__ import annotations

import logging

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context, ReplayFilter


async def chatty(ctx: Context) -> None:
    ctx.log.warning("begins %s", {"n": 1})
    await work()
    ctx.log.warning("goes on")


def test_a_line_is_held_until_it_is_released(caplog: pytest.LogCaptureFixture) -> None:
    with Driver(chatty) as d:
        assert caplog.messages == []
        d.instance.release_log()
        assert caplog.messages == ["begins {'n': 1}"]
        d.complete()
        assert len(caplog.messages) == 1
    assert caplog.messages == ["begins {'n': 1}", "goes on"]


def test_a_record_says_where_it_was_made_and_in_which_run(caplog: pytest.LogCaptureFixture) -> None:
    with Driver(chatty) as d:
        d.instance.release_log()
        record = caplog.records[0]
        assert record.funcName == "chatty"
        assert record.filename == "test_log.py"
        assert (record.name, record.__dict__["run_id"]) == ("ironflow.workflow.flow", "run-1")


def test_a_value_is_written_down_as_it_was_when_the_line_was_made(caplog: pytest.LogCaptureFixture) -> None:
    async def flow(ctx: Context) -> None:
        changing = [1]
        ctx.log.warning("%s", changing)
        changing.append(2)

    with Driver(flow):
        pass
    assert caplog.messages == ["[1]"]


def test_replayed_lines_stay_silent(caplog: pytest.LogCaptureFixture) -> None:
    d = Driver(chatty)
    d.start(replaying=True).complete(replaying=True)
    d.instance.close()
    assert caplog.messages == []


def test_levels_are_those_of_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    async def flow(ctx: Context) -> bool:
        ctx.log.debug("not shown")
        return ctx.log.isEnabledFor(logging.DEBUG)

    caplog.set_level(logging.INFO)
    with Driver(flow) as d:
        assert d.value is False
        assert d.instance.held_log == []


def test_a_line_logged_outside_workflow_code_comes_out_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def flow(ctx: Context) -> None:
        contexts.append(ctx)
        await work()

    contexts: list[Context] = []
    with Driver(flow):
        contexts[0].log.warning("from outside")
        assert caplog.messages == ["from outside"]


def test_the_filter_silences_an_author_s_own_logger_while_replaying(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.authors_own")
    logger.addFilter(ReplayFilter())

    async def flow(ctx: Context) -> None:
        logger.warning("begins")
        await work()
        logger.warning("goes on")

    d = Driver(flow)
    d.start(replaying=True).complete(replaying=False)
    d.instance.close()
    logger.warning("outside")
    assert caplog.messages == ["goes on", "outside"]
