"""The doctor finds each broken invariant, on both databases, and nothing on a healthy or a busy one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

import ironflow
from ironflow import Context, Retry, step, workflow
from ironflow.engine import doctor
from ironflow.engine.doctor import check_journal, examine, report
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.capacity import QueueRow
from ironflow.model.journal import Event
from ironflow.model.transition import GUARD_LOCKED, Locked, Transition
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


# ---- journals alone ----------------------------------------------------------------------------------------


def journal(*kinds: tuple[str, str | None, str, int]) -> list[Event]:
    """Events from (kind, step, payload, execution_seq), numbered from 1."""
    return [Event(i, kind, step_id, payload, seq, i) for i, (kind, step_id, payload, seq) in enumerate(kinds, 1)]


CREATED = (j.RUN_CREATED, None, '{"input":1}', 0)
STARTED = (j.RUN_STARTED, None, "{}", 1)
S1, C1 = (j.STEP_STARTED, "main/1:a", "{}", 1), (j.STEP_COMPLETED, "main/1:a", '{"result":1}', 1)


def rules(events: list[Event]) -> list[str]:
    return [finding.rule for finding in check_journal("r", events)]


def test_a_sound_journal_has_no_finding() -> None:
    assert rules(journal(CREATED, STARTED, S1, C1, (j.RUN_SUCCEEDED, None, '{"output":1}', 1))) == []


def test_a_gap_is_found() -> None:
    events = journal(CREATED, STARTED, S1, C1)
    del events[1]
    assert rules(events) == ["I4"]


def test_a_write_by_an_older_owner_is_found() -> None:
    recovered = (j.RUN_RECOVERED, None, "{}", 2)
    assert rules(journal(CREATED, STARTED, recovered, (j.STATUS_SET, None, '{"text":"zombie"}', 1))) == ["I1"]


def test_two_ends_in_one_epoch_are_found() -> None:
    end = (j.RUN_FAILED, None, '{"error":{}}', 1)
    assert rules(journal(CREATED, STARTED, end, end)) == ["I3"]


def test_an_end_in_each_epoch_is_sound() -> None:
    end = (j.RUN_FAILED, None, '{"error":{}}', 1)
    reopened = (j.RUN_REOPENED, None, '{"mode":"resume","failed_steps":[]}', 2)
    assert rules(journal(CREATED, STARTED, end, reopened, (j.RUN_CANCELLED, None, "{}", 2))) == []


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        ('{"mode":"restart","failed_steps":[]}', []),
        ('{"mode":"resume","failed_steps":["main/1:a"]}', ["I2"]),
        ('{"mode":"resume","failed_steps":[]}', ["I2"]),
    ],
)
def test_a_completed_step_starts_again_only_after_a_restart(payload: str, found: list[str]) -> None:
    assert rules(journal(CREATED, STARTED, S1, C1, (j.RUN_RETRYING, None, payload, 1), S1)) == found


def test_a_completion_that_comes_twice_is_found() -> None:
    assert "I2" in rules(journal(CREATED, STARTED, S1, C1, C1))


def test_an_empty_a_headless_and_an_unreadable_journal_are_found() -> None:
    assert rules([]) == ["I8"]
    assert rules(journal(STARTED)) == ["I8"]
    assert rules(journal(CREATED, (j.STATUS_SET, None, '{"text":', 0))) == ["I8"]


def test_findings_print_as_lines() -> None:
    assert report(check_journal("r", [])) == "I8 r: the journal is empty, although the run exists"
    assert report([]) == ""
