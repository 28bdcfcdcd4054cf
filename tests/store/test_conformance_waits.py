"""Waits: due ones are found, claimed by one node, and put back by the sweep alone."""

from __future__ import annotations

import asyncio

from tests.store.build import HOUR, answer, answers, changed, leave, start, timer, wake
from tests.store.conftest import Open

from ironflow.model.capacity import QueueRow
from ironflow.model.transition import APPLIED, Locked, Transition
from ironflow.store.base import Store


async def asleep(store: Store, run_id: str, *dues: int, status: str = "sleeping", **row: object) -> None:
    """A run that left to wait; `dues` are the due times of its timers."""
    await answer(store, start(run_id, **row))  # type: ignore[arg-type]
    waits = [timer(run_id, due, step_id=f"0:t{n}", status=status) for n, due in enumerate(dues, 1)]
    assert await answer(store, leave(run_id, 4, "sleeping", waits=waits)) == APPLIED


async def test_due_runs_come_earliest_first_and_once(store: Store) -> None:
    await asleep(store, "a", 300, 100)
    await asleep(store, "b", 200, status="retry_backoff")
    await asleep(store, "c", store.now() + HOUR)
    await asleep(store, "d", 150, route="elsewhere")
    assert [head.run_id for head in await store.due(10, ["order"])] == ["a", "b"]
    assert [head.run_id for head in await store.due(1, ["order"])] == ["a"]
    assert [head.run_id for head in await store.due(10, ["order", "elsewhere"])] == ["a", "d", "b"]


async def test_due_shows_no_run_that_is_paused_or_that_has_to_queue(store: Store) -> None:
    await asleep(store, "a", 100)
    await asleep(store, "b", 100, limits='[{"group":"g","limit":1}]')
    await asleep(store, "c", 100)
    await store.decide(["a"], changed(state="paused"))
    assert [head.run_id for head in await store.due(10, ["order"])] == ["c"]
    await store.pause_workflow("order", "ann")
    assert await store.due(10, ["order"]) == []


async def test_a_claim_marks_the_wait_and_remembers_what_it_was(store: Store) -> None:
    await asleep(store, "a", 300)
    await asleep(store, "b", 200, status="retry_backoff")
    before = store.now()
    claimed = await store.claim_waits("node-1", 10)
    assert [(wait.run_id, wait.status, wait.pre_claim_status) for wait in claimed] == [
        ("b", "waking", "retry_backoff"),
        ("a", "waking", "sleeping"),
    ]
    assert all(wait.claimed_by == "node-1" and (wait.claimed_at or 0) >= before for wait in claimed)
    assert await store.waits("a") == [claimed[1]]
    assert await store.claim_waits("node-2", 10) == []
    assert await store.due(10, ["order"]) == []


async def test_a_claim_is_bounded_and_takes_the_earliest(store: Store) -> None:
    for n in range(5):
        await asleep(store, f"r{n}", 500 - n)
    first = await store.claim_waits("node-1", 2)
    assert [wait.run_id for wait in first] == ["r4", "r3"]
    assert [wait.run_id for wait in await store.claim_waits("node-1", 9)] == ["r2", "r1", "r0"]


async def test_each_due_wait_is_claimed_by_exactly_one_of_two_nodes(
    store: Store, store_url: str, open_store: Open
) -> None:
    other = await open_store(store_url)
    for n in range(40):
        await asleep(store, f"r{n:02}", 100 + n)
    rounds = [node.claim_waits(f"n{k}", 7) for k in range(8) for node in (store, other)]
    claimed = [wait.run_id for found in await asyncio.gather(*rounds) for wait in found]
    assert sorted(claimed) == [f"r{n:02}" for n in range(40)]


async def test_a_claim_leaves_runs_alone_that_are_queued_or_executing(store: Store) -> None:
    await asleep(store, "a", 100)
    await asleep(store, "b", 100)

    def queue(locked: Locked) -> Transition:
        change = Transition(locked.row.run_id, "locked")
        change.enqueue = QueueRow(locked.row.run_id, "order", 0, 0, locked.now, 1)
        return change

    await store.decide(["a"], queue)
    assert [wait.run_id for wait in await store.claim_waits("node-1", 10)] == ["b"]


async def test_stale_claims_are_those_that_nothing_holds(store: Store) -> None:
    for run_id in ("a", "b", "c"):
        await asleep(store, run_id, 100)
    heads = {head.run_id: head for head in await store.due(10, ["order"])}
    await store.claim_waits("node-1", 10)
    later = store.now() + HOUR
    assert await store.stale_claims(later, 10) == ["a", "b", "c"]
    assert await store.stale_claims(later, 2) == ["a", "b"]
    assert await store.stale_claims(1, 10) == [], "not old enough"

    change = wake(heads["b"], 5)
    change.clear_waits = False  # the row is left `waking`, beside a lease
    assert await answer(store, change) == APPLIED

    def queue(locked: Locked) -> Transition:
        change = Transition(locked.row.run_id, "locked")
        change.enqueue = QueueRow(locked.row.run_id, "order", 0, 0, locked.now + HOUR, 1)
        return change

    await store.decide(["c"], queue)
    assert await store.stale_claims(later, 10) == ["a"]


async def test_a_stale_claim_is_put_back_to_what_it_was(store: Store) -> None:
    await asleep(store, "a", 100, status="retry_backoff")
    (claimed,) = await store.claim_waits("node-1", 10)

    def reset(locked: Locked) -> Transition:
        change = Transition(locked.row.run_id, "locked")
        change.waits = [timer("a", claimed.due_at or 0, step_id=claimed.step_id, status="retry_backoff")]
        return change

    await store.decide(["a"], reset)
    (wait,) = await store.waits("a")
    assert (wait.status, wait.pre_claim_status, wait.claimed_by, wait.claimed_at) == (
        "retry_backoff",
        None,
        None,
        None,
    )
    assert [head.run_id for head in await store.due(10, ["order"])] == ["a"]


async def test_a_wait_for_something_that_is_not_time_is_never_due(store: Store) -> None:
    await answers(store, start("a"))
    wait = timer("a", 0, status="waiting")
    wait.due_at = None
    await answer(store, leave("a", 4, "waiting", waits=[wait]))
    assert await store.due(10, ["order"]) == []
    assert await store.claim_waits("n", 10) == []
    assert await store.next_due() is None
