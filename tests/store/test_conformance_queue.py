"""The queue: in which order, to whom, and when."""

from __future__ import annotations

import asyncio

from tests.store.build import HOUR, activate, answer, answers, changed, create, leave, peek_one, plan_of, start, timer
from tests.store.conftest import Open

from ironflow.model.transition import APPLIED, LOST
from ironflow.store.base import Store


async def ids(store: Store, *routes: str, limit: int = 10) -> list[str]:
    return [head.run_id for head in await store.peek(routes, limit)]


async def test_the_order_is_priority_and_then_age(store: Store) -> None:
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", -3)):
        await answer(store, create(name, priority=priority))
    assert await ids(store, "order") == ["b", "a", "c", "d"]
    assert await ids(store, "order", limit=2) == ["b", "a"]


async def test_the_order_holds_across_routes(store: Store) -> None:
    for name, priority, route in (("a", 0, "x"), ("b", 5, "y"), ("c", 9, "x"), ("d", 1, "z")):
        await answer(store, create(name, priority=priority, route=route))
    assert await ids(store, "x", "y") == ["c", "b", "a"]
    assert await ids(store, "x", "y", limit=2) == ["c", "b"]
    assert await ids(store, "nobody") == []
    assert await ids(store) == []


async def test_a_head_tells_what_a_worker_needs(store: Store) -> None:
    await answer(store, create("r1", priority=3, deadline_at=77, created_at=55))
    head = await peek_one(store)
    assert (head.run_id, head.workflow, head.version, head.state, head.route) == (
        "r1",
        "order",
        "1",
        "pending",
        "order",
    )
    assert (head.execution_seq, head.facts, head.attempt, head.priority) == (0, 0, 1, 3)
    assert (head.created_at, head.deadline_at, head.reservation) == (55, 77, None)


async def test_a_peek_reserves_nothing(store: Store) -> None:
    await answer(store, create("r1"))
    assert await ids(store, "order") == await ids(store, "order") == ["r1"]


async def test_a_reserved_segment_is_shown_to_nobody_else(store: Store) -> None:
    await answers(store, create("r1"), create("r2"), create("r3"))
    mine = await store.reserve(["order"], 2, "s1", 60_000)
    theirs = await store.reserve(["order"], 2, "s2", 60_000)
    assert [head.run_id for head in mine] == ["r1", "r2"]
    assert [head.run_id for head in theirs] == ["r3"]
    assert all(head.reservation for head in [*mine, *theirs])
    assert await ids(store, "order") == []
    assert await answer(store, activate(mine[0], 2)) == APPLIED


async def test_a_reservation_that_is_given_back_can_be_taken_by_others(store: Store) -> None:
    await answers(store, create("r1"), create("r2"))
    one, two = await store.reserve(["order"], 2, "s1", 60_000)
    await store.unreserve([(one.run_id, str(one.reservation)), (two.run_id, "a wrong token")])
    assert await ids(store, "order") == ["r1"]
    assert await answer(store, activate(one, 2)) == LOST


async def test_a_session_is_told_what_it_was_promised_and_has_not_taken_and_of_nobody_elses(store: Store) -> None:
    await answers(store, *[create(f"r{n}") for n in range(5)])
    taken, given_back, open_ = await store.reserve(["order"], 3, "s1", HOUR)
    (late,) = await store.reserve(["order"], 1, "s1", -1)
    (theirs,) = await store.reserve(["order"], 1, "s2", HOUR)
    assert await answer(store, activate(taken, 2)) == APPLIED
    await store.unreserve([(given_back.run_id, str(given_back.reservation))])
    mine = sorted((head.run_id, head.reservation) for head in (open_, late))
    assert sorted(await store.reservations("s1")) == mine, "one that has run out is still in its way"
    assert await store.reservations("s2") == [(theirs.run_id, theirs.reservation)]
    assert await store.reservations("s3") == []
    await store.unreserve(await store.reservations("s1"))
    assert await store.reservations("s1") == []


async def test_what_a_session_was_promised_is_found_without_reading_a_backlog(store: Store, store_url: str) -> None:
    await asyncio.gather(*(answer(store, create(f"r{n}")) for n in range(300)))
    await store.reserve(["order"], 2, "s1", HOUR)
    assert "dispatch_queue_due" in await plan_of(store_url, "reservations", {"session_id": "s1"})


async def test_expired_reservations_are_found(store: Store) -> None:
    await answers(store, create("r1"), create("r2"))
    await store.reserve(["order"], 1, "s1", -1)
    await store.reserve(["order"], 1, "s1", HOUR)
    assert await store.expired_reservations(10) == ["r1"]


async def test_a_delayed_segment_is_promoted_when_it_is_due(store: Store) -> None:
    await answer(store, create("now", eligible_at=store.now() - 5))
    await answer(store, create("later", eligible_at=store.now() + HOUR))
    assert await ids(store, "order") == ["now"]
    assert await store.promote() == 0
    (delayed,) = [row for row in await store.queue() if row.run_id == "later"]
    assert delayed.status == "delayed"
    assert await store.next_due() == delayed.eligible_at


async def test_a_herd_of_delayed_segments_is_made_ready_a_page_at_a_time_and_the_earliest_first(
    store_url: str, open_store: Open
) -> None:
    clock = [1_000]
    store = await open_store(store_url, clock=lambda: clock[0])
    await answers(store, *[create(f"r{n}", eligible_at=9_000 - n) for n in range(5)])
    clock[0] = 9_000
    assert await store.promote(2) == 2
    assert sorted(await ids(store, "order")) == ["r3", "r4"]
    assert [await store.promote(2) for _ in range(3)] == [2, 1, 0]
    assert len(await ids(store, "order")) == 5


async def test_r38_a_paused_workflow_hands_nothing_out_and_others_go_on(store: Store) -> None:
    await answers(store, create("r1"), create("r2", workflow="other", route="other"))
    assert await store.pause_workflow("order", "ann") is True
    assert await store.pause_workflow("order", "ann") is False
    assert await ids(store, "order", "other") == ["r2"]
    assert [head.run_id for head in await store.reserve(["order", "other"], 5, "s1", 1_000)] == ["r2"]
    assert list(await store.paused_workflows()) == ["order"]
    assert await store.resume_workflow("order", "bob") is True
    assert await store.resume_workflow("order", "bob") is False
    assert await ids(store, "order") == ["r1"]
    actions = [(entry["action"], entry["actor"]) for entry in await store.audits()]
    assert sorted(actions) == [("workflow.pause", "ann"), ("workflow.resume", "bob")]


async def test_tags_are_part_of_the_route_and_the_pause_is_not(store: Store) -> None:
    await answer(store, create("r1", route="order\x1fgpu"))
    assert await ids(store, "order") == []
    assert await ids(store, "order\x1fgpu") == ["r1"]
    await store.pause_workflow("order", "ann")
    assert await ids(store, "order\x1fgpu") == []


async def test_the_next_due_time_is_the_earliest_of_queue_and_waits(store: Store) -> None:
    assert await store.next_due() is None
    now = store.now()
    await answer(store, create("late", eligible_at=now + 2 * HOUR))
    assert await store.next_due() == now + 2 * HOUR
    await answer(store, start("r1"))
    await answer(store, leave("r1", 4, "sleeping", waits=[timer("r1", now + HOUR)]))
    assert await store.next_due() == now + HOUR
    await store.decide(["r1"], changed(state="paused"))
    assert await store.next_due() == now + 2 * HOUR, "a paused sleeper wakes nobody"


async def test_the_queue_is_listed_in_order(store: Store) -> None:
    await answers(store, create("a"), create("b", priority=4))
    await answer(store, create("c", eligible_at=store.now() + HOUR))
    assert [row.run_id for row in await store.queue()] == ["b", "a", "c"]
    assert [row.run_id for row in await store.queue(limit=1)] == ["b"]
