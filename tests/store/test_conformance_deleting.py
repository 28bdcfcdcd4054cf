"""Deleting a run that has ended, and following those that have not."""

from __future__ import annotations

import asyncio

import pytest
from tests.store.build import answer, answers, append, create, leave, start, timer
from tests.store.conftest import Open

from ironflow.errors import InvalidTransition, RunNotFound
from ironflow.model import operator
from ironflow.model.journal import APART
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import APPLIED, STALE, Locked, Transition
from ironflow.store.base import INLINE_PAYLOAD, Store
from ironflow.store.reader import RunFilter

OTHER = Scope("other")


async def ended(store: Store, run_id: str, **row: str) -> None:
    """A run with a lane, a long payload and an end."""
    change = start(run_id, limits="{}", **row)
    change.lanes = [("group:api", 5)]
    change.events[0].payload = f'{{"input":"{"x" * INLINE_PAYLOAD}"}}'
    assert await answer(store, change) == APPLIED
    assert await answer(store, leave(run_id, 4, "completed")) == APPLIED


async def test_a_run_that_has_ended_is_deleted_with_everything_but_its_audit(store: Store) -> None:
    await ended(store, "r1", idempotency_key="k")
    await ended(store, "r2")
    assert await store.delete_run("r1", "ann", DEFAULT)
    assert await store.run("r1") is None
    assert await store.journal("r1") == []
    assert await store.find_key("idempotency_key", "k", "order") is None
    assert len(await store.journal("r2")) == 4
    (told,) = await store.audits(run_id="r1")
    assert (told["action"], told["actor"], told["fields"]) == (
        "run.delete", "ann", {"workflow": "order", "state": "completed"},
    )  # fmt: skip
    assert not await store.delete_run("r1", "ann", DEFAULT)
    assert await answer(store, start("r1", idempotency_key="k")) == APPLIED
    assert len(await store.journal("r1")) == 3


async def test_a_run_that_has_not_ended_is_not_deleted(store: Store) -> None:
    await answers(store, start("busy"), start("asleep"), create("queued"))
    await answer(store, leave("asleep", 4, "sleeping", waits=[timer("asleep", 1)]))
    for run_id in ("busy", "asleep", "queued"):
        with pytest.raises(InvalidTransition, match="only a run that has ended"):
            await store.delete_run(run_id, "ann", DEFAULT)
        assert await store.run(run_id) is not None
        assert await store.journal(run_id) != []
    assert await store.audits() == []


async def test_another_scopes_run_is_as_unknown_as_one_that_never_was(store: Store) -> None:
    await ended(store, "r1")
    assert not await store.delete_run("r1", "eve", OTHER)
    assert not await store.delete_run("never", "eve", OTHER)
    assert not await store.delete_run("r\0", "eve", DEFAULT)
    assert len(await store.journal("r1")) == 4
    assert await store.audits() == []


async def test_a_former_owner_does_not_bring_a_deleted_run_back(store: Store) -> None:
    await ended(store, "r1")
    await store.delete_run("r1", "ann", DEFAULT)
    assert await answer(store, append("r1", 5)) == STALE
    assert await answers(store, append("r1", 5), append("r2", 5)) == [STALE, STALE]
    assert await store.journal("r1") == []


async def test_of_a_deletion_and_a_reopening_at_once_one_happens(
    store: Store, store_url: str, open_store: Open
) -> None:
    other = await open_store(store_url)

    def reopened(locked: Locked) -> Transition | None:
        return operator.reopen(locked, "bob", [])

    for n in range(12):
        run_id = f"r{n}"
        await answer(store, start(run_id))
        await answer(store, leave(run_id, 4, "failed"))
        deleted, found = await asyncio.gather(
            store.delete_run(run_id, "ann", DEFAULT), other.decide([run_id], reopened), return_exceptions=True
        )
        assert isinstance(found, dict)
        row, events = await store.run(run_id), await store.journal(run_id)
        if deleted is True:
            assert isinstance(found[run_id], RunNotFound)
            assert (row, events) == (None, [])
        else:
            assert isinstance(deleted, InvalidTransition)
            assert row is not None
            assert (row.state, len(events)) == ("pending", 5)
    assert {row.run_id for row in await store.queue()} == {row.run_id for row in await store.runs(RunFilter())}


async def test_a_tail_holds_what_came_after_of_each_run_and_no_more_than_asked_for(store: Store) -> None:
    await answers(store, start("r1"), start("r2"), start("r3"))
    await answer(store, append("r1", 4, count=3))
    long = append("r2", 4)
    long.events[0].payload = f'"{"x" * INLINE_PAYLOAD}"'
    await answer(store, long)
    found = await store.tail({"r1": 3, "r2": 3, "r3": 3, "nobody": 0}, 10)
    assert {run_id: [event.seq for event in events] for run_id, events in found.items()} == {
        "r1": [4, 5, 6], "r2": [4], "r3": [], "nobody": [],
    }  # fmt: skip
    assert found["r2"][0].payload == APART  # large: whoever wants it reads it by itself
    short = await store.tail({"r1": 2, "r2": 0}, 2)
    assert {run_id: [event.seq for event in events] for run_id, events in short.items()} == {
        "r1": [3, 4], "r2": [1, 2],
    }  # fmt: skip
    assert await store.tail({}, 10) == {}
