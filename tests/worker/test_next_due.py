"""What becomes due next: nothing that is told while the database is asked is lost to its older answer."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.recovery.kit import until
from tests.worker.test_forgotten import Held

import ironflow
from ironflow import Context
from ironflow.config import Settings
from ironflow.loops.next_due import NextDue
from ironflow.worker import dispatcher
from ironflow.worker.dispatcher import Dispatcher


def known(at: int | None) -> NextDue:
    """One whose last question was answered so."""
    due = NextDue()
    due.asks()
    due.answered(at)
    return due


def test_at_first_nobody_knows_and_it_is_looked_at_once() -> None:
    assert NextDue().at == 0


@pytest.mark.parametrize(("told", "sooner", "at"), [(50, True, 50), (100, False, 100), (200, False, 100)])
def test_only_an_earlier_time_is_news(told: int, sooner: bool, at: int) -> None:
    due = known(100)
    assert due.told(told) is sooner
    assert due.at == at


def test_where_nothing_is_due_any_time_is_news() -> None:
    due = known(None)
    assert due.told(200)
    assert due.at == 200


@pytest.mark.parametrize(("answer", "at"), [(None, 200), (300, 200), (100, 100), (0, 0)])
def test_what_is_told_while_the_database_is_asked_survives_its_answer(answer: int | None, at: int) -> None:
    due = known(100)
    due.asks()
    due.told(250)
    due.told(200)
    due.told(210)
    due.answered(answer)
    assert due.at == at


def test_what_was_told_before_the_question_the_answer_knows() -> None:
    due = known(None)
    due.told(200)
    due.asks()
    due.answered(None)
    assert due.at is None


def test_what_was_told_during_one_question_the_next_answer_knows() -> None:
    due = known(None)
    due.asks()
    due.told(200)
    due.answered(None)
    due.asks()
    due.answered(300)
    assert due.at == 300


@ironflow.workflow
async def naps(ctx: Context) -> str:
    await ctx.sleep(timedelta(milliseconds=100))
    return "woke"


async def test_a_run_that_goes_to_sleep_while_the_database_is_asked_wakes_without_the_fallback(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "POLL_S", 600.0)
    settings = Settings(waker_interval_ms=600_000, drain_timeout_ms=0)
    async with ironflow.Engine(store_url, workflows=[naps], settings=settings) as engine:
        assert engine.worker is not None
        finder = engine.worker.dispatcher
        assert isinstance(finder, Dispatcher)
        held = Held(finder.store.next_due)
        monkeypatch.setattr(finder.store, "next_due", held)
        finder.expect(0)
        await held.on_its_way.wait()
        run = await engine.start(naps)
        await until(lambda: run.id in engine.worker.parked._executions)  # it left, and its due time was told
        held.may_arrive.set()
        assert await run.result(timeout=20) == "woke"
