"""The clock behind a store is set back: time stands still until it has come after, and nobody is accused by it."""

from __future__ import annotations

import asyncpg
import pytest
from tests.recovery.kit import Clock as Monotonic
from tests.recovery.kit import scanner, until
from tests.store.build import answer, create, session
from tests.store.conftest import Open

from ironflow.model.transition import APPLIED
from ironflow.store.base import Store
from ironflow.store.postgres import PostgresStore
from ironflow.store.postgres_link import Clock

MS = 1_000_000


def test_time_stands_still_for_as_long_as_it_was_ahead() -> None:
    monotonic = [0]
    clock = Clock(monotonic=lambda: monotonic[0])
    clock.saw(10_000)
    monotonic[0] = 5 * MS
    assert clock.now() == 10_005
    assert clock.compare(clock.now(), 9_805) == 200
    for passed, now in ((1, 10_005), (199, 10_005), (200, 10_005), (203, 10_008)):
        monotonic[0] = (5 + passed) * MS
        clock.saw(clock.floor())  # what a database answers that is not further than it was told
        assert clock.now() == now, passed


def test_a_database_that_goes_on_ahead_ends_the_standstill() -> None:
    clock = Clock(monotonic=lambda: 0)
    clock.saw(10_000)
    assert clock.compare(clock.now(), 4_000) == 6_000
    clock.saw(12_000)
    assert clock.now() == 12_000
    assert clock.compare(clock.now(), 12_500) == 0
    assert clock.now() == 12_500


async def test_a_clock_that_is_set_back_is_told_by_how_much(store_url: str, open_store: Open) -> None:
    host = [1_000_000]
    store = await open_store(store_url, clock=lambda: host[0])
    assert (store.now(), await store.ahead()) == (1_000_000, 0)
    host[0] -= 5_000
    assert (store.now(), await store.ahead()) == (1_000_000, 5_000)
    host[0] += 6_000
    assert (store.now(), await store.ahead()) == (1_001_000, 0)


@pytest.fixture
async def ahead(postgres_url: str, open_store: Open) -> Store:
    """A store that has seen its database's clock 25 s ahead of what that says now."""
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("""
            create schema ahead;
            create table ahead.by as select interval '25 s' as much;
            create function ahead.clock_timestamp() returns timestamptz language sql volatile
                as $$ select pg_catalog.clock_timestamp() + much from ahead.by $$;
            do $$ begin
                execute format('alter database %I set search_path = public, ahead, pg_catalog', current_database());
            end $$
        """)
        store = await open_store(postgres_url)
        assert await answer(store, create("before")) == APPLIED
        await connection.execute("update ahead.by set much = interval '0 s'")
    finally:
        await connection.close()
    return store


async def test_a_failover_to_a_clock_that_is_behind_costs_no_new_worker_its_session(
    ahead: Store, postgres_url: str, open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    later = await open_store(postgres_url)
    await later.open_session(session(later, ttl=20_000))
    assert ahead.now() > later.now() + 20_000, "by the older node's clock that session has ended"
    eye = await scanner(ahead, Monotonic())
    for _ in range(3):
        assert await answer(ahead, create(f"r{_}")) == APPLIED  # whose time is not the database's
        await eye.run_once()
    assert [row.session_id for row in await later.sessions()] == ["s1"]
    assert [
        record.message.partition(" s before")[0] for record in caplog.records if "clock of the" in record.message
    ] == ["the clock of the database stands 25.0"]


async def test_who_only_starts_runs_comes_back_to_the_database_s_time(
    ahead: Store, postgres_url: str, open_store: Open
) -> None:
    assert isinstance(ahead, PostgresStore)
    clock = ahead._clock
    later = await open_store(postgres_url)
    clock._unchecked = 0  # as if it had not asked for a while
    assert await answer(ahead, create("r1")) == APPLIED
    await until(lambda: not clock.unchecked(), "who waits for the commit does not wait for this")
    stands = ahead.now()
    await until(lambda: later.now() > stands - 24_500, "half a second of the database's time has passed")
    assert ahead.now() == stands
