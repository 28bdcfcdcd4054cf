"""Every guard and every answer: what is refused has written nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.journals import dense
from tests.store.build import (
    HOUR,
    activate,
    answer,
    answers,
    append,
    changed,
    create,
    leave,
    peek_one,
    recovered,
    start,
    timer,
    wake,
)

from ironflow.model.journal import Event
from ironflow.model.run import OWNED, STATES
from ironflow.model.transition import APPLIED, EXISTS, LOST, NEWS, STALE, Transition
from ironflow.store.base import Store


async def untouched(store: Store, change: Transition, expected: str) -> None:
    """Submit, and prove that a refusal left everything about its run as it was."""
    before = await everything(store, change.run_id)
    assert await answer(store, change) == expected
    assert await everything(store, change.run_id) == before


async def everything(store: Store, run_id: str) -> Any:
    journal = [repr(event) for event in await store.journal(run_id)]
    leases = [lease for lease in await store.leases() if lease.run_id == run_id]
    queue = [row for row in await store.queue() if row.run_id == run_id]
    return await store.run(run_id), journal, leases, queue, await store.waits(run_id)


async def test_a_started_run_is_running_leased_and_journaled(store: Store) -> None:
    before = store.now()
    assert await answer(store, start("r1", priority=5, labels='{"a":"b"}')) == APPLIED
    row = await store.run("r1")
    assert row is not None
    assert (row.state, row.execution_seq, row.lease_token_hash, row.priority) == ("running", 1, "token", 5)
    assert row.started_at is not None
    assert row.started_at >= before
    events = await store.journal("r1")
    assert [event.kind for event in events] == ["run_created", "run_started", "step_started"]
    assert dense(events)
    assert all(event.execution_seq == 1 and event.at == row.started_at for event in events)
    (lease,) = await store.leases()
    assert (lease.run_id, lease.token_hash, lease.session_id) == ("r1", "token", "s1")
    assert lease.expires_at - lease.acquired_at == 60_000
    assert lease.acquired_at == row.started_at


async def test_the_owner_appends(store: Store) -> None:
    await answer(store, start("r1"))
    assert await answer(store, append("r1", 4, count=2)) == APPLIED
    events = await store.journal("r1")
    assert dense(events)
    assert [event.kind for event in events][3:] == ["step_completed", "step_started"]
    assert events[-1].execution_seq == 1


@pytest.mark.parametrize(
    ("fence", "token"),
    [(0, "token"), (2, "token"), (1, "another"), (1, None)],
    ids=[
        "old execution_seq, right token",
        "future execution_seq",
        "right execution_seq, wrong token",
        "no token",
    ],
)
async def test_a_write_with_half_a_fence_is_stale(store: Store, fence: int, token: Any) -> None:
    await answer(store, start("r1"))
    await untouched(store, append("r1", 4, fence=fence, token=token), STALE)


async def test_a_write_to_a_run_that_does_not_exist_is_stale(store: Store) -> None:
    assert await answer(store, append("nobody", 4)) == STALE
    assert await store.journal("nobody") == []


@pytest.mark.parametrize("state", ["sleeping", "completed"])
async def test_whoever_has_left_owns_nothing_any_more(store: Store, state: str) -> None:
    await answer(store, start("r1"))
    assert await answer(store, leave("r1", 4, state)) == APPLIED
    await untouched(store, append("r1", 5), STALE)


@pytest.mark.parametrize("state", sorted(STATES - OWNED))
async def test_nobody_owns_a_run_in_a_state_that_has_no_owner_whatever_fence_it_shows(store: Store, state: str) -> None:
    """Today every move to such a state takes the token away, too; the guard does not rely on that."""
    await answer(store, start("r1"))
    await store.decide(["r1"], changed(state=state))
    row = await store.run("r1")
    assert row is not None
    assert (row.state, row.execution_seq, row.lease_token_hash) == (state, 1, "token")
    noting = append("r1", 4)
    noting.changes = {"status_text": "here"}
    large = append("r1", 4)
    large.events[0].payload = '{"result":"' + "x" * 100_000 + '"}'
    for change in (append("r1", 4), append("r1", 4, count=2), noting, large, leave("r1", 4, "sleeping")):
        await untouched(store, change, STALE)
    found = await answers(store, start("r2"), append("r1", 4), start("r3"))
    assert found == [APPLIED, STALE, APPLIED]


async def test_a_replaced_owner_is_stale_and_the_new_one_is_not(store: Store) -> None:
    await answer(store, start("r1"))
    await store.decide(["r1"], recovered)
    await untouched(store, append("r1", 5), STALE)
    assert await answer(store, activate(await peek_one(store), 5)) == APPLIED
    await untouched(store, append("r1", 6), STALE)
    assert await answer(store, append("r1", 6, fence=3, token="token2")) == APPLIED


async def test_a_run_without_a_lease_has_no_owner_even_with_the_right_number(store: Store) -> None:
    await answer(store, create("r1"))
    await untouched(store, append("r1", 2, fence=0, token=None), STALE)  # type: ignore[arg-type]


async def test_leaving_ends_the_lease_and_keeps_the_waits(store: Store) -> None:
    await answer(store, start("r1"))
    due = store.now() + HOUR
    assert await answer(store, leave("r1", 4, "sleeping", waits=[timer("r1", due)])) == APPLIED
    row = await store.run("r1")
    assert row is not None
    assert (row.state, row.lease_token_hash, row.ended_at) == ("sleeping", None, None)
    assert await store.leases() == []
    (wait,) = await store.waits("r1")
    assert (wait.step_id, wait.status, wait.due_at) == ("0:t1", "sleeping", due)


async def test_ending_sets_the_time_and_clears_what_was_asked(store: Store) -> None:
    await answer(store, start("r1"))
    await answer(store, leave("r1", 4, "sleeping", waits=[timer("r1", 1)]))
    (head,) = await store.due(5, ["order"])
    await answer(store, wake(head, 5))
    assert await store.waits("r1") == []
    assert await answer(store, leave("r1", 6, "completed", fence=2, token="token2")) == APPLIED
    row = await store.run("r1")
    assert row is not None
    assert row.ended
    assert row.ended_at is not None
    assert row.ended_at == (await store.journal("r1"))[-1].at


async def test_a_fact_from_outside_is_news_to_a_segment_that_leaves(store: Store) -> None:
    await answer(store, start("r1"))
    await store.decide(["r1"], changed(facts=1))
    await untouched(store, leave("r1", 4, "sleeping", facts=0), NEWS)
    assert await answer(store, append("r1", 4)) == APPLIED, "an append does not care about facts"
    assert await answer(store, leave("r1", 5, "sleeping", facts=1)) == APPLIED


async def test_a_stranger_learns_that_it_is_stale_and_not_that_there_is_news(store: Store) -> None:
    await answer(store, start("r1"))
    await store.decide(["r1"], changed(facts=1))
    await untouched(store, leave("r1", 4, "sleeping", facts=0, token="another"), STALE)


async def test_two_workers_that_peeked_the_same_run_make_one_segment(store: Store) -> None:
    await answer(store, create("r1"))
    head = await peek_one(store)
    assert await answer(store, activate(head, 2)) == APPLIED
    await untouched(store, activate(head, 2, token="other", session="s2"), LOST)
    row = await store.run("r1")
    assert row is not None
    assert (row.state, row.execution_seq, row.lease_token_hash) == ("running", 1, "token2")
    assert await store.queue() == []
    assert dense(await store.journal("r1"))


async def test_a_claim_is_lost_when_a_fact_arrived_since_it_was_peeked(store: Store) -> None:
    await answer(store, create("r1"))
    head = await peek_one(store)
    await store.decide(["r1"], changed(facts=1))
    await untouched(store, activate(head, 2), LOST)


async def test_a_claim_is_lost_when_the_run_was_dispatched_again_since(store: Store) -> None:
    await answer(store, create("r1"))
    head = await peek_one(store)
    await store.decide(["r1"], changed(execution_seq=4))
    await untouched(store, activate(head, 2), LOST)


async def test_a_claim_is_lost_while_the_workflow_is_paused(store: Store) -> None:
    await answer(store, create("r1"))
    head = await peek_one(store)
    assert await store.pause_workflow("order", "ann")
    await untouched(store, activate(head, 2), LOST)
    assert await store.resume_workflow("order", "ann")
    assert await answer(store, activate(head, 2)) == APPLIED


async def test_a_start_does_not_execute_while_its_workflow_is_paused(store: Store) -> None:
    assert await store.pause_workflow("order", "ann")
    assert await answer(store, start("r1")) == LOST
    assert await store.run("r1") is None
    large = start("r2")
    large.events[0].payload = '{"input":"' + "x" * 100_000 + '"}'
    assert await answer(store, large) == LOST
    assert await answer(store, create("r3")) == APPLIED
    words = await answers(store, start("r4"), start("r5", workflow="report"), start("r3"), create("r6"))
    assert words[:2] + words[3:] == [LOST, APPLIED, APPLIED]
    assert words[2] in (LOST, EXISTS)
    assert await store.resume_workflow("order", "ann")
    assert await answers(store, start("r1"), start("r4")) == [APPLIED, APPLIED]


async def test_a_delayed_segment_goes_at_its_time_and_not_before(store: Store) -> None:
    await answer(store, create("early", eligible_at=store.now() + HOUR))
    assert await store.peek(["order"], 5) == []
    row = await store.run("early")
    assert row is not None
    await answer(store, create("guide"))
    head = await peek_one(store)
    head.run_id = "early"
    await untouched(store, activate(head, 2), LOST)


async def test_a_reserved_segment_is_given_to_the_reservation_only(store: Store) -> None:
    await answer(store, create("r1"))
    (head,) = await store.reserve(["order"], 5, "s1", 60_000)
    token = head.reservation
    for other in (None, "guessed"):
        head.reservation = other
        await untouched(store, activate(head, 2), LOST)
    head.reservation = token
    assert await answer(store, activate(head, 2)) == APPLIED


async def test_a_suspended_run_is_woken_once(store: Store) -> None:
    await answer(store, start("r1"))
    await answer(store, leave("r1", 4, "sleeping", waits=[timer("r1", 1)]))
    (head,) = await store.due(5, ["order"])
    assert await answer(store, wake(head, 5)) == APPLIED
    await untouched(store, wake(head, 5, token="other"), LOST)
    row = await store.run("r1")
    assert row is not None
    assert (row.state, row.execution_seq) == ("running", 2)
    assert await store.waits("r1") == []


async def test_a_wake_up_is_lost_when_the_run_was_paused_or_a_fact_arrived(store: Store) -> None:
    await answer(store, start("r1"))
    await answer(store, leave("r1", 4, "sleeping", waits=[timer("r1", 1)]))
    (head,) = await store.due(5, ["order"])
    await store.decide(["r1"], changed(state="paused"))
    await untouched(store, wake(head, 5), LOST)
    await store.decide(["r1"], changed(state="sleeping", facts=1))
    await untouched(store, wake(head, 5), LOST)


async def test_the_start_time_is_the_first_one(store: Store) -> None:
    await answer(store, start("r1"))
    first = await store.run("r1")
    await answer(store, leave("r1", 4, "sleeping", waits=[timer("r1", 1)]))
    (head,) = await store.due(5, ["order"])
    await answer(store, wake(head, 5))
    row = await store.run("r1")
    assert first is not None
    assert row is not None
    assert row.started_at == first.started_at
    assert (await store.journal("r1"))[-1].at >= (row.started_at or 0)


async def test_a_run_id_is_taken_once(store: Store) -> None:
    await answer(store, start("r1"))
    await untouched(store, start("r1", token="other"), EXISTS)
    await untouched(store, create("r1"), EXISTS)


async def test_an_idempotency_key_is_taken_once_for_a_workflow(store: Store) -> None:
    assert await answer(store, create("r1", idempotency_key="k")) == APPLIED
    await untouched(store, create("r2", idempotency_key="k"), EXISTS)
    assert await answer(store, create("r3", idempotency_key="k", workflow="other")) == APPLIED
    held = await store.find_key("idempotency_key", "k", "order")
    assert held is not None
    assert held.run_id == "r1"


async def test_a_concurrency_key_is_free_again_when_its_run_has_ended(store: Store) -> None:
    assert await answer(store, start("r1", concurrency_key="k")) == APPLIED
    await untouched(store, start("r2", concurrency_key="k"), EXISTS)
    held = await store.find_key("concurrency_key", "k", None)
    assert held is not None
    assert held.run_id == "r1"
    await answer(store, leave("r1", 4, "completed"))
    assert await store.find_key("concurrency_key", "k", None) is None
    assert await answer(store, start("r2", concurrency_key="k")) == APPLIED


async def test_keys_are_taken_once_inside_one_batch_too(store: Store) -> None:
    found = await answers(
        store,
        create("r1", idempotency_key="k"),
        create("r2", idempotency_key="k"),
        start("r3", concurrency_key="c"),
        start("r4", concurrency_key="c"),
    )
    assert sorted(found[:2]) == [APPLIED, EXISTS]
    assert sorted(found[2:]) == [APPLIED, EXISTS]
    assert len(await store.leases()) == 1
    assert len(await store.queue()) == 1


async def test_progress_starts_the_count_of_recoveries_again(store: Store) -> None:
    await answer(store, start("r1"))
    await store.decide(["r1"], changed(consecutive_recoveries=4, charged_recoveries=2, lease_recoveries=9))
    change = append("r1", 4)
    change.progress = True
    assert await answer(store, change) == APPLIED
    row = await store.run("r1")
    assert row is not None
    assert (row.consecutive_recoveries, row.charged_recoveries, row.lease_recoveries) == (0, 0, 9)


async def test_the_owner_can_change_rare_columns_and_its_state_without_leaving(store: Store) -> None:
    await answer(store, start("r1"))
    change = append("r1", 4)
    change.changes = {"status_text": "half way", "warnings": 1}
    change.state = "cancelling"
    assert await answer(store, change) == APPLIED
    row = await store.run("r1")
    assert row is not None
    assert (row.state, row.status_text, row.warnings) == ("cancelling", "half way", 1)
    assert await answer(store, append("r1", 5)) == APPLIED, "cancelling is an owned state"


async def test_the_number_of_an_event_can_be_left_to_the_store(store: Store) -> None:
    await answer(store, start("r1"))
    change = append("r1", 0)
    change.events.append(Event(0, "step_started", "0:b"))
    assert await answer(store, change) == APPLIED
    events = await store.journal("r1")
    assert dense(events)
    assert len(events) == 5
