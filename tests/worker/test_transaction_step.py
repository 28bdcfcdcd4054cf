"""Transactional steps from the workflow to the database: written with their completion or not at all, and only once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from tests.recovery.kit import quick, until
from tests.recovery.program import ROOT, lines, open_gate
from tests.store.relay import LOSE_THE_ANSWER, LOSE_THE_COMMIT, losing
from tests.worker.sales import SHOP, WORKFLOWS, fiasco, market, patient_sale, sale

import ironflow
from ironflow import Engine
from ironflow.errors import RunFailed
from ironflow.model import journal as j
from ironflow.model.transition import APPLIED, STALE, Transition
from ironflow.store.base import OpenTransaction

pytestmark = pytest.mark.usefixtures("folder")


class Place:
    """One database, as the tests see it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.on = url.partition("://")[0].replace("postgresql", "postgres")

    def order(self, item: str, then: str = "") -> dict[str, str]:
        """The input of a workflow."""
        return {"on": self.on, "item": item, "then": then}

    async def sold(self) -> list[str]:
        """What is in the user's table, past the engine."""
        query = "select item from shop order by 1"
        if self.on == "postgres":
            connection = await asyncpg.connect(self.url)
            found = [row[0] for row in await connection.fetch(query)]
            await connection.close()
            return found
        # The file is open in this very process: another one looks, whose closing drops no lock of ours.
        program = f"import sqlite3; print([i for i, in sqlite3.connect({self.url[10:]!r}).execute({query!r})])"
        asked = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=-1)
        text = (await asked.communicate())[0].decode()
        return list(json.loads(text.replace("'", '"')))


@pytest.fixture
async def place(store_url: str) -> Place:
    """A database with the user's table in it."""
    made = Place(store_url)
    if made.on == "postgres":
        connection = await asyncpg.connect(store_url)
        await connection.execute(SHOP)
        await connection.close()
    else:
        file = sqlite3.connect(store_url[10:])
        file.execute(SHOP)
        file.close()
    return made


@pytest.fixture
async def postgres(postgres_url: str) -> Place:
    """The same on PostgreSQL alone."""
    made = Place(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(SHOP)
    await connection.close()
    return made


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    async with ironflow.open(url, workflows=WORKFLOWS, settings=quick()) as engine:
        yield engine


async def kinds(engine: Engine, run_id: str) -> list[str]:
    return [event.kind for event in await engine.store.journal(run_id)]


async def test_the_writes_of_a_step_and_its_completion_are_there_together(place: Place) -> None:
    async with opened(place.url) as engine:
        run = await engine.start(sale, place.order("tea"))
        assert await run.result(timeout=20) == "TEA"
        assert await place.sold() == ["tea"]
        [step] = (await engine.get(run.id)).steps.values()
        assert (step.state, len(step.tries)) == ("completed", 1)
        assert len(lines("sale tea")) == 1


@pytest.mark.parametrize("then", ["fail", "commit", "insert into shop values ('tea')", "select * from nowhere"])
async def test_a_body_that_fails_leaves_its_error_and_nothing_else(place: Place, then: str) -> None:
    async with opened(place.url) as engine:
        run = await engine.start(sale, place.order("tea", then))
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=20)
        if then == "fail":
            assert isinstance(failed.value.__cause__, LookupError)
        journal = await kinds(engine, run.id)
        assert j.STEP_FAILED in journal
        assert j.STEP_COMPLETED not in journal
        if (place.on, then) != ("postgres", "commit"):  # there it cannot be prevented, but it is found out
            assert await place.sold() == []


async def test_a_function_of_the_wrong_colour_is_an_error_that_says_so(place: Place) -> None:
    other = Place("sqlite://" if place.on == "postgres" else "postgres://")
    async with opened(place.url) as engine:
        run = await engine.start(sale, other.order("tea"))
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=20)
        assert isinstance(failed.value.__cause__, TypeError)
        assert ("async def" if place.on == "postgres" else "plain `def`") in str(failed.value.__cause__)
        assert await place.sold() == []
        assert lines("sale") == []


async def test_a_step_keeps_its_name_and_its_retries(place: Place) -> None:
    async with opened(place.url) as engine:
        run = await engine.start(patient_sale, place.order("tea"))
        assert await run.result(timeout=20) == "TEA"
        [(step_id, step)] = (await engine.get(run.id)).steps.items()
        assert step_id.endswith(":sale")
        assert [one.state for one in step.tries] == ["retrying", "completed"]
        assert await place.sold() == ["tea"]


async def test_many_at_once_and_plain_steps_beside_them_never_wait_for_each_other(place: Place) -> None:
    async with opened(place.url) as engine:
        runs = [await engine.start(market, place.order(item)) for item in ("a", "b", "c")]
        for run, item in zip(runs, "ABC", strict=True):
            result = await run.result(timeout=20)
            assert result[5:10] == [f"{item}{n}" for n in range(5)]
            view = await engine.get(run.id)
            assert view.row.lease_recoveries == 0
            assert {len(step.tries) for step in view.steps.values()} == {1}
        assert await place.sold() == [f"{item}{n}" for item in "abc" for n in range(5)]
        assert len(lines("sale")) == 15


async def test_a_step_that_is_cancelled_leaves_nothing(place: Place) -> None:
    async with opened(place.url) as engine:
        run = await engine.start(fiasco, place.order(""))
        assert await run.result(timeout=20) == "sold out"
        journal = await kinds(engine, run.id)
        assert journal.count(j.STEP_FAILED) == 1
        assert journal.count(j.STEP_CANCELLED) == 1
        assert await place.sold() == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_killed_at_the_commit_leaves_both_or_neither(place: Place, when: str) -> None:
    request = json.dumps({"url": place.url, "id": "r1", "when": when, "order": place.order("tea")})
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.worker.sales", request, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert await dying.wait() == -signal.SIGKILL
    committed = when == "after"
    assert await place.sold() == (["tea"] if committed else [])
    async with ironflow.open(place.url, worker=False) as observer:
        assert (j.STEP_COMPLETED in await kinds(observer, "r1")) is committed
    async with opened(place.url) as engine:
        run = await engine.start(sale, place.order("tea"), id="r1")
        assert await run.result(timeout=20) == "TEA"
        assert (await kinds(engine, "r1")).count(j.STEP_COMPLETED) == 1
    assert await place.sold() == ["tea"]
    assert len(lines("sale tea")) == (1 if committed else 2)


# ---- PostgreSQL: where others can write while a body runs


async def test_a_run_that_was_taken_over_in_mid_body_keeps_only_the_writes_of_its_new_owner(postgres: Place) -> None:
    async with opened(postgres.url) as engine:
        run = await engine.start(sale, postgres.order("tea", "hold"))
        await until(lambda: lines("sale tea"))
        assert await run.pause()
        # What it wrote is undone even though nobody has resumed it: nothing is adopted of a transaction.
        await until(lambda: run.id not in engine.worker.segments, "the segment is gone")  # type: ignore[union-attr]
        open_gate("tea")
        assert await postgres.sold() == []
        assert await run.resume()
        assert await run.result(timeout=20) == "TEA"
        assert await postgres.sold() == ["tea"]
        assert (await kinds(engine, run.id)).count(j.STEP_COMPLETED) == 1
    assert len(lines("sale tea")) == 2


async def test_a_run_that_was_taken_over_right_before_the_commit_runs_the_step_again(postgres: Place) -> None:
    async with opened(postgres.url) as engine, ironflow.open(postgres.url, worker=False) as operator:
        begin = engine.store.begin
        paused = asyncio.Event()

        class Late:
            """The run is paused after the body and before the commit, and this worker does not know."""

            def __init__(self, transaction: OpenTransaction) -> None:
                self.transaction = transaction

            async def commit(self, transition: Transition) -> str:
                if not paused.is_set():
                    assert await operator.pause(transition.run_id)
                answer = await self.transaction.commit(transition)
                assert answer == (APPLIED if paused.is_set() else STALE)
                paused.set()
                return answer

            async def rollback(self) -> None:
                await self.transaction.rollback()

        async def begin_late(body: Callable[[Any], Any], *, deadline_ms: int) -> tuple[Any, OpenTransaction]:
            value, transaction = await begin(body, deadline_ms=deadline_ms)
            return value, Late(transaction)

        engine.store.begin = begin_late  # type: ignore[method-assign]
        run = await engine.start(sale, postgres.order("tea"))
        await asyncio.wait_for(paused.wait(), 20)
        assert await postgres.sold() == []
        assert await operator.resume(run.id)
        assert await run.result(timeout=20) == "TEA"
        assert await postgres.sold() == ["tea"]
    assert len(lines("sale tea")) == 2


@pytest.mark.parametrize("loss", [LOSE_THE_ANSWER, LOSE_THE_COMMIT])
async def test_a_lost_answer_to_the_commit_does_not_make_the_step_run_again_unless_it_was_undone(
    postgres: Place, loss: str
) -> None:
    async with losing(loss, postgres.url) as (url, relay), opened(url) as engine:
        run = await engine.start(sale, postgres.order("tea", f"once select '{loss}'"))
        assert await run.result(timeout=20) == "TEA"
        assert relay.lost == 1
        assert (await engine.get(run.id)).row.lease_recoveries == 0, "its owner was there all the time"
        assert await postgres.sold() == ["tea"]
        assert (await kinds(engine, run.id)).count(j.STEP_COMPLETED) == 1
    assert len(lines("sale tea")) == (1 if loss == LOSE_THE_ANSWER else 2)
