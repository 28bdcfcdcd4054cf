"""Lanes: never more in one than its limit, whoever asks, and who is next when a place is given up."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from tests.store.build import activate, answer, answers, create, leave, peek_one, recovered, start
from tests.store.conftest import Open

from ironflow.errors import InvalidTransition
from ironflow.model import journal as j
from ironflow.model.capacity import LeaseRow
from ironflow.model.journal import Event
from ironflow.model.transition import APPLIED, GUARD_LOCKED, LOST, Locked, Transition
from ironflow.store.base import Store
from ironflow.store.guards import LOOKS
from ironflow.store.postgres_lanes import LaneKeeper

LIMITS = '[{"group":"g","limit":1}]'


def in_lane(change: Transition, *lanes: tuple[str, int]) -> Transition:
    """A new run with a place in these lanes."""
    assert change.row is not None
    change.row.limits = LIMITS
    change.lanes = lanes
    return change


async def statuses(store: Store) -> dict[str, tuple[str, Any]]:
    return {row.run_id: (row.status, row.blocked_lane) for row in await store.queue()}


async def test_a_full_lane_blocks_the_next_and_a_release_lets_it_through(store: Store) -> None:
    await answers(store, *[in_lane(create(f"r{n}"), ("g", 1)) for n in range(3)])
    heads = await store.peek(["order"], 9)
    assert [await answer(store, activate(head, 2)) for head in heads] == [APPLIED, LOST, LOST]
    assert await statuses(store) == {"r1": ("blocked", "g"), "r2": ("blocked", "g")}
    assert await store.peek(["order"], 9) == []

    assert await answer(store, leave("r0", 3, "completed", token="token2")) == APPLIED
    assert await statuses(store) == {"r1": ("ready", None), "r2": ("blocked", "g")}
    assert await answer(store, activate(await peek_one(store), 2)) == APPLIED


async def test_claims_in_one_batch_do_not_share_the_last_place(store: Store) -> None:
    await answers(store, *[in_lane(create(f"r{n}"), ("g", 2)) for n in range(5)])
    heads = await store.peek(["order"], 9)
    found = await answers(store, *[activate(head, 2) for head in heads])
    assert sorted(found) == [APPLIED, APPLIED, LOST, LOST, LOST]
    assert len(await store.leases()) == 2


async def test_the_next_in_line_is_the_one_with_the_highest_priority_then_the_oldest(store: Store) -> None:
    await answer(store, in_lane(create("holder", priority=9), ("g", 1)))
    for name, priority in (("1-old", 0), ("2-new", 0), ("urgent", 5)):
        await answer(store, in_lane(create(name, priority=priority), ("g", 1)))
    heads = await store.peek(["order"], 9)
    assert [await answer(store, activate(head, 2)) for head in heads] == [APPLIED, LOST, LOST, LOST]
    served = []
    for name in ("holder", "urgent", "1-old"):
        await answer(store, leave(name, 3, "completed", token="token2"))
        head = await peek_one(store)
        served.append(head.run_id)
        assert await answer(store, activate(head, 2)) == APPLIED
    assert served == ["urgent", "1-old", "2-new"]


async def test_each_run_is_held_to_its_own_limit(store: Store) -> None:
    await answers(store, in_lane(create("a"), ("g", 1)), in_lane(create("b"), ("g", 3)), in_lane(create("c"), ("g", 1)))
    heads = {head.run_id: head for head in await store.peek(["order"], 9)}
    assert await answer(store, activate(heads["a"], 2)) == APPLIED
    assert await answer(store, activate(heads["b"], 2)) == APPLIED
    assert await answer(store, activate(heads["c"], 2)) == LOST


async def test_a_run_needs_a_place_in_each_of_its_lanes(store: Store) -> None:
    await answer(store, in_lane(start("holder", token="token2"), ("h", 1)))
    await answer(store, in_lane(create("both"), ("g", 1), ("h", 1)))
    assert await answer(store, activate(await peek_one(store), 2)) == LOST
    assert await statuses(store) == {"both": ("blocked", "h")}
    assert await answer(store, in_lane(start("other"), ("g", 1))) == APPLIED, "a refused run takes no place"


async def test_a_direct_start_into_a_full_lane_is_lost_and_leaves_nothing(store: Store) -> None:
    assert await answer(store, in_lane(start("r1"), ("g", 1))) == APPLIED
    assert await answer(store, in_lane(start("r2"), ("g", 1))) == LOST
    assert await store.run("r2") is None
    assert await answer(store, in_lane(create("r2"), ("g", 1))) == APPLIED


async def test_a_reservation_takes_a_place_and_gives_it_back(store: Store) -> None:
    await answers(store, *[in_lane(create(f"r{n}"), ("g", 1)) for n in range(3)], create("free"))
    reserved = await store.reserve(["order"], 9, "s1", 60_000)
    assert sorted(head.run_id for head in reserved) == ["free", "r0"]
    assert await statuses(store) == {
        "r0": ("reserved", None), "free": ("reserved", None), "r1": ("blocked", "g"), "r2": ("blocked", "g"),
    }  # fmt: skip
    (lane,) = await store.lanes()
    assert lane == {"lane": "g", "lane_limit": 1, "executing": 0, "reserved": 1, "blocked": 2}
    mine = next(head for head in reserved if head.run_id == "r0")
    await store.unreserve([("r0", str(mine.reservation))])
    status = await statuses(store)
    assert [status[run_id][0] for run_id in ("r0", "r1", "r2")] == ["ready", "ready", "blocked"]
    assert len(await store.reserve(["order"], 9, "s1", 60_000)) == 1, "two are ready; the lane has one place"


async def test_a_reserved_run_may_start_in_the_place_it_reserved(store: Store) -> None:
    await answer(store, in_lane(create("r1"), ("g", 1)))
    (head,) = await store.reserve(["order"], 1, "s1", 60_000)
    assert await answer(store, activate(head, 2)) == APPLIED


async def test_an_expired_reservation_holds_no_place(store: Store) -> None:
    await answers(store, in_lane(create("r1"), ("g", 1)), in_lane(create("r2"), ("g", 1)))
    (one,) = await store.reserve(["order"], 1, "s1", -1)
    assert one.run_id == "r1"
    assert await answer(store, activate(await peek_one(store), 2)) == APPLIED


async def test_a_recovery_gives_the_place_up_and_the_lane_stays_within_its_limit(store: Store) -> None:
    await answers(store, *[in_lane(create(f"r{n}"), ("g", 1)) for n in range(2)])
    heads = await store.peek(["order"], 9)
    assert [await answer(store, activate(head, 2)) for head in heads] == [APPLIED, LOST]
    await store.decide(["r0"], recovered)
    found = [await answer(store, activate(head, 9)) for head in await store.peek(["order"], 9)]
    assert sorted(found) == [APPLIED, LOST]
    assert len(await store.leases()) == 1


async def test_the_tick_lets_through_what_a_lost_release_left_blocked(store: Store) -> None:
    await answers(store, *[in_lane(create(f"r{n}"), ("g", 1)) for n in range(2)])
    (one,) = await store.reserve(["order"], 1, "s1", -1)  # expires at once, and nobody gives it back
    heads = await store.peek(["order"], 9)
    assert [head.run_id for head in heads] == ["r1"]
    await answer(store, activate(heads[0], 2))
    assert await answer(store, activate(one, 2)) == LOST
    assert await statuses(store) == {"r0": ("blocked", "g")}
    assert await store.promote() == 0, "the lane is full"
    await answer(store, leave("r1", 3, "completed", token="token2"))
    assert (await statuses(store))["r0"][0] == "ready"


def taken_over(locked: Locked) -> Transition:
    """A decision that gives a queued run to a session at once."""
    run_id, seq = locked.row.run_id, locked.row.execution_seq + 1
    change = Transition(run_id, GUARD_LOCKED)
    change.state, change.new_execution_seq, change.new_token_hash, change.dequeue = "running", seq, "token3", True
    change.lease = LeaseRow(run_id, seq, "token3", "s1", 0, 60_000)
    change.events = [Event(0, j.RUN_STARTED)]
    return change


async def test_a_decision_that_takes_a_place_is_refused_while_its_lane_is_full(store: Store) -> None:
    await answers(store, in_lane(start("holder"), ("g", 1)), in_lane(create("r1"), ("g", 1)))
    assert isinstance((await store.decide(["r1"], taken_over))["r1"], InvalidTransition)
    assert await statuses(store) == {"r1": ("blocked", "g")}
    await answer(store, leave("holder", 4, "completed"))
    assert isinstance((await store.decide(["r1"], taken_over))["r1"], Transition)
    assert [lease.run_id for lease in await store.leases()] == ["r1"]


async def test_what_the_database_says_while_a_decision_asks_for_a_place_is_no_refusal(
    postgres_url: str, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock is tried again, as everywhere; it must not pass for the answer of the run."""
    store, tries = await open_store(postgres_url), 0
    await answer(store, in_lane(create("r1"), ("g", 1)))
    refuse = LaneKeeper.refuse

    async def deadlocked(self: LaneKeeper, *asked: Any) -> set[str]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise asyncpg.DeadlockDetectedError("deadlock detected")
        return await refuse(self, *asked)

    monkeypatch.setattr(LaneKeeper, "refuse", deadlocked)
    assert isinstance((await store.decide(["r1"], taken_over))["r1"], Transition)
    assert tries == 2


async def test_runs_without_lanes_are_not_held_up_by_full_ones(store: Store) -> None:
    await answers(store, in_lane(start("r1"), ("g", 1)), start("r2"), start("r3"))
    assert len(await store.leases()) == 3


async def test_a_reservation_does_not_work_through_the_backlog_of_a_full_lane(store: Store) -> None:
    count = LOOKS * 100 + 200
    await answer(store, in_lane(start("holder"), ("g", 1)))
    await answers(store, *[in_lane(create(f"r{n:04}"), ("g", 1)) for n in range(count)])
    await answer(store, create("z-free", priority=-1))
    assert await store.reserve(["order"], 2, "s1", 60_000) == []
    put_aside = [status for status, _ in (await statuses(store)).values()].count("blocked")
    assert put_aside == 2 + (LOOKS - 1) * 100, "a bounded number of pages, of which all but the first are wide"
    found = await store.reserve(["order"], 2, "s1", 60_000)
    assert [head.run_id for head in found] == ["z-free"], "the next look begins where this one ended"


async def test_a_wide_look_reserves_no_more_than_it_was_asked_for(store: Store) -> None:
    await answer(store, in_lane(start("holder"), ("g", 1)))
    await answers(store, *[in_lane(create(f"a{n}"), ("g", 1)) for n in range(2)])
    await answers(store, *[in_lane(create(f"b{n}", priority=-1), ("h", 9)) for n in range(5)])
    found = await store.reserve(["order"], 2, "s1", 60_000)
    assert [head.run_id for head in found] == ["b0", "b1"]
    status = await statuses(store)
    assert {status[f"b{n}"] for n in (2, 3, 4)} == {("ready", None)}


async def test_of_two_that_wait_equally_the_one_with_the_lower_id_goes_first(store: Store) -> None:
    await answer(store, in_lane(start("holder"), ("g", 1)))
    for name in ("b", "c", "a"):
        change = in_lane(create(name), ("g", 1))
        assert change.enqueue is not None
        change.enqueue.enqueued_at = 1_000
        await answer(store, change)
    heads = await store.peek(["order"], 9)
    assert await answers(store, *[activate(head, 2) for head in heads]) == [LOST] * 3
    await answer(store, leave("holder", 4, "completed"))
    assert (await peek_one(store)).run_id == "a"


@pytest.mark.parametrize("limit", [1, 3])
async def test_two_nodes_that_race_never_over_admit(store: Store, store_url: str, open_store: Open, limit: int) -> None:
    other = await open_store(store_url)
    count = 40
    await answers(store, *[in_lane(create(f"r{n:02}"), ("g", limit)) for n in range(count)])
    worst = 0
    done: set[str] = set()

    async def node(one: Store, name: str) -> None:
        nonlocal worst
        one.concurrent_writers = 4
        for _ in range(400):
            if len(done) == count:
                return
            heads = await one.peek(["order"], 4)
            found = await asyncio.gather(*[answer(one, activate(head, 2, session=name)) for head in heads])
            worst = max(worst, len(await one.leases()))
            taken = [head.run_id for head, word in zip(heads, found, strict=True) if word == APPLIED]
            for run_id in taken:
                assert await answer(one, leave(run_id, 3, "completed", token="token2")) == APPLIED
                done.add(run_id)
            if not heads:
                await one.promote()

    await asyncio.gather(node(store, "s1"), node(other, "s2"))
    assert worst <= limit
    assert len(done) == count, "and nothing was left behind"
    assert await store.lanes() == []
