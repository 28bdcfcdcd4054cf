"""A paused run waits for its person: whatever else would be the matter with it, no sweep takes it up."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recovery.kit import audits, quick, row, scanner
from tests.store.build import activate, answer, create, leave, peek_one, timer

from ironflow.engine import commands
from ironflow.loops.stale_claims import StaleClaims
from ironflow.loops.waker import Waker
from ironflow.model import recovery
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
