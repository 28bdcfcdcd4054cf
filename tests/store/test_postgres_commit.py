"""The hot path of the PostgreSQL store: what it answers alone and among neighbours, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest
from tests.store.postgres_cases import appended, assert_dense, ended, new_id, queued, started, taken

from ironflow.errors import InvalidSettings, StoreError, StoreReadOnly, StoreUnreachable
from ironflow.model.capacity import QueueRow
from ironflow.model.journal import Event
from ironflow.model.transition import GUARD_OWNER, GUARD_SUSPENDED, Transition
from ironflow.model.wait import WaitRow
from ironflow.store import migrate
from ironflow.store import postgres_shapes as shapes
from ironflow.store.postgres import PostgresStore, open_postgres
from ironflow.store.postgres_link import Address


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await open_postgres(postgres_url)
    yield opened
    await opened.close()


async def submit_alone(store: PostgresStore, change: Transition) -> str:
    return await store.submit(change)


async def submit_in_a_crowd(store: PostgresStore, change: Transition) -> str:
    """In one batch with neighbours of the same kind, of which some are refused."""
    others = [new_id(), new_id()]
    await asyncio.gather(*[store.submit(started(run_id, workflow="crowd")) for run_id in others])
    batch = [
        store.submit(appended(others[0], 4)),
        store.submit(change),
        store.submit(started(new_id(), workflow="crowd")),
        store.submit(started(others[0], workflow="crowd")),
        store.submit(taken(others[1], 7, 9, "x")),
        store.submit(appended(others[1], 4, token="wrong")),
    ]
    answers = await asyncio.gather(*batch)
    assert [answers[0], *answers[2:]] == ["applied", "applied", "exists", "lost", "stale"]
    return answers[1]


Submit = Callable[[PostgresStore, Transition], "asyncio.Future[str]"]
both_ways = pytest.mark.parametrize("submit", [submit_alone, submit_in_a_crowd], ids=["alone", "in a crowd"])


@both_ways
async def test_an_owner_with_an_old_seq_or_another_token_writes_nothing(store: PostgresStore, submit: Submit) -> None:
    run_id = new_id()
    assert await submit(store, started(run_id)) == "applied"
    assert await submit(store, appended(run_id, 4, token="other")) == "stale"
    assert await submit(store, appended(run_id, 4, seq=0)) == "stale"
    assert await submit(store, ended(run_id, 4, token="other")) == "stale"
    assert len(await store.journal(run_id)) == 3
    assert await submit(store, appended(run_id, 4)) == "applied"
    assert await submit(store, ended(run_id, 6)) == "applied"
    assert await submit(store, appended(run_id, 8)) == "stale"
    assert_dense(await store.journal(run_id))


@both_ways
async def test_an_end_and_its_last_event_have_one_time(store: PostgresStore, submit: Submit) -> None:
    run_id = new_id()
    await submit(store, started(run_id))
    await submit(store, ended(run_id, 4))
    row = await store.run(run_id)
    journal = await store.journal(run_id)
    assert row is not None
    assert (row.state, row.ended_at, row.lease_token_hash) == ("completed", journal[-1].at, None)
    assert row.started_at == row.created_at == journal[0].at
    assert run_id not in {lease.run_id for lease in await store.leases()}


@both_ways
async def test_a_segment_that_missed_news_may_not_leave(store: PostgresStore, submit: Submit) -> None:
    run_id = new_id()
    await submit(store, started(run_id))
    change = ended(run_id, 4)
    change.facts = 1
    assert await submit(store, change) == "news"
    change.token_hash = "other"
    assert await submit(store, change) == "stale"
    row = await store.run(run_id)
    assert row is not None
    assert row.state == "running"


@both_ways
async def test_a_suspended_run_is_woken_once_and_its_waits_are_settled(store: PostgresStore, submit: Submit) -> None:
    run_id = new_id()
    await submit(store, started(run_id))
    leaving = Transition(run_id, GUARD_OWNER, 1, "t1")
    leaving.facts, leaving.state, leaving.release = 0, "sleeping", True
    leaving.events = [Event(4, "run_suspended", None, '{"state":"sleeping"}')]
    leaving.waits = [WaitRow(run_id, "0:nap", "timer", "sleeping", 1)]
    assert await submit(store, leaving) == "applied"
    assert [wait.step_id for wait in await store.waits(run_id)] == ["0:nap"]
    waking = taken(run_id, 1, 5, "t2")
    waking.guard, waking.dequeue, waking.clear_waits = GUARD_SUSPENDED, False, True
    assert await submit(store, waking) == "applied"
    assert await store.waits(run_id) == []
    assert await submit(store, waking) == "lost"
    assert await submit(store, appended(run_id, 6, token="t2", seq=2)) == "applied"
    assert_dense(await store.journal(run_id))


@both_ways
async def test_a_claim_needs_its_queue_row_as_it_was_peeked(store: PostgresStore, submit: Submit) -> None:
    run_id = new_id()
    await submit(store, queued(run_id))
    reserved = taken(run_id, 0, 2, "t1")
    reserved.reservation = "not reserved"
    assert await submit(store, reserved) == "lost"
    stale = taken(run_id, 0, 2, "t1")
    stale.facts = 3
    assert await submit(store, stale) == "lost"
    await store.pause_workflow("wf", "me")
    assert await submit(store, taken(run_id, 0, 2, "t1")) == "lost"
    await store.resume_workflow("wf", "me")
    assert await submit(store, taken(run_id, 0, 2, "t1")) == "applied"
    assert await submit(store, taken(run_id, 0, 2, "t1")) == "lost"
    assert run_id not in {row.run_id for row in await store.queue()}


@both_ways
async def test_a_released_run_goes_back_to_the_queue(store: PostgresStore, submit: Submit) -> None:
    run_id = new_id()
    await submit(store, started(run_id))
    change = Transition(run_id, GUARD_OWNER, 1, "t1")
    change.state, change.release, change.new_execution_seq = "pending", True, 2
    change.events = [Event(4, "run_released")]
    change.enqueue = QueueRow(run_id, "wf", 5, 0, 0, 2)
    assert await submit(store, change) == "applied"
    row = await store.run(run_id)
    assert row is not None
    assert (row.execution_seq, row.lease_token_hash) == (2, None)
    place = next(row for row in await store.queue() if row.run_id == run_id)
    assert (place.status, place.priority, place.execution_seq) == ("ready", 5, 2)
    assert place.enqueued_at == place.eligible_at == (await store.journal(run_id))[-1].at


async def test_keys_that_are_taken_are_answered_exists(store: PostgresStore) -> None:
    keyed = {"idempotency_key": "order-1", "concurrency_key": "customer-1"}
    assert await store.submit(started(new_id(), **keyed)) == "applied"
    assert await store.submit(started(new_id(), idempotency_key="order-1")) == "exists"
    assert await store.submit(started(new_id(), concurrency_key="customer-1")) == "exists"
    twins = [started(new_id(), idempotency_key="order-2") for _ in range(3)]
    assert sorted(await asyncio.gather(*map(store.submit, twins))) == ["applied", "exists", "exists"]


async def test_transitions_of_one_run_are_applied_in_the_order_in_which_they_came(
    store: PostgresStore,
) -> None:
    run_id = new_id()
    await store.submit(started(run_id))
    large = appended(run_id, 6, payload='"' + "x" * 20_000 + '"')
    futures = [store.submit(change) for change in (appended(run_id, 4), large, ended(run_id, 8))]
    assert await asyncio.gather(*futures) == ["applied"] * 3
    journal = await store.journal(run_id)
    assert_dense(journal)
    assert journal[5].payload == large.events[0].payload


async def test_an_error_of_one_transition_is_answered_to_that_one_alone(store: PostgresStore) -> None:
    runs = [new_id() for _ in range(4)]
    await asyncio.gather(*[store.submit(started(run_id)) for run_id in runs])
    changes = [appended(run_id, 4) for run_id in runs]
    changes[2].events[0].seq, changes[2].events[1].seq = (
        2,
        3,
    )  # numbers that are taken: the tripwire of the key
    answers = await asyncio.gather(*map(store.submit, changes), return_exceptions=True)
    assert [answers[0], answers[1], answers[3]] == ["applied"] * 3
    assert isinstance(answers[2], StoreError)
    assert len(await store.journal(runs[2])) == 3


async def test_a_caller_that_went_away_does_not_stop_the_commit_of_the_others(store: PostgresStore) -> None:
    runs = [new_id() for _ in range(3)]
    futures = [store.submit(started(run_id)) for run_id in runs]
    futures[1].cancel()
    assert [await futures[0], await futures[2]] == ["applied"] * 2
    assert len(await store.journal(runs[1])) == 3


async def test_closing_writes_what_was_submitted_and_refuses_what_comes_later(postgres_url: str) -> None:
    store = await open_postgres(postgres_url)
    run_id = new_id()
    future = store.submit(started(run_id))
    await store.close()
    assert await future == "applied"
    with pytest.raises(StoreUnreachable):
        await store.submit(appended(run_id, 4))


async def test_nothing_is_prepared_where_a_pooler_forbids_it(postgres_url: str) -> None:
    separator = "&" if "?" in postgres_url else "?"
    store = await open_postgres(f"{postgres_url}{separator}prepare=false")
    run_id = new_id()
    assert await submit_in_a_crowd(store, started(run_id)) == "applied"
    assert await store.submit(ended(run_id, 4)) == "applied"
    watcher = await asyncpg.connect(postgres_url)
    backends = await watcher.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and query like 'set %'"
    )
    assert backends == 0
    await watcher.close()
    await store.close()


async def test_an_address_that_does_not_answer_is_an_error_at_once_and_hides_the_password() -> None:
    with pytest.raises(StoreUnreachable) as caught:
        await open_postgres("postgresql://someone:s3cret@127.0.0.1:1/nowhere")
    assert "s3cret" not in str(caught.value)
    assert "127.0.0.1:1/nowhere" in str(caught.value)


async def test_a_database_that_does_not_exist_is_named(postgres_url: str) -> None:
    with pytest.raises(StoreUnreachable, match="does not exist"):
        await open_postgres(postgres_url.replace("/test_", "/never_", 1))


def test_prepare_is_true_or_false() -> None:
    assert Address("postgresql://u@h/d?prepare=false").prepare is False
    assert Address("postgresql://u@h/d?prepare=false&sslmode=require").dsn == "postgresql://u@h/d?sslmode=require"
    with pytest.raises(InvalidSettings, match="prepare=maybe"):
        Address("postgresql://u@h/d?prepare=maybe")


async def test_a_store_that_was_opened_for_reading_refuses_to_write(postgres_url: str) -> None:
    store = await open_postgres(postgres_url, read_only=True)
    with pytest.raises(StoreReadOnly):
        store.submit(started(new_id()))
    with pytest.raises(StoreReadOnly):
        await store.pause_workflow("wf", "me")
    assert await store.counts() == {}
    await store.close()


async def test_a_store_opened_for_reading_refuses_an_older_schema(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = [*migrate.migrations("postgres"), migrate.Migration(99, "later", "select 1")]
    monkeypatch.setattr(migrate, "migrations", lambda dialect: newer)
    with pytest.raises(StoreError, match="Open it once for writing"):
        await open_postgres(postgres_url, read_only=True)


async def test_a_check_tells_which_settings_take_a_promise_away(store: PostgresStore) -> None:
    problems = await store.check()  # of the tests' own server, which is fast and not safe
    assert any("fsync is off" in problem for problem in problems)


async def test_a_test_may_bring_its_own_clock(postgres_url: str) -> None:
    times = [5_000]
    store = await open_postgres(postgres_url, clock=lambda: times[-1])
    run_id, held_back = new_id(), new_id()
    assert await store.submit(started(run_id)) == "applied"
    waiting = queued(held_back)
    assert waiting.enqueue is not None
    waiting.enqueue.eligible_at = 9_000
    assert await store.submit(waiting) == "applied"
    times.append(4_000)
    assert store.now() == 5_000
    assert await store.submit(taken(held_back, 0, 2, "t2")) == "lost"
    times.append(9_000)
    assert await store.submit(taken(held_back, 0, 2, "t2")) == "applied"
    assert {event.at for event in await store.journal(run_id)} == {5_000}
    assert [event.at for event in await store.journal(held_back)] == [5_000, 9_000]
    assert [lease.expires_at - lease.acquired_at for lease in await store.leases()] == [20_000, 20_000]
    await store.close()


async def test_the_functions_of_an_older_program_stay_beside_those_of_this_one(store: PostgresStore) -> None:
    watcher = await asyncpg.connect(store._address.dsn)
    names = {row[0] for row in await watcher.fetch("select proname from pg_proc where proname like 'ironflow%'")}
    await watcher.close()
    suffixes = {name.rsplit("_", 1)[1] for name in names}
    assert len(suffixes) == 1
    assert len(names) == 12


@pytest.mark.parametrize(
    "unfit",
    [
        {"changes": {"reason": "x"}},
        {"lanes": [("l", 1)]},
        {"events": [Event(0, "x")]},
        {"events": [Event(4, "x"), Event(6, "x")]},
        {"events": [Event(4, "x", None, "y" * 9000)]},
        {"events": [Event(4, "x", None, None, 9)]},
    ],
    ids=["columns by name", "lanes", "no number", "a gap", "a large payload", "another execution_seq"],
)
def test_what_the_fast_statements_cannot_carry_goes_another_way(unfit: dict[str, object]) -> None:
    change = appended("run", 4)
    assert shapes.fits(change)
    for name, value in unfit.items():
        setattr(change, name, value)
    assert not shapes.fits(change)
