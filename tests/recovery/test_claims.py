"""Waking on both databases: one node claims, one hands on, and what a dead node left goes back."""

from __future__ import annotations

import asyncio
import secrets
import sys
from asyncio.subprocess import PIPE
from typing import Any

import pytest
from tests.recovery.kit import EXPIRED, quick, until
from tests.store.build import HOUR, answer, answers, create, leave, start, timer
from tests.store.conftest import Open

from ironflow.loops import waker
from ironflow.loops.stale_claims import StaleClaims
from ironflow.loops.waker import Waker
from ironflow.model import claim
from ironflow.model.transition import Locked
from ironflow.model.wait import WaitRow
from ironflow.store.base import Store

#: Every claim is older than this, once the clock has moved: a threshold in the future.
AT_ONCE = -HOUR
#: A node that claims a wait and comes no further.
CLAIM = """
import asyncio, sys
from ironflow.store import connect
async def main(url, name):
    store = await connect(url)
    await store.listen(print, name)
    assert len(await store.claim_waits(name, 1)) == 1
    print("claimed", flush=True)
    await asyncio.sleep(3600)
asyncio.run(main(*sys.argv[1:]))
"""
#: No claim is ever older than this.
PATIENT = quick(stale_claim_threshold_ms=HOUR)


def new_name() -> str:
    """Of a node; what a killed one leaves behind must not meet another test."""
    return f"node-{secrets.token_hex(6)}"


class Sweep(StaleClaims):
    """A sweep to which every claim is stale."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, quick())
        object.__setattr__(self.settings, "stale_claim_threshold_ms", AT_ONCE)


async def suspended(store: Store, *waits: WaitRow, run_id: str = "r1", state: str = "sleeping") -> None:
    await answer(store, start(run_id))
    await answer(store, leave(run_id, 4, state, waits=waits))


async def test_g20_a_due_sleep_is_claimed_by_exactly_one_node(store: Store, open_store: Open, store_url: str) -> None:
    other = await open_store(store_url)
    for n in range(8):
        await suspended(store, timer(f"r{n}", 1), run_id=f"r{n}")
    claims = await asyncio.gather(store.claim_waits("one", 100), other.claim_waits("two", 100))
    assert sorted(wait.run_id for claimed in claims for wait in claimed) == [f"r{n}" for n in range(8)]
    for claimed, node in zip(claims, ("one", "two"), strict=True):
        assert {(w.status, w.claimed_by, w.pre_claim_status) for w in claimed} <= {("waking", node, "sleeping")}
        assert all(wait.claimed_at for wait in claimed)


async def test_r26_a_due_run_is_woken_once_with_several_wakers_running(
    store: Store, open_store: Open, store_url: str
) -> None:
    other = await open_store(store_url)
    for n in range(8):
        await suspended(store, timer(f"r{n}", 1), run_id=f"r{n}")
    reports = await asyncio.gather(Waker(store, "one").run_once(), Waker(other, "two").run_once())
    assert sum(report.counts.get("woken", 0) for report in reports) == 8
    assert sorted(queued.run_id for queued in await store.queue()) == [f"r{n}" for n in range(8)]
    assert {(await store.run(f"r{n}")).execution_seq for n in range(8)} == {1}  # type: ignore[union-attr]


async def test_a_waker_beside_a_worker_that_drains_a_herd_claims_one_batch_and_leaves_it_the_rest(store: Store) -> None:
    for n in range(waker.BATCH + 1):
        await suspended(store, timer(f"r{n}", 1), run_id=f"r{n}")
    draining = True
    waking = Waker(store, "one", lambda: draining)
    first = await waking.run_once()
    assert (first.counts, first.more) == ({"woken": waker.BATCH}, False)
    draining = False
    await suspended(store, *[timer("late", 1, step_id=f"{n}:t") for n in range(waker.BATCH)], run_id="late")
    assert (await waking.run_once()).more


async def test_a_waker_comes_back_at_once_while_there_are_full_pages_of_delayed_segments(
    store_url: str, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waker, "PROMOTED", 2)
    clock = [1_000]
    store = await open_store(store_url, clock=lambda: clock[0])
    await answers(store, *[create(f"r{n}", eligible_at=5_000) for n in range(3)])
    clock[0] = 5_000
    waking = Waker(store, "one")
    passes = [await waking.run_once() for _ in range(2)]
    assert [(report.counts, report.more) for report in passes] == [({"promoted": 2}, True), ({"promoted": 1}, False)]


async def test_g21_a_claim_that_is_older_than_the_threshold_goes_back_with_its_fields_null(store: Store) -> None:
    stuck = new_name()
    await store.listen(print, stuck)
    await suspended(store, timer("r1", 1))
    assert len(await store.claim_waits(stuck, 10)) == 1
    assert (await StaleClaims(store, PATIENT).run_once()).counts == {}
    assert (await Sweep(store).run_once()).counts == {"reset": 1}
    (wait,) = await store.waits("r1")
    assert (wait.status, wait.pre_claim_status, wait.claimed_by, wait.claimed_at) == ("sleeping", None, None, None)
    assert len(await store.claim_waits("alive", 10)) == 1


async def test_g21_a_claim_whose_node_was_killed_goes_back_at_once(store: Store, store_url: str) -> None:
    """No threshold passes here: it is known that nobody listens under that name any more."""
    alive, dead = new_name(), new_name()
    await store.listen(print, alive)
    for n in range(2):
        await suspended(store, timer(f"r{n}", 1), run_id=f"r{n}")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLAIM, store_url, dead, stdout=PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"claimed\n"
        assert len(await store.claim_waits(alive, 2)) == 1
        assert await store.gone_claimers() == frozenset()
        assert (await StaleClaims(store, PATIENT).run_once()).counts == {}
    finally:
        process.kill()
        await process.wait()
    await until(lambda: _gone(store, {dead}))
    assert (await StaleClaims(store, PATIENT).run_once()).counts == {"reset": 1}
    left = [wait for n in range(2) for wait in await store.waits(f"r{n}")]
    assert sorted((wait.status, wait.claimed_by) for wait in left) == [("sleeping", None), ("waking", alive)]
    assert (await Waker(store, alive).run_once()).counts == {"woken": 1}


async def _gone(store: Store, names: set[str]) -> bool:
    return await store.gone_claimers() == names


async def test_a_node_that_was_taken_for_dead_hands_nothing_off_twice(
    store: Store, open_store: Open, store_url: str
) -> None:
    """It claimed, others put the claim back and wake the run, and only then does it come to its hand-off."""
    other, slow = new_name(), new_name()
    await store.listen(print, other)
    await suspended(store, timer("r1", 1))
    late = await open_store(store_url)
    claim_waits = late.claim_waits

    async def claim_and_be_overtaken(node: str, limit: int) -> Any:
        found = await claim_waits(node, limit)
        assert (await StaleClaims(store, PATIENT).run_once()).counts == {"reset": 1}
        assert (await Waker(store, other).run_once()).counts == {"woken": 1}
        return found

    late.claim_waits = claim_and_be_overtaken  # type: ignore[method-assign]
    assert (await Waker(late, slow).run_once()).counts == {}
    assert [queued.run_id for queued in await store.queue()] == ["r1"]


async def test_g23_each_wait_goes_back_to_the_status_it_was_claimed_from(store: Store) -> None:
    waits = [
        timer("r1", 1, step_id="0:t1"),
        timer("r1", 1, step_id="1:event", status="waiting"),
        timer("r1", 1, step_id="2:later", status="retry_backoff"),
        timer("r1", HOUR * 10**6, step_id="3:far"),
    ]
    await suspended(store, *waits)
    assert len(await store.claim_waits("dead", 10)) == 3
    await Sweep(store).run_once()
    assert [wait.status for wait in await store.waits("r1")] == ["sleeping", "waiting", "retry_backoff", "sleeping"]


async def test_g22_a_run_with_a_lease_or_a_queue_row_is_none_of_the_sweeps_business(store: Store) -> None:
    claimed = timer("", 1, status="waking")
    for run_id, change in (("owned", start("owned", ttl=EXPIRED)), ("graced", create("graced", eligible_at=1 << 50))):
        wait = WaitRow(run_id, claimed.step_id, claimed.kind, "waking", 1, "sleeping", "dead", 1)
        change.waits = [wait]
        await answers(store, change)
    assert await store.stale_claims(1 << 50, 10) == []
    assert (await Sweep(store).run_once()).counts == {}
    met = await store.decide(["owned", "graced"], lambda locked: claim.stale(locked, 1 << 50))
    assert met == {"owned": None, "graced": None}, "nor is one that was taken or queued since the look"
    for run_id in ("owned", "graced"):
        assert [wait.status for wait in await store.waits(run_id)] == ["waking"]


async def test_a_claim_that_a_defect_keeps_from_being_handed_on_is_told_of_and_stops_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(2):
        await suspended(store, timer(f"r{n}", 1), run_id=f"r{n}")
    hand_off, stale = claim.hand_off, claim.stale

    def broken(then: Any) -> Any:
        def decide(locked: Locked, *rest: Any) -> Any:
            if locked.row.run_id == "r0":
                raise KeyError("a defect")
            return then(locked, *rest)

        return decide

    monkeypatch.setattr(claim, "hand_off", broken(hand_off))
    monkeypatch.setattr(claim, "stale", broken(stale))
    assert (await Waker(store, "one").run_once()).counts == {"woken": 1, "errors": 1}
    assert (await Sweep(store).run_once()).counts == {"errors": 1}  # r0's claim is all that is left
    told = [record for record in caplog.records if "run r0 was passed over" in record.getMessage()]
    assert len(told) == 2
    assert all(record.exc_info for record in told), "where the defect is cannot be told without a traceback"
    monkeypatch.undo()
    assert (await Sweep(store).run_once()).counts == {"reset": 1}
