"""What a loss costs a run: counts, ceilings, deadlines, and the invariants that must hold around them."""

from __future__ import annotations

import asyncio

import pytest
from tests.recovery.kit import EXPIRED, audits, lose, quick, row, scanner, until
from tests.recovery.program import hold, lines, open_gate
from tests.store.build import HOUR, answer, answers, append, changed, create, leave, session, start, timer

import ironflow
from ironflow.model import journal as j
from ironflow.model import recovery
from ironflow.model.fold import fold
from ironflow.model.transition import APPLIED, Locked, Transition
from ironflow.store.base import Store

# ---- counting


async def test_g14_ten_losses_in_a_row_are_allowed_and_the_next_fails_the_run(store: Store) -> None:
    await answer(store, start("r1", ttl=EXPIRED))
    eye = await scanner(store)
    for number in range(10):
        assert (await eye.run_once()).counts == {"recovered": 1}, number
        await lose(store, seq=5 + 2 * number)
    assert (await eye.run_once()).counts == {"failed": 1}
    found = await row(store)
    assert (found.state, found.reason, found.lease_recoveries) == ("failed", "EXECUTION_RECOVERY_EXHAUSTED", 11)
    view = fold(await store.journal("r1"))
    assert view.error is not None
    assert view.error["code"] == "EXECUTION_RECOVERY_EXHAUSTED"
    assert view.breaches == []
    assert (await store.queue(), await store.leases()) == ([], [])


async def test_g15_a_step_that_completes_starts_the_count_again(store: Store) -> None:
    await answer(store, start("r1", ttl=EXPIRED))
    eye = await scanner(store)
    await eye.run_once()
    await lose(store, seq=5)
    done = append("r1", 6, fence=3, token="token2")
    done.progress = True
    assert await answer(store, done) == APPLIED
    found = await row(store)
    assert (found.consecutive_recoveries, found.charged_recoveries, found.lease_recoveries) == (0, 0, 1)
    await eye.run_once()
    assert (await row(store)).consecutive_recoveries == 1


@ironflow.workflow
async def three_holds(ctx: ironflow.Context, name: str) -> list[str]:
    return [await hold(f"{name}-{n}") for n in range(3)]


@pytest.mark.usefixtures("folder")
async def test_g15_a_run_that_gets_on_between_its_losses_never_comes_to_the_ceiling(store_url: str) -> None:
    """One loss in a row is allowed, and each of its steps costs it one."""

    def lost(locked: Locked) -> Transition:
        change = recovery.requeue(locked, recovery.RecoveryPolicy(ceiling=1), charged=True, reason=recovery.GONE)
        change.release = True
        return change

    async with ironflow.open(store_url, workflows=[three_holds], settings=quick(lease_ttl_ms=20_000)) as engine:
        run = await engine.start(three_holds, "x")
        for n in range(3):
            await until(lambda n=n: lines(f"x-{n}"))
            assert (await row(engine.store, run.id)).consecutive_recoveries == 0
            await engine.store.decide([run.id], lost)
            await until(lambda n=n: _owned_again(engine, run.id, n + 1))
            assert (await row(engine.store, run.id)).consecutive_recoveries == 1
            open_gate(f"x-{n}")
        assert await run.result(timeout=20) == ["x-0", "x-1", "x-2"]
        found = await row(engine.store, run.id)
        assert (found.lease_recoveries, found.consecutive_recoveries, found.charged_recoveries) == (3, 0, 0)


async def _owned_again(engine: ironflow.Engine, run_id: str, losses: int) -> bool:
    assert engine.worker is not None
    engine.worker.dispatcher.told()
    found = await row(engine.store, run_id)
    return (found.state, found.lease_recoveries) == ("running", losses)


@pytest.mark.parametrize("allowed", [0, 2])
async def test_r6_r7_one_more_lost_lease_than_allowed_fails_the_run_and_its_open_steps(
    store: Store, allowed: int
) -> None:
    await answer(store, start("r1", ttl=EXPIRED, max_recoveries=allowed))
    eye = await scanner(store)
    for number in range(allowed):
        assert (await eye.run_once()).counts == {"recovered": 1}
        await lose(store, seq=5 + 2 * number)
    assert (await eye.run_once()).counts == {"failed": 1}
    view = fold(await store.journal("r1"))
    assert view.error is not None
    assert view.error["message"] == "worker lease expired"
    assert [(step.state, step.error["message"]) for step in view.steps.values() if step.error] == [
        ("cancelled", "worker lease expired")
    ]


@pytest.mark.parametrize(("executing", "charged"), [(True, 1), (False, 0), (None, 1)])
async def test_a_loss_is_charged_where_something_executed_at_the_last_heartbeat_or_nobody_knows(
    store: Store, executing: bool | None, charged: int
) -> None:
    await answer(store, start("r1"))
    await store.open_session(session(store))
    if executing is not None:
        heart = store.heart()
        await asyncio.to_thread(heart.beat, "s1", 60_000, 60_000, 0, [("r1", 1, "token", executing)])
        await asyncio.to_thread(heart.close)
    await (await scanner(store)).session_died("s1")
    found = await row(store)
    assert (found.lease_recoveries, found.consecutive_recoveries, found.charged_recoveries) == (1, charged, charged)


async def test_r14_a_step_in_back_off_is_unchanged_by_a_recovery(store: Store) -> None:
    await answer(store, start("r1", ttl=EXPIRED))
    waiting = append("r1", 4)
    waiting.events[0].kind, waiting.events[0].payload = j.STEP_RETRYING, '{"attempt":1,"of":3,"due":77}'
    assert await answer(store, waiting) == APPLIED
    await (await scanner(store)).run_once()
    assert (await row(store)).lease_recoveries == 1
    step = fold(await store.journal("r1")).steps["0:a"]
    assert (step.state, step.due_at) == ("retrying", 77)
    assert [(one.number, one.state) for one in step.tries] == [(1, "retrying")]


# ---- broken invariants, deadlines, runs that kill their reader


async def test_a_run_with_neither_lease_nor_queue_row_is_queued_again_and_written_down(store: Store) -> None:
    """Orphaned runs stayed running for ever: a fault that a product of this kind shipped."""
    await answer(store, start("r1"))
    await store.decide(["r1"], drop_lease)
    await store.decide(["r1"], changed(state="running"))
    assert (await (await scanner(store, lease_ttl_ms=HOUR, session_ttl_ms=HOUR)).run_once()).counts == {}
    eye = await scanner(store, lease_ttl_ms=300)
    started = (await row(store)).started_at or 0
    await until(lambda: store.now() > started + 300)
    assert (await eye.run_once()).counts == {"breaches": 1}
    assert await audits(store) == ["capacity.segment.recovered", "invariant.unowned_run"]
    assert ((await row(store)).state, len(await store.queue())) == ("pending", 1)


async def test_a_lost_run_behind_a_page_of_live_ones_is_found_by_the_next_pass(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ironflow.store.rows.LIVE_PAGE", 2)
    await answers(store, *(start(f"r{n}") for n in range(4)))
    await store.decide(["r1", "r3"], drop_lease)
    began, eye = store.now(), await scanner(store, lease_ttl_ms=300)
    await until(lambda: store.now() > began + 300)
    passes = [await eye.run_once() for _ in range(3)]
    assert [report.counts for report in passes] == [{"breaches": 1}, {"breaches": 1}, {}]
    assert {(await row(store, name)).state for name in ("r1", "r3")} == {"pending"}


def drop_lease(locked: Locked) -> Transition:
    change = changed()(locked)
    change.release = True
    return change


async def test_a_deadline_that_passes_while_nobody_executes_the_run_ends_it(store: Store) -> None:
    await answers(
        store,
        create("late", deadline_at=1), create("early", deadline_at=store.now() + HOUR),
        create("undo", deadline_at=1, compensations=1), start("owned", deadline_at=1),
        start("asleep", deadline_at=1), start("asleep-undo", deadline_at=1, compensations=1),
    )  # fmt: skip
    for name in ("asleep", "asleep-undo"):
        await answer(store, leave(name, 4, "sleeping", waits=[timer(name, store.now() + HOUR)]))
    assert (await (await scanner(store)).run_once()).counts == {"overdue": 3}
    states = {
        name: (await row(store, name)).state for name in ("late", "early", "undo", "owned", "asleep", "asleep-undo")
    }
    assert states == {
        "late": "failed", "early": "pending", "undo": "pending", "owned": "running", "asleep": "failed",
        "asleep-undo": "pending",
    }  # fmt: skip
    view = fold(await store.journal("late"))
    assert view.error is not None
    assert (view.error["code"], view.breaches) == ("RUN_TIMEOUT", [])
    assert await store.waits("asleep") == []


async def test_a_run_that_was_being_opened_when_a_process_died_is_charged(store: Store) -> None:
    """It never got as far as a lease, so nothing else would ever count the workers it kills."""
    await answers(store, create("r1"), create("r2"))
    await store.open_session(session(store))
    eye = await scanner(store, recovery_ceiling=2)
    report = await eye.session_died("s1", ("r1", 0))
    assert report.counts == {"sessions": 1, "recovered": 1}
    found = await row(store)
    assert (found.state, found.execution_seq, found.charged_recoveries) == ("pending", 1, 1)
    assert (await row(store, "r2")).charged_recoveries == 0
    assert (await eye.session_died("s1", ("r1", 0))).run_ids == []  # the same news again
    await eye.session_died("s2", ("r1", 1))
    assert (await eye.session_died("s3", ("r1", 2))).counts == {"sessions": 1, "failed": 1}
    assert fold(await store.journal("r1")).breaches == []
