"""`decide`: look at locked runs, change them, all in one transaction; one bad run stops no other."""

from __future__ import annotations

import pytest
from tests.journals import dense
from tests.store.build import (
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
)

from ironflow.errors import ConcurrencyConflict, InvalidTransition, RunNotFound
from ironflow.model.capacity import QueueRow
from ironflow.model.journal import Event
from ironflow.model.transition import APPLIED, STALE, Audit, Locked, Transition
from ironflow.store.base import Store
from ironflow.store.reader import RunFilter


async def test_a_decision_sees_the_run_with_all_its_rows(store: Store) -> None:
    await answer(store, start("r1"))
    await answer(store, leave("r1", 4, "sleeping", waits=[timer("r1", 1), timer("r1", 2, step_id="0:t2")]))
    await answer(store, start("r2"))
    await answer(store, create("r3"))
    seen: dict[str, Locked] = {}

    def look(locked: Locked) -> None:
        seen[locked.row.run_id] = locked

    before = store.now()
    results = await store.decide(["r3", "r1", "r2", "r1"], look)
    assert results == {"r1": None, "r2": None, "r3": None}
    assert list(seen) == ["r1", "r2", "r3"], "in order of id, each once"
    one, two, three = seen.values()
    assert [wait.step_id for wait in sorted(one.waits, key=lambda w: w.step_id)] == ["0:t1", "0:t2"]
    assert (one.lease, one.queue, one.last_seq, one.row.state) == (None, None, 4, "sleeping")
    assert two.lease is not None
    assert (two.lease.token_hash, two.last_seq, two.waits) == ("token", 3, [])
    assert three.queue is not None
    assert three.lease is None
    assert all(locked.now >= before for locked in seen.values())


async def test_a_recovery_takes_the_lease_raises_the_fence_and_queues_the_run(store: Store) -> None:
    await answer(store, start("r1"))
    results = await store.decide(["r1"], recovered)
    assert isinstance(results["r1"], Transition)
    row = await store.run("r1")
    assert row is not None
    assert (row.state, row.execution_seq, row.lease_token_hash, row.lease_recoveries) == (
        "pending",
        2,
        None,
        1,
    )
    assert await store.leases() == []
    (queued,) = await store.queue()
    assert (queued.run_id, queued.status, queued.execution_seq) == ("r1", "ready", 2)
    events = await store.journal("r1")
    assert dense(events)
    assert (events[-1].kind, events[-1].execution_seq) == ("run_recovered", 2)


async def test_recovering_twice_recovers_once(store: Store) -> None:
    await answer(store, start("r1"))
    assert isinstance((await store.decide(["r1"], recovered))["r1"], Transition)
    assert await store.decide(["r1"], recovered) == {"r1": None}
    row = await store.run("r1")
    assert row is not None
    assert row.lease_recoveries == 1


async def test_a_refusal_is_given_to_its_run_and_the_others_go_on(store: Store) -> None:
    await answers(store, start("r1"), start("r2"), start("r3"))

    def decide(locked: Locked) -> Transition | None:
        if locked.row.run_id == "r2":
            raise InvalidTransition("not this one")
        return changed(status_text="seen")(locked)

    results = await store.decide(["r1", "r2", "r3", "missing"], decide)
    assert isinstance(results["r1"], Transition)
    assert isinstance(results["r3"], Transition)
    assert isinstance(results["r2"], InvalidTransition)
    assert isinstance(results["missing"], RunNotFound)
    texts = [row.status_text for row in [await store.run(f"r{n}") for n in (1, 2, 3)] if row is not None]
    assert texts == ["seen", None, "seen"]


async def test_an_unexpected_error_falls_back_to_one_transaction_for_each_run(store: Store) -> None:
    await answers(store, start("r1"), start("r2"), start("r3"))

    def decide(locked: Locked) -> Transition | None:
        change = recovered(locked)
        assert change is not None
        if locked.row.run_id == "r2":
            change.events = [Event(1, "run_recovered")]  # taken: the tripwire of the journal
        return change

    results = await store.decide(["r1", "r2", "r3"], decide, audit=[Audit("sweep", "scanner")])
    assert isinstance(results["r1"], Transition)
    assert isinstance(results["r2"], Exception)
    assert isinstance(results["r3"], Transition)
    assert {row.run_id for row in await store.queue()} == {"r1", "r3"}
    assert {lease.run_id for lease in await store.leases()} == {"r2"}
    assert await answer(store, append("r2", 4)) == APPLIED, "the bad run was left as it was"
    assert await answer(store, append("r1", 5)) == STALE
    assert len(await store.audits()) == 1


async def test_a_transition_that_changes_what_none_may_is_refused_whole(store: Store) -> None:
    await answers(store, start("r1"), start("r2"))

    def decide(locked: Locked) -> Transition:
        change = changed(status_text="x")(locked)
        change.events = [Event(0, "status_set")]
        if locked.row.run_id == "r1":
            change.changes = {"root_run_id": "stolen"}
        return change

    results = await store.decide(["r1", "r2"], decide)
    assert isinstance(results["r1"], ValueError)
    assert isinstance(results["r2"], Transition)
    assert [len(await store.journal(run_id)) for run_id in ("r1", "r2")] == [3, 4]


async def test_audit_rows_are_written_with_what_they_tell(store: Store) -> None:
    await answer(store, start("r1"))

    def decide(locked: Locked) -> Transition | None:
        change = recovered(locked)
        if change is not None:
            change.audit = [Audit("capacity.lease.expired", "scanner", "r1", {"session": "s1"})]
        return change

    await store.decide(["r1"], decide, audit=[Audit("sweep", "scanner")])
    found = {entry["action"]: entry for entry in await store.audits()}
    assert set(found) == {"capacity.lease.expired", "sweep"}
    assert found["capacity.lease.expired"]["fields"] == {"session": "s1"}
    assert found["capacity.lease.expired"]["at"] > 0
    assert [entry["action"] for entry in await store.audits(run_id="r1")] == ["capacity.lease.expired"]


async def test_two_hand_offs_make_one_queue_row(store: Store) -> None:
    await answer(store, start("r1"))
    await answer(store, leave("r1", 4, "sleeping", waits=[timer("r1", 1)]))

    def hand_off(locked: Locked) -> Transition:
        change = Transition(locked.row.run_id, "locked")
        change.state, change.clear_waits = "pending", True
        row = locked.row
        change.enqueue = QueueRow(row.run_id, row.route, 0, 0, locked.now, row.execution_seq)
        return change

    await store.decide(["r1"], hand_off)
    first = await store.queue()
    await store.decide(["r1"], hand_off)
    assert await store.queue() == first
    assert len(first) == 1
    assert await store.waits("r1") == []


async def test_a_reopened_run_has_not_ended(store: Store) -> None:
    await answer(store, start("r1", concurrency_key="k"))
    await answer(store, leave("r1", 4, "failed"))

    def reopen(locked: Locked) -> Transition:
        change = Transition(locked.row.run_id, "locked")
        change.state, change.changes = "pending", {"epoch": locked.row.epoch + 1}
        change.events = [Event(0, "run_reopened")]
        change.enqueue = QueueRow("r1", locked.row.route, 0, 0, locked.now, locked.row.execution_seq)
        return change

    await store.decide(["r1"], reopen)
    row = await store.run("r1")
    assert row is not None
    assert (row.state, row.ended_at, row.epoch) == ("pending", None, 2)
    assert (await peek_one(store)).run_id == "r1"


async def test_a_run_cannot_be_reopened_while_another_holds_its_concurrency_key(store: Store) -> None:
    await answer(store, start("r1", concurrency_key="k"))
    await answer(store, leave("r1", 4, "failed"))
    await answer(store, start("r2", concurrency_key="k"))
    await answer(store, start("r3"))
    for run_ids in (["r1"], ["r1", "r3"]):
        results = await store.decide(run_ids, changed(state="pending", ended_at=None))
        assert isinstance(results["r1"], ConcurrencyConflict)
    assert isinstance(results["r3"], Transition)
    row = await store.run("r1")
    assert row is not None
    assert row.state == "failed"


async def test_a_run_cannot_take_a_concurrency_key_that_another_holds(store: Store) -> None:
    await answers(store, start("r1", concurrency_key="k"), start("r2"))
    results = await store.decide(["r2"], changed(concurrency_key="k"))
    assert isinstance(results["r2"], ConcurrencyConflict)


@pytest.mark.parametrize("wrong", [5, object()], ids=["a number", "an object"])
async def test_an_error_of_any_class_is_the_error_of_its_run_alone(store: Store, wrong: object) -> None:
    await answers(store, start("r1"), start("r2"))

    def decide(locked: Locked) -> Transition:
        change = changed(status_text="x")(locked)
        if locked.row.run_id == "r1":
            change.events = [Event(0, "status_set", None, wrong)]  # type: ignore[arg-type]
        return change

    results = await store.decide(["r1", "r2"], decide, audit=[Audit("sweep", "scanner")])
    assert isinstance(results["r1"], Exception)
    assert isinstance(results["r2"], Transition)
    assert isinstance((await store.decide(["r1"], decide))["r1"], Exception)
    assert len(await store.journal("r1")) == 3
    found = await store.run("r1")
    assert found is not None
    assert found.status_text is None, "half a transition was written"
    assert len(await store.audits()) == 1


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
async def test_a_name_that_no_database_can_hold_is_not_there(store: Store, name: str) -> None:
    assert await store.run(name) is None
    assert await store.holdings(name) is None
    assert await store.journal(name) == []
    assert await store.find_key("concurrency_key", name, None) is None
    assert await store.runs(RunFilter(label=("team", name))) == []
    for skip in (False, True):
        assert isinstance((await store.decide([name], lambda locked: None, skip_locked=skip))[name], RunNotFound)


async def test_labels_with_a_nul_do_not_spoil_the_list(store: Store) -> None:
    await answers(store, start("r1", labels='{"team":"a\\u0000"}'), start("r2", labels='{"team":"b"}'))
    assert [row.run_id for row in await store.runs(RunFilter(label=("team", "b")))] == ["r2"]


async def test_a_new_run_is_written_with_the_columns_that_its_start_changes(store: Store) -> None:
    change = start("r1")
    change.changes = {"status_text": "warming up", "warnings": 1}
    assert await answer(store, change) == APPLIED
    row = await store.run("r1")
    assert row is not None
    assert (row.status_text, row.warnings, row.state) == ("warming up", 1, "running")


@pytest.mark.parametrize("count", [1, 150])
async def test_any_number_of_runs_is_decided_at_once(store: Store, count: int) -> None:
    await answers(store, *[start(f"r{n:03}") for n in range(count)])
    results = await store.decide([f"r{n:03}" for n in range(count)], recovered)
    assert all(isinstance(result, Transition) for result in results.values())
    assert len(results) == count
    assert len(await store.queue()) == count
    assert await store.counts() == {"pending": count}
