"""A run that is offered twice at once, or whose journal is not at hand, never begins from the start once more."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.recovery.kit import until

import ironflow
from ironflow import Context, Engine
from ironflow.config import Settings
from ironflow.model import claim
from ironflow.model import journal as j
from ironflow.model.capacity import RunHead
from ironflow.worker.dispatcher import Dispatcher
from ironflow.worker.worker import Worker

#: No clock of these speaks while a test lasts, however slow its machine.
CALM = Settings(waker_interval_ms=600_000, drain_timeout_ms=0)

begun: Counter[str] = Counter()


@ironflow.step
async def first(name: str) -> None:
    begun[name] += 1


@ironflow.workflow
async def naps(ctx: Context, name: str) -> str:
    await first(name)
    await ctx.sleep(0.2)
    return name


async def waiting(engine: Engine, *names: str) -> tuple[Worker, Dispatcher, dict[str, ironflow.Run[str]]]:
    """Runs that are due and parked here, and a dispatcher that looks no more: what is taken, the test says."""
    begun.clear()
    worker = engine.worker
    assert worker is not None
    finder = worker.dispatcher
    assert isinstance(finder, Dispatcher)
    await finder.stop(0)
    worker.door._shut = False
    runs = {name: await engine.start(naps, name) for name in names}
    await until(lambda: all(run.id in worker.parked._executions for run in runs.values()))
    return worker, finder, runs


async def due(finder: Dispatcher, count: int) -> list[RunHead]:
    """So many that are due."""
    found: list[RunHead] = []

    async def all_there() -> bool:
        found[:] = await finder.store.due(10, finder.session.routes)
        return len(found) == count

    await until(all_there)
    return found


async def test_a_run_that_is_due_and_in_the_queue_at_once_enters_once(store_url: str) -> None:
    """Another node's waker hands it to the queue between the look at what is due and the look at the queue."""
    async with Engine(store_url, workflows=[naps], settings=CALM) as engine:
        worker, finder, runs = await waiting(engine, "a")
        offered = await due(finder, 1)
        await finder.store.decide([runs["a"].id], lambda locked: claim.hand_off(locked))
        session = finder.session
        queued = await until(lambda: finder.store.reserve(session.routes, 10, session.row.session_id, 60_000))
        assert [head.run_id for head in queued] == [head.run_id for head in offered]
        assert await worker.take(offered + queued) == 1
        assert await runs["a"].result(timeout=20) == "a"
        assert begun == {"a": 1}
        kinds = [event.kind for event in await engine.store.journal(runs["a"].id)]
        assert (kinds.count(j.RUN_CREATED), len(j.TERMINAL_KINDS.intersection(kinds))) == (1, 1)


async def test_of_two_views_of_a_run_the_newer_one_is_taken(store_url: str) -> None:
    async with Engine(store_url, workflows=[naps], settings=CALM) as engine:
        worker, finder, runs = await waiting(engine, "a")
        (head,) = await due(finder, 1)
        older = replace(head, execution_seq=head.execution_seq - 1)
        assert await worker.take([head, older]) == 1
        assert await runs["a"].result(timeout=20) == "a"


async def test_one_that_is_dropped_from_memory_while_its_batch_is_opened_stays_out(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the first of a batch parks may push out the second, whose journal was not read because it was parked."""
    async with Engine(store_url, workflows=[naps], settings=CALM) as engine:
        worker, finder, runs = await waiting(engine, "a", "b")
        heads = await due(finder, 2)
        submit = worker.port.submit

        def submits(transition: Any) -> Any:
            worker.parked.close()
            return submit(transition)

        with monkeypatch.context() as patched:
            patched.setattr(worker.port, "submit", submits)
            assert await worker.take(heads) == 1
        assert (worker.taking, caplog.records) == (set(), [])
        assert await worker.take(await due(finder, 1)) == 1
        assert [await run.result(timeout=20) for run in runs.values()] == ["a", "b"]
        assert begun == {"a": 1, "b": 1}


async def test_a_run_that_was_deleted_since_it_was_seen_executes_no_line(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(store_url, workflows=[naps], settings=CALM) as engine:
        worker, finder, _ = await waiting(engine, "a")
        (head,) = await due(finder, 1)
        executed: list[Any] = []
        worker.door._execution = lambda *given: executed.append(given)  # type: ignore[method-assign,assignment,return-value]
        with caplog.at_level(logging.WARNING, "ironflow"):
            assert await worker.take([replace(head, run_id="gone", execution_seq=1)]) == 0
        assert (executed, caplog.records) == ([], [])
        assert not worker.taking
