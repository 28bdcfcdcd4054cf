"""What people and the engine read."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from tests.store.build import answer, answers, append, changed, create, leave, start

from ironflow.model import journal as j
from ironflow.model.fold import fold
from ironflow.model.journal import Event
from ironflow.model.scope import Scope
from ironflow.store.base import INLINE_PAYLOAD, Store, WorkflowSeen
from ironflow.store.reader import RunFilter


async def found(store: Store, **filter: object) -> list[str]:
    return [row.run_id for row in await store.runs(RunFilter(**filter))]  # type: ignore[arg-type]


async def test_runs_are_listed_newest_first_and_paged_by_key(store: Store) -> None:
    for n in range(7):
        await answer(store, create(f"r{n}", created_at=1_000 + n // 2))
    everything = await found(store)
    assert everything == ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]
    page, paged, before = None, [], None
    while page != []:
        page = await store.runs(RunFilter(limit=3, before=before))
        paged += [row.run_id for row in page]
        before = (page[-1].created_at, page[-1].run_id) if page else None
    assert paged == everything


@pytest.mark.parametrize(("limit", "rows"), [(1 << 70, 2), (2, 2), (1, 1), (0, 0), (-1, 0)])
async def test_a_limit_beyond_what_a_database_can_hold_is_no_error(store: Store, limit: int, rows: int) -> None:
    for n in range(2):
        await answer(store, create(f"r{n}"))
    assert len(await store.runs(RunFilter(limit=limit))) == rows
    assert len(await store.queue(limit)) == rows
    assert await store.audits(limit) == []


async def test_runs_are_found_by_state_workflow_reason_and_label(store: Store) -> None:
    await answer(store, start("r1", labels='{"team":"a","odd.key \\"x\\"":"1"}'))
    await answer(store, create("r2", workflow="other", labels='{"team":"b"}'))
    await answer(store, create("r3"))
    await store.decide(["r3"], changed(state="paused", reason="REPLAY_DIVERGENCE"))
    assert await found(store, states=["running"]) == ["r1"]
    assert await found(store, states=["running", "paused"]) == ["r3", "r1"]
    assert await found(store, states=["failed"]) == []
    assert await found(store, workflow="other") == ["r2"]
    assert await found(store, reason="REPLAY_DIVERGENCE") == ["r3"]
    assert await found(store, label=("team", "b")) == ["r2"]
    assert await found(store, label=('odd.key "x"', "1")) == ["r1"]
    assert await found(store, label=("team", "c")) == []


async def test_where_runs_stand_is_told_of_many_at_once(store: Store) -> None:
    assert await store.standings([]) == {}
    await answers(store, start("r1", priority=3, org="shop", environment="prod"), create("r2"))
    await answer(store, append("r1", 4, count=2))
    many = [f"no-{n}" for n in range(50)]
    found = await store.standings(["r1", "r2", "no\0ne", "no\ud800ne", *many])
    assert found.keys() == {"r1", "r2"}
    first = found["r1"]
    assert (first.scope, first.workflow, first.route, first.priority) == (Scope("shop", "prod"), "order", "order", 3)
    assert (first.execution_seq, first.facts, first.token_hash, first.last_seq) == (1, 0, "token", 5)
    assert (found["r2"].execution_seq, found["r2"].token_hash, found["r2"].last_seq) == (0, None, 1)
    assert await store.standings(["r2"]) == {"r2": found["r2"]}


async def test_events_are_found_by_run_and_number(store: Store) -> None:
    large = append("r1", 4)
    large.events[0].payload = '{"result":"%s"}' % ("x" * INLINE_PAYLOAD)
    await answers(store, start("r1"), start("r2"))
    await answer(store, large)
    assert await store.events_at([]) == {}
    wanted = [("r1", 4), ("r1", 9), ("r2", 2), ("no\0ne", 1), ("none", 1 << 53)]
    for places in (wanted, wanted + [("none", n) for n in range(50)]):
        found = await store.events_at(places)
        assert found.keys() == {("r1", 4), ("r2", 2)}
        [event] = await store.journal("r1", 3)
        assert [getattr(found["r1", 4], name) for name in Event.__slots__] == [
            getattr(event, name) for name in Event.__slots__
        ]
        assert event.payload == large.events[0].payload


async def test_a_run_comes_back_with_every_column(store: Store) -> None:
    given = start(
        "r1", labels='{"a":"b"}', limits="[]", python="3.12", max_recoveries=3, deadline_at=9, scheduled_at=8,
        parent_run_id="p", input_hash="h", priority=-4, attempt=2, retry_count=1, idempotency_key="i",
        concurrency_key="c",
    )  # fmt: skip
    await answer(store, given)
    row = await store.run("r1")
    assert row is not None
    assert given.row is not None
    assert {**asdict(row), "started_at": None} == {
        **asdict(given.row), "started_at": None, "execution_seq": 1, "lease_token_hash": "token",
    }  # fmt: skip
    assert await store.run("nobody") is None


async def test_a_journal_is_read_from_anywhere_and_as_far_as_asked(store: Store) -> None:
    await answer(store, start("r1"))
    await answer(store, append("r1", 4, count=700))
    seqs = [event.seq for event in await store.journal("r1")]
    assert seqs == list(range(1, 704))
    assert [event.seq for event in await store.journal("r1", after=700)] == [701, 702, 703]
    assert [event.seq for event in await store.journal("r1", after=2, limit=2)] == [3, 4]
    assert len(await store.journal("r1", limit=400)) == 400
    assert await store.journal("nobody") == []


async def test_the_last_event_of_a_run_is_read_alone_and_with_its_payload(store: Store) -> None:
    assert await store.last_event("nobody") is None
    assert await store.last_event("no\0body") is None
    await answers(store, start("r1"), start("r2"))
    for size in (1, INLINE_PAYLOAD):
        change = append("r1", 4 if size == 1 else 5)
        change.events[0].payload = f'{{"result":"{"x" * size}"}}'
        await answer(store, change)
        assert repr(await store.last_event("r1")) == repr((await store.journal("r1"))[-1])
    last = await store.last_event("r2")
    assert last is not None
    assert (last.seq, last.kind) == (3, j.STEP_STARTED)


async def test_large_events_stand_where_they_belong_wherever_a_journal_is_read_from(store: Store) -> None:
    """A large one ends what is read at once, where there is such a thing, and nothing is lost or told twice there."""
    await answer(store, start("r1"))
    change = append("r1", 4, count=40)
    for event in change.events:
        if event.seq in (10, 11, 43):
            event.payload = f'{{"result":"{"x" * INLINE_PAYLOAD}{event.seq}"}}'
    await answer(store, change)
    whole = [repr(event) for event in (await store.journals(["r1"]))["r1"]]
    assert len(whole) == 43
    for after in (0, 8, 9, 10, 11, 42, 43):
        for limit in (0, 1, 2, 3, 50):
            found = await store.journal("r1", after, limit)
            assert [repr(event) for event in found] == whole[after : after + limit if limit else None]


async def test_journals_of_several_runs_are_read_at_once(store: Store) -> None:
    await answers(store, start("r1"), create("r2"))
    journals = await store.journals(["r2", "nobody", "r1"])
    assert {run_id: len(events) for run_id, events in journals.items()} == {"r2": 1, "nobody": 0, "r1": 3}
    assert await store.journals([]) == {}


async def test_the_journal_folds_into_the_row(store: Store) -> None:
    await answer(store, start("r1"))
    await answer(store, append("r1", 4))
    await answer(store, leave("r1", 5, "completed"))
    view, row = fold(await store.journal("r1")), await store.run("r1")
    assert row is not None
    assert view.breaches == []
    assert (view.state, view.execution_seq, view.ended_at) == (row.state, row.execution_seq, row.ended_at)


async def test_runs_are_counted_by_state(store: Store) -> None:
    await answers(store, start("r1"), start("r2"), create("r3"))
    assert await store.counts() == {"running": 2, "pending": 1}


async def test_workflows_that_were_seen_are_listed_with_their_pause(store: Store) -> None:
    await store.saw_workflows([WorkflowSeen("order", "1", ""), WorkflowSeen("report", "2", "gpu", '{"priority":7}')])
    await store.saw_workflows([WorkflowSeen("order", "3", "")])
    await store.pause_workflow("report", "ann")
    order, report = await store.workflows()
    assert (order["name"], order["version"], order["paused_at"]) == ("order", "3", None)
    assert order["first_seen_at"] <= order["seen_at"]
    assert (report["name"], report["worker_tags"], report["definition"]) == ("report", "gpu", '{"priority":7}')
    assert report["paused_at"] > 0


async def test_a_healthy_database_has_nothing_to_report(store: Store) -> None:
    # The tests' PostgreSQL runs without fsync, and a check that did not say so would be worth nothing.
    unsafe = ("fsync is off", "full_page_writes is off") if store.dialect == "postgres" else ()
    assert [problem for problem in await store.check() if not problem.startswith(unsafe)] == []


async def test_time_never_runs_backwards(store: Store) -> None:
    times = []
    for n in range(20):
        times.append(store.now())
        await answer(store, start(f"r{n}"))
        times.append((await store.journal(f"r{n}"))[0].at)
    assert times == sorted(times)


@pytest.mark.parametrize("key", ["idempotency_key", "concurrency_key"])
async def test_a_key_that_nobody_holds_finds_nobody(store: Store, key: str) -> None:
    assert await store.find_key(key, "k", "order") is None


async def test_the_address_and_the_dialect_are_told_without_secrets(store: Store, store_url: str) -> None:
    assert store.dialect == ("sqlite" if store_url.startswith("sqlite") else "postgres")
    assert "password" not in store.name


async def test_an_outline_leaves_out_large_values_and_nothing_else(store: Store) -> None:
    large = f'{{"result":"{"x" * INLINE_PAYLOAD}"}}'
    await answer(store, start("r1"))
    kinds = sorted(j.KINDS)
    change = append("r1", 4, count=len(kinds))
    for event, kind in zip(change.events, kinds, strict=True):
        event.kind, event.payload = kind, large
    await answer(store, change)
    await answer(store, append("r1", 4 + len(kinds)))
    found = await store.outline("r1", 3, 1_000)
    assert {event.kind for event in found[:-1] if event.payload == j.APART} == set(j.VALUE_KINDS)
    assert {event.payload for event in found[:-1] if event.kind not in j.VALUE_KINDS} == {large}
    assert found[-1].payload == '{"result":1}'
    assert [event.seq for event in found] == list(range(4, 5 + len(kinds)))
    assert [event.seq for event in await store.outline("r1", 4, 2)] == [5, 6]
    assert await store.outline("nobody", 0, 10) == []
