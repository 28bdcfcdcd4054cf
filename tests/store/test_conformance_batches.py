"""Group commit: neighbours in one batch, one run twice, large payloads, and errors that nobody foresaw."""

from __future__ import annotations

import asyncio

import pytest
from tests.journals import dense
from tests.store.build import activate, answer, answers, append, create, leave, peek_one, start

from ironflow.model.journal import Event
from ironflow.model.transition import APPLIED, EXISTS, LOST, STALE
from ironflow.store.base import INLINE_PAYLOAD, Store


async def test_a_refused_transition_harms_no_neighbour(store: Store) -> None:
    await answers(store, *[start(f"r{n}") for n in range(4)])
    await answer(store, create("q1"))
    head = await peek_one(store)
    await answer(store, activate(head, 2, token="t"))
    found = await answers(
        store,
        append("r0", 4),
        append("r1", 4, token="wrong"),
        leave("r2", 4, "completed"),
        activate(head, 2),
        start("r3"),
        start("r4"),
        append("nobody", 1),
    )
    assert found == [APPLIED, STALE, APPLIED, LOST, EXISTS, APPLIED, STALE]
    lengths = {run_id: len(events) for run_id, events in (await store.journals([f"r{n}" for n in range(5)])).items()}
    assert lengths == {"r0": 4, "r1": 3, "r2": 4, "r3": 3, "r4": 3}


async def test_transitions_of_one_run_are_applied_in_the_order_in_which_they_were_submitted(
    store: Store,
) -> None:
    await answers(store, start("r1"), start("r2"))
    found = await answers(
        store, append("r1", 4), append("r2", 4), append("r1", 5), leave("r1", 6, "completed"), append("r1", 7)
    )
    assert found == [APPLIED, APPLIED, APPLIED, APPLIED, STALE]
    events = await store.journal("r1")
    assert dense(events)
    assert [event.kind for event in events][3:] == ["step_completed", "step_completed", "run_succeeded"]


async def test_hundreds_of_transitions_in_one_batch_are_all_answered(store: Store) -> None:
    count = 333
    assert set(await answers(store, *[start(f"r{n:03}") for n in range(count)])) == {APPLIED}
    mixed = [
        append(f"r{n:03}", 4) if n % 3 else leave(f"r{n:03}", 4, "completed", token="wrong" if n % 2 else "token")
        for n in range(count)
    ]
    found = await answers(store, *mixed)
    assert found == [APPLIED if n % 3 or not n % 2 else STALE for n in range(count)]
    counts = await store.counts()
    assert counts == {"running": count - 56, "completed": 56}
    assert len(await store.leases()) == count - 56


async def test_a_large_payload_comes_back_whole_and_in_its_place(store: Store) -> None:
    large = '{"result":"' + "é" * INLINE_PAYLOAD + '"}'
    just = "x" * INLINE_PAYLOAD
    await answer(store, start("r1"))
    change = append("r1", 4, count=3)
    change.events[0].payload, change.events[1].payload = large, just
    assert await answer(store, change) == APPLIED
    events = await store.journal("r1", after=3)
    assert [event.payload for event in events] == [large, just, '{"result":1}']
    assert [event.payload for event in (await store.journals(["r1"]))["r1"][3:]] == [
        large,
        just,
        '{"result":1}',
    ]


async def test_large_payloads_of_many_runs_share_a_batch(store: Store) -> None:
    large = "y" * 1_000_000
    await answers(store, *[start(f"r{n}") for n in range(9)])
    changes = [append(f"r{n}", 4) for n in range(9)]
    for change in changes:
        change.events[0].payload = large
    assert set(await answers(store, *changes)) == {APPLIED}
    for events in (await store.journals([f"r{n}" for n in range(9)])).values():
        assert events[3].payload == large


async def test_an_error_nobody_foresaw_hits_its_own_transition_only(store: Store) -> None:
    """A seq that is taken means a bug in the writer: the key of the journal is the tripwire."""
    await answers(store, *[start(f"r{n}") for n in range(3)])
    store.concurrent_writers = 3
    futures = [store.submit(change) for change in (append("r0", 4), append("r1", 3), append("r2", 4))]
    found = await asyncio.gather(*futures, return_exceptions=True)  # type: ignore[arg-type]
    assert found[0] == found[2] == APPLIED
    assert isinstance(found[1], Exception)
    journals = await store.journals(["r0", "r1", "r2"])
    assert [len(events) for events in journals.values()] == [4, 3, 4]


async def test_an_unstorable_column_is_an_error_of_its_own_transition(store: Store) -> None:
    await answers(store, start("r1"), start("r2"))
    bad = append("r1", 4)
    bad.changes = {"workflow": "renamed"}
    store.concurrent_writers = 2
    found = await asyncio.gather(store.submit(bad), store.submit(append("r2", 4)), return_exceptions=True)  # type: ignore[arg-type]
    assert isinstance(found[0], ValueError)
    assert found[1] == APPLIED
    assert len(await store.journal("r1")) == 3


async def test_a_caller_that_was_cancelled_leaves_the_others_alone(store: Store) -> None:
    await answers(store, start("r1"), start("r2"))
    store.concurrent_writers = 2
    first, second = store.submit(append("r1", 4)), store.submit(append("r2", 4))
    first.cancel()  # type: ignore[union-attr]
    assert await second == APPLIED  # type: ignore[misc]
    assert await answer(store, append("r2", 5)) == APPLIED


async def test_what_was_submitted_before_closing_is_committed_and_answered(store: Store, store_url: str) -> None:
    from ironflow.store import connect

    await answers(store, start("r1"), start("r2"))
    store.concurrent_writers = 2
    futures = [store.submit(append("r1", 4)), store.submit(append("r2", 4))]
    await store.close()
    assert [await future for future in futures] == [APPLIED, APPLIED]  # type: ignore[misc]
    again = await connect(store_url)
    try:
        assert len(await again.journal("r1")) == 4
    finally:
        await again.close()


async def test_an_event_keeps_the_execution_seq_it_was_given(store: Store) -> None:
    await answer(store, start("r1"))
    change = append("r1", 4)
    change.events = [Event(4, "step_interrupted", "0:a", None, 1), Event(5, "step_started", "0:a")]
    await answer(store, change)
    assert [event.execution_seq for event in await store.journal("r1", after=3)] == [1, 1]


@pytest.mark.parametrize("lone", [True, False], ids=["alone", "beside others"])
async def test_a_lone_caller_and_a_crowd_get_the_same(store: Store, lone: bool) -> None:
    store.concurrent_writers = 1 if lone else 50
    assert await answer(store, start("r1")) == APPLIED
    assert await answer(store, append("r1", 4, token="wrong")) == STALE
    assert await answer(store, leave("r1", 4, "completed")) == APPLIED
    assert dense(await store.journal("r1"))
