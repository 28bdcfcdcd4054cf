"""The doctor finds each broken invariant, on both databases, and nothing on a healthy or a busy one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.store.build import answer, changed, create

import ironflow
from ironflow import Context, Retry, step, workflow
from ironflow.engine import doctor
from ironflow.engine.doctor import examine, report
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.capacity import QueueRow
from ironflow.model.journal import Event
from ironflow.model.transition import APPLIED, GUARD_LOCKED, Locked, Transition
from ironflow.runtime import Engine
from ironflow.store import connect
from ironflow.store.base import Store

# `health=False` throughout: the PostgreSQL of the tests runs without fsync, which the doctor rightly reports.
Break = Callable[[Transition, Locked], None]


@step
async def double(n: int) -> int:
    return n * 2


@step(retry=Retry(2, backoff="10ms"))
async def flaky(n: int) -> int:
    raise OSError(n)


@workflow
async def chain(ctx: Context, n: int) -> int:
    for _ in range(3):
        n = await double(n)
    return n


@workflow
async def waits(ctx: Context, seconds: float) -> None:
    await ctx.sleep(seconds)


@workflow(retry=Retry(2, backoff="10ms"))
async def breaks(ctx: Context, n: int) -> int:
    return await flaky(await double(n))


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[Engine]:
    async with ironflow.open(store_url, workflows=[chain, waits, breaks]) as opened:
        yield opened


async def tampered(store: Store, run_id: str, change: Break) -> list[tuple[str, str | None]]:
    """What the doctor finds after one forbidden change, made through the store's own door."""

    def decide(locked: Locked) -> Transition:
        transition = Transition(run_id, GUARD_LOCKED, locked.row.execution_seq)
        change(transition, locked)
        return transition

    done = await store.decide([run_id], decide)
    assert isinstance(done[run_id], Transition), done
    return [(finding.rule, finding.run_id) for finding in await examine(store, health=False)]


async def completed(engine: Engine) -> str:
    run = await engine.start(chain, 1)
    await run.result(timeout=20)
    return run.id


async def suspended(engine: Engine) -> str:
    run = await engine.start(waits, 3600)
    async with asyncio.timeout(20):
        while (await run.status()).state != runs.SLEEPING:
            await asyncio.sleep(0.01)
    return run.id


async def test_it_finds_nothing_where_runs_completed_failed_wait_were_cancelled_paused_and_reopened(
    engine: Engine,
) -> None:
    for n in range(5):
        await engine.run(chain, n)
    failed = await engine.start(breaks, 1)
    with pytest.raises(ironflow.RunFailed):
        await failed.result(timeout=20)
    await engine.retry(failed.id)
    with pytest.raises(ironflow.RunFailed):
        await failed.result(timeout=20)
    await engine.cancel(await suspended(engine))
    await engine.pause(await suspended(engine))
    paused = await suspended(engine)
    await engine.pause(paused)
    await engine.resume(paused)
    await suspended(engine)
    assert not (found := await examine(engine.store, health=False)), report(found)


async def test_it_accuses_nobody_while_runs_move_under_its_eyes(engine: Engine) -> None:
    async def traffic() -> None:
        for n in range(40):
            await asyncio.gather(*(engine.run(chain, n) for _ in range(5)))

    moving = asyncio.create_task(traffic())
    looks = 0
    while not moving.done():
        assert not (found := await examine(engine.store, health=False)), report(found)
        looks += 1
    await moving
    assert looks > 1


async def test_a_page_boundary_hides_no_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PAGE", 3)
    ids = [await completed(engine) for _ in range(7)]
    for run_id in ids:
        found = await tampered(engine.store, run_id, lambda t, _: _set(t, retry_count=9))
    assert sorted(found, key=str) == sorted((("I3", run_id) for run_id in ids), key=str)


async def test_suspects_are_looked_at_again_one_by_one_and_not_with_everything_else(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await completed(engine) for _ in range(4)]
    await engine.store.decide(ids, changed(retry_count=9))
    reads: Counter[str] = Counter()
    for name in ("leases", "expired_leases", "queue", "holdings"):
        _count(name, engine.store, reads, monkeypatch)
    assert len(await examine(engine.store, health=False)) == 4
    assert reads == {"leases": 1, "expired_leases": 1, "queue": 1, "holdings": 4}


def _count(name: str, store: Store, reads: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read = getattr(store, name)

    async def counted(*asked: Any) -> Any:
        reads[name] += 1
        return await read(*asked)

    monkeypatch.setattr(store, name, counted)


def _set(transition: Transition, **changes: object) -> None:
    transition.changes = changes


def _event(kind: str, step_id: str | None = None, payload: str = "{}", execution_seq: int = 0) -> Event:
    return Event(0, kind, step_id, payload, execution_seq)


@pytest.mark.parametrize("column", ["attempt", "retry_count", "lease_recoveries", "compensations", "warnings"])
async def test_a_column_that_the_journal_does_not_tell_is_found(engine: Engine, column: str) -> None:
    run_id = await completed(engine)
    assert await tampered(engine.store, run_id, lambda t, _: _set(t, **{column: 7})) == [("I3", run_id)]


async def test_an_event_after_the_end_is_found(engine: Engine) -> None:
    run_id = await completed(engine)

    def change(t: Transition, _: Locked) -> None:
        t.events = [_event(j.STATUS_SET, None, '{"text":"late"}')]

    assert await tampered(engine.store, run_id, change) == [("I3", run_id)]


async def test_a_completed_step_that_starts_again_is_found(engine: Engine) -> None:
    run_id = await suspended(engine)

    def change(t: Transition, _: Locked) -> None:
        t.events = [
            _event(j.STEP_STARTED, "main/9:double"),
            _event(j.STEP_COMPLETED, "main/9:double", '{"result":1}'),
            _event(j.STEP_STARTED, "main/9:double"),
            _event(j.STEP_COMPLETED, "main/9:double", '{"result":1}'),
        ]

    assert set(await tampered(engine.store, run_id, change)) == {("I2", run_id)}


async def test_a_state_the_journal_does_not_tell_is_found(engine: Engine) -> None:
    run_id = await completed(engine)

    def change(t: Transition, _: Locked) -> None:
        t.state = runs.FAILED

    assert ("I3", run_id) in await tampered(engine.store, run_id, change)


async def test_an_ended_run_that_is_queued_is_found(engine: Engine) -> None:
    run_id = await completed(engine)

    def change(t: Transition, locked: Locked) -> None:
        t.enqueue = QueueRow(run_id, "nobody-serves-this", 0, locked.now, locked.now, locked.row.execution_seq)

    assert await tampered(engine.store, run_id, change) == [("I5", run_id)]


async def test_a_run_that_waits_for_nothing_is_found(engine: Engine) -> None:
    run_id = await suspended(engine)

    def change(t: Transition, _: Locked) -> None:
        t.clear_waits = True

    assert await tampered(engine.store, run_id, change) == [("I9", run_id)]


async def test_a_queued_run_with_open_waits_is_found(engine: Engine) -> None:
    run_id = await suspended(engine)

    def change(t: Transition, locked: Locked) -> None:
        t.enqueue = QueueRow(run_id, "nobody-serves-this", 0, locked.now, locked.now, locked.row.execution_seq)

    assert await tampered(engine.store, run_id, change) == [("I6", run_id)]


async def test_a_lost_run_is_found(store_url: str) -> None:
    async with ironflow.open(store_url, workflows=[chain], worker=False) as engine:
        run = await engine.start(chain, 1)

        def change(t: Transition, _: Locked) -> None:
            t.dequeue = True

        assert await tampered(engine.store, run.id, change) == [("I9", run.id)]


async def test_recoveries_beyond_the_ceiling_are_found(engine: Engine) -> None:
    run_id = await suspended(engine)
    found = await tampered(engine.store, run_id, lambda t, _: _set(t, consecutive_recoveries=11))
    assert found == [("I7", run_id)]


async def test_recoveries_beyond_what_the_workflow_allows_are_found(engine: Engine) -> None:
    run_id = await suspended(engine)
    found = await tampered(engine.store, run_id, lambda t, _: _set(t, lease_recoveries=3, max_recoveries=2))
    assert found == [("I3", run_id), ("I7", run_id)]


async def test_a_child_without_its_parent_is_found(engine: Engine) -> None:
    run_id = await completed(engine)
    found = await tampered(engine.store, run_id, lambda t, _: _set(t, parent_run_id="nobody"))
    assert found == [("I10", run_id)]


async def test_what_the_database_says_of_itself_is_a_finding_of_its_own(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> list[str]:
        return ["a page is damaged"]

    monkeypatch.setattr(engine.store, "check", check)
    assert report(await examine(engine.store)) == "store -: a page is damaged"


async def test_a_store_that_only_reads_is_enough(store_url: str) -> None:
    async with ironflow.open(store_url, workflows=[chain]) as engine:
        await engine.run(chain, 1)
    store = await connect(store_url, read_only=True)
    try:
        assert await examine(store, health=False) == []
    finally:
        await store.close()


# ---- what a journal alone shows


async def test_an_empty_a_headless_and_an_unreadable_journal_are_found(store_url: str) -> None:
    created, status = _numbered(1, j.RUN_CREATED, '{"input":1}'), _numbered(1, j.STATUS_SET, '{"text":"x"}')
    cut = _numbered(2, j.STATUS_SET, '{"text":')
    async with ironflow.open(store_url, worker=False) as engine:
        for run_id, events in (("sound", [created]), ("empty", []), ("headless", [status]), ("cut", [created, cut])):
            change = create(run_id)
            change.events = events
            assert await answer(engine.store, change) == APPLIED
        found = await examine(engine.store, health=False)
    assert [(finding.rule, finding.run_id) for finding in found] == [("I8", "cut"), ("I8", "empty"), ("I8", "headless")]
    assert "seq 2 (status_set) cannot be read" in found[0].message
    assert report(found[1:2]) == "I8 empty: the journal is empty, although the run exists"
    assert report([]) == ""


async def test_a_breach_is_told_under_its_rule_whatever_the_step_is_called(engine: Engine) -> None:
    """The rule goes with the finding: names of users stand in its text, and might read like another rule's."""
    run_id, step_id = await suspended(engine), "main/9:the journal is not dense"

    def change(t: Transition, _: Locked) -> None:
        t.events = [
            _event(j.STEP_STARTED, step_id),
            _event(j.STEP_COMPLETED, step_id, '{"result":1}'),
            _event(j.STEP_COMPLETED, step_id, '{"result":2}'),
        ]

    assert await tampered(engine.store, run_id, change) == [("I2", run_id)]


def _numbered(seq: int, kind: str, payload: str) -> Event:
    return Event(seq, kind, None, payload)
