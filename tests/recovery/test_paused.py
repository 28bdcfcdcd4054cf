"""A paused run waits for its person: whatever else would be the matter with it, no sweep takes it up."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recovery.kit import audits, quick, row, scanner
from tests.store.build import HOUR, activate, answer, create, due_at_once, leave, peek_one, timer

from ironflow.engine import commands
from ironflow.engine.doctor import examine
from ironflow.loops.stale_claims import StaleClaims
from ironflow.loops.waker import Waker
from ironflow.model import recovery
from ironflow.model.capacity import QueueRow
from ironflow.model.transition import APPLIED, Locked, Transition
from ironflow.store.base import Store

#: When the run began, when it was to end, and when it was to wake, ms since 1970.
LONG_AGO = 1_000


async def neglected(store: Store, was: str, compensations: int = 0) -> None:
    """A run in this state that began long ago, and whose own deadline is long over."""
    begun = create("r1", started_at=LONG_AGO, deadline_at=LONG_AGO, compensations=compensations)
    assert await answer(store, begun) == APPLIED
    if was != "pending":
        assert await answer(store, activate(await peek_one(store), 2, token="token")) == APPLIED
    if was == "sleeping":
        assert await answer(store, leave("r1", 3, was, waits=[timer("r1", LONG_AGO)])) == APPLIED
    assert (await row(store)).started_at == LONG_AGO


async def everything(store: Store) -> Any:
    """All there is of the run."""
    journal = [repr(event) for event in await store.journal("r1")]
    return await row(store), journal, await store.waits("r1"), await store.queue(), await audits(store)


async def judged(store: Store) -> list[Transition | None]:
    """What the sweeps would do with the run if they met it."""
    verdicts: list[Transition | None] = []

    def look(locked: Locked) -> None:
        policy = recovery.RecoveryPolicy()
        verdicts.append(recovery.unowned(locked, policy, locked.now))
        verdicts.append(recovery.overdue(locked, locked.now))
        verdicts.append(recovery.expired_lease(locked, policy))
        verdicts.append(recovery.expired_reservation(locked))

    await store.decide(["r1"], look)
    return verdicts


@pytest.mark.parametrize("compensations", [0, 2])
@pytest.mark.parametrize("was", ["running", "sleeping", "pending"])
async def test_r33_no_sweep_ever_touches_a_paused_run(store: Store, was: str, compensations: int) -> None:
    await neglected(store, was, compensations)
    assert await commands.pause(store, "r1", "me")
    before = await everything(store)
    assert (before[0].state, before[0].deadline_at, before[0].started_at) == ("paused", LONG_AGO, LONG_AGO)
    eye = await scanner(store)
    for _ in range(3):
        assert (await eye.run_once()).counts == {}
        assert (await Waker(store, "node").run_once()).counts == {}
        assert (await StaleClaims(store, quick()).run_once()).counts == {}
    assert (await store.unowned(store.now(), 10)).run_ids == []
    assert await store.overdue(store.now(), 10) == []
    assert await judged(store) == [None] * 4
    assert await everything(store) == before


async def test_r33_as_soon_as_it_is_resumed_the_sweeps_take_it_up_again(store: Store) -> None:
    """What they were to overlook above is really there to be found."""
    await neglected(store, "sleeping")
    await commands.pause(store, "r1", "me")
    await commands.resume(store, "r1", "me")
    assert await store.overdue(store.now(), 10) == ["r1"]
    assert (await (await scanner(store)).run_once()).counts == {"overdue": 1}
    assert (await row(store)).state == "failed"


async def backing_off(store: Store, due: int) -> None:
    """A run whose attempt failed, and whose next one is due then."""
    assert await answer(store, create("r1")) == APPLIED
    assert await answer(store, activate(await peek_one(store), 2, token="token")) == APPLIED
    change = leave("r1", 3, "retrying")
    change.enqueue = QueueRow("r1", "order", 0, 0, due, 1)
    assert await answer(store, change) == APPLIED


@pytest.mark.parametrize("was", ["retrying", "pending"])
async def test_no_pause_is_a_short_cut_to_what_is_not_due_yet(store: Store, was: str) -> None:
    """An attempt after its back-off, and a run that starts later: each waits for the rest of its own time."""
    due = store.now() + HOUR
    if was == "retrying":
        await backing_off(store, due)
    else:
        assert await answer(store, create("r1", scheduled_at=due, eligible_at=due)) == APPLIED
    [before] = await store.queue()
    assert (before.status, before.eligible_at) == ("delayed", due)
    for _ in range(2):
        assert await commands.pause(store, "r1", "me")
        assert await store.queue() == []
        assert (await Waker(store, "node").run_once()).counts == {}
        assert await commands.resume(store, "r1", "me")
        [after] = await store.queue()
        assert ((await row(store)).state, after.status, after.eligible_at) == (was, "delayed", due)
        assert await store.waits("r1") == []
        await store.promote()
        assert await store.peek(["order"], 10) == []
    assert await examine(store, health=False) == []


async def test_a_back_off_that_is_over_by_then_makes_nobody_wait(store: Store) -> None:
    due = store.now() + HOUR
    await backing_off(store, due)
    assert await commands.pause(store, "r1", "me")
    await store.decide(["r1"], due_at_once)
    assert await commands.resume(store, "r1", "me")
    assert ((await row(store)).state, (await peek_one(store)).run_id) == ("retrying", "r1")


async def test_a_run_that_is_cancelled_or_opened_again_behind_a_pause_forgets_its_back_off(store: Store) -> None:
    await backing_off(store, store.now() + HOUR)
    assert await commands.pause(store, "r1", "me")
    assert await commands.cancel(store, "r1", "me")
    assert await store.waits("r1") == []
    assert await commands.retry(store, "r1", "me")
    assert (await peek_one(store)).run_id == "r1"
