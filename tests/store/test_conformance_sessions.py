"""Sessions, heartbeats, and what the sweeps look for."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import pytest
from tests.store.build import (
    EXPIRED,
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
    session,
    start,
)
from tests.store.conftest import Open

from ironflow.model.transition import APPLIED, Locked, Transition
from ironflow.store.base import Store
from ironflow.store.heart import LEASE_STALE, REFRESHED


async def beat(store: Store, *held: tuple[str, int, str, bool], name: str = "s1") -> tuple[bool, list[str]]:
    """One heartbeat from a thread, as a worker does it."""

    def call() -> tuple[bool, list[str]]:
        heart = store.heart()
        try:
            alive, _, verdicts = heart.beat(name, HOUR, HOUR, 3, held)
        finally:
            heart.close()
        assert [(v.run_id, v.execution_seq) for v in verdicts] == [(run_id, seq) for run_id, seq, _, _ in held]
        return alive, [verdict.verdict for verdict in verdicts]

    return await asyncio.to_thread(call)


async def test_a_session_is_opened_listed_and_opened_again(store: Store) -> None:
    row = session(store, lock_path="a/b", lock_device=1, lock_inode=2, wake_address="c")
    await store.open_session(row)
    assert await store.sessions() == [row]
    row.slots, row.draining = 4, 1
    await store.open_session(row)
    assert await store.sessions() == [row]


async def test_a_session_moves_to_another_address_and_one_that_is_gone_does_not_come_back(store: Store) -> None:
    row = session(store, ttl=1_000, suspect_since=5, wake_address="here")
    await store.open_session(row)
    await store.drain(row.session_id)
    moved = await store.move_session(row.session_id, "there", HOUR)
    assert moved is not None
    assert await store.sessions() == [moved]
    assert (moved.wake_address, moved.suspect_since, moved.draining) == ("there", None, 1)
    assert moved.expires_at >= row.expires_at + HOUR - 1_000
    await store.close_session(row.session_id)
    assert await store.move_session(row.session_id, "there", HOUR) is None
    assert await store.sessions() == []


async def test_a_heartbeat_pushes_session_and_leases_and_sets_credits(store: Store) -> None:
    row = session(store, ttl=1_000, suspect_since=5)
    await store.open_session(row)
    await answers(store, start("r1", ttl=1_000), start("r2", ttl=1_000))
    found = await beat(store, ("r1", 1, "token", True))
    assert found == (True, [REFRESHED])
    (now,) = await store.sessions()
    assert now.heartbeat_at >= row.heartbeat_at
    assert now.expires_at == now.heartbeat_at + HOUR
    assert now.credits == 3
    leases = {lease.run_id: lease for lease in await store.leases()}
    assert leases["r1"].expires_at >= now.heartbeat_at + HOUR
    assert leases["r1"].executing == 1
    if "r2" in leases:  # it was not named: it is left to expire
        assert leases["r2"].expires_at <= leases["r2"].acquired_at + 1_000
        assert leases["r2"].executing is None


async def test_a_heartbeat_clears_a_suspicion(store: Store) -> None:
    await store.open_session(session(store))
    assert await beat(store) == (True, [])
    (row,) = await store.sessions()
    assert row.suspect_since is None


async def test_a_heartbeat_is_refused_for_what_is_not_held(store: Store) -> None:
    await store.open_session(session(store))
    await store.open_session(session(store, "s2"))
    await answers(store, start("r1"), start("r2"), start("r3", session="s2"), start("r4"))
    await answer(store, leave("r4", 4, "completed"))
    found = await beat(
        store,
        ("r1", 1, "token", False),
        ("r2", 1, "wrong token", False),
        ("r1", 2, "token", False),
        ("r3", 1, "token", False),
        ("r4", 1, "token", False),
        ("nobody", 1, "token", False),
    )
    # r1 is named twice; the right one is renewed whatever else was asked of it.
    assert found[1] == [REFRESHED] + [LEASE_STALE] * 5


async def test_an_expired_lease_that_was_not_swept_is_renewed(store: Store) -> None:
    await store.open_session(session(store))
    await answer(store, start("r1", ttl=EXPIRED))
    assert await store.expired_leases(10) == ["r1"]
    assert await beat(store, ("r1", 1, "token", False)) == (True, [REFRESHED])
    assert await store.expired_leases(10) == []
    assert await answer(store, append("r1", 4)) == APPLIED


async def test_a_recovered_run_is_stale_to_its_old_owner(store: Store) -> None:
    await store.open_session(session(store))
    await answer(store, start("r1"))
    await store.decide(["r1"], recovered)
    assert await beat(store, ("r1", 1, "token", False)) == (True, [LEASE_STALE])
    assert await answer(store, activate(await peek_one(store), 5)) == APPLIED
    assert await beat(store, ("r1", 1, "token", False)) == (True, [LEASE_STALE])
    assert await beat(store, ("r1", 3, "token2", False)) == (True, [REFRESHED])


async def test_a_session_that_was_removed_is_told_so_and_renews_nothing(store: Store) -> None:
    await store.open_session(session(store))
    await answers(store, start("r1"), start("r2", session="s2"))
    assert await store.close_session("s1") == ["r1"]
    assert await store.sessions() == []
    assert await store.expired_leases(10) == ["r1"], "its lease has expired; the lease rule requeues"
    assert await store.queue() == []
    assert await beat(store, ("r1", 1, "token", False)) == (False, [LEASE_STALE])
    assert await store.expired_leases(10) == ["r1"]
    assert await store.close_session("s1") == ["r1"], "closing twice does no harm"


async def test_the_list_of_leases_never_shows_an_expired_one(store: Store) -> None:
    await answers(store, start("r1"), start("r2", ttl=EXPIRED))
    assert [lease.run_id for lease in await store.leases()] == ["r1"]


async def test_expired_leases_are_paged_by_run(store: Store) -> None:
    await answers(store, *[start(f"r{n}", ttl=EXPIRED) for n in range(5)], start("live"))
    assert await store.expired_leases(2) == ["r0", "r1"]
    assert await store.expired_leases(9, after="r1") == ["r2", "r3", "r4"]


async def test_expired_sessions_are_found(store: Store) -> None:
    await store.open_session(session(store, "s1"))
    await store.open_session(session(store, "s2", ttl=EXPIRED))
    assert [row.session_id for row in await store.expired_sessions(10)] == ["s2"]


async def test_a_session_that_beat_after_it_was_found_expired_is_left_alone(store: Store) -> None:
    await store.open_session(session(store, "s1", ttl=EXPIRED))
    await answer(store, start("r1"))
    assert [row.session_id for row in await store.expired_sessions(10)] == ["s1"]
    assert (await beat(store))[0]
    assert await store.expire_session("s1") is None
    assert [row.session_id for row in await store.sessions()] == ["s1"]
    assert await store.expired_leases(10) == []


async def test_an_expired_session_ends_with_its_leases(store: Store) -> None:
    await store.open_session(session(store, "s1", ttl=EXPIRED))
    await answer(store, start("r1"))
    assert await store.expire_session("s1") == ["r1"]
    assert await store.expired_leases(10) == ["r1"]
    assert await store.expire_session("s1") is None, "there is nothing left to expire"


async def test_p18_a_lease_and_its_session_keep_the_times_that_each_was_given(store: Store) -> None:
    await store.open_session(session(store, "s1"))
    await answer(store, start("r1"))
    now = store.now()

    def call() -> None:
        heart = store.heart()
        try:
            heart.beat("s1", HOUR, 2 * HOUR, 0, [("r1", 1, "token", True)])
        finally:
            heart.close()

    await asyncio.to_thread(call)
    (row,), (lease,) = await store.sessions(), await store.leases()
    assert abs(row.expires_at - now - HOUR) < HOUR // 10
    assert abs(lease.expires_at - now - 2 * HOUR) < HOUR // 10


async def test_p18_on_postgresql_times_are_those_of_the_database_and_not_of_the_process(
    postgres_url: str, open_store: Open
) -> None:
    """The clock of this database is a day ahead of every process."""
    await _put_ahead(postgres_url, "1 day")
    store = await open_store(postgres_url)
    ahead = time.time_ns() // 1_000_000 + 24 * HOUR
    await store.open_session(session(store, ttl=HOUR))
    await answers(store, start("r1", ttl=HOUR), start("r2", ttl=HOUR), create("r3"))
    await answer(store, start("r4", ttl=HOUR))
    assert await answer(store, activate(await peek_one(store), 2, ttl=HOUR)) == APPLIED
    held = [(f"r{n}", 1, "token2" if n == 3 else "token", True) for n in range(1, 5)]
    for _ in ("as they were given", "as they were renewed"):
        (row,), leases = await store.sessions(), await store.leases()
        assert [lease.run_id for lease in leases] == ["r1", "r2", "r3", "r4"]
        ends = [row.expires_at, *(lease.expires_at for lease in leases)]
        assert all(abs(end - HOUR - ahead) < HOUR // 10 for end in ends), ends
        assert await beat(store, *held) == (True, [REFRESHED] * 4)


async def _put_ahead(url: str, by: str) -> None:
    """From the next connection on, the clock of this database is so much ahead."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"""
            create schema ahead;
            create function ahead.clock_timestamp() returns timestamptz language sql volatile
                as $$ select pg_catalog.clock_timestamp() + interval '{by}' $$;
            do $$ begin
                execute format('alter database %I set search_path = public, ahead, pg_catalog', current_database());
            end $$
        """)
    finally:
        await connection.close()


async def test_a_run_that_nothing_holds_is_unowned(store: Store) -> None:
    await answers(store, start("r1"), create("r2"), start("r3"), start("r4"), start("r5"))
    await answer(store, leave("r4", 4, "sleeping"))
    await answer(store, leave("r5", 4, "completed"))
    soon = store.now() + HOUR
    assert await store.unowned(soon, 10) == ([], "")

    await answer(store, leave("r3", 4, "sleeping"))
    await store.decide(["r3"], changed(state="running"))
    assert await store.unowned(soon, 10) == (["r3"], "")
    assert await store.unowned(1, 10) == ([], ""), "too young: its owner may be on the way"


async def test_the_walk_for_unowned_runs_is_bounded_and_comes_round(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ironflow.store.rows.LIVE_PAGE", 2)
    for n in range(5):
        await answer(store, start(f"r{n}"))
    orphan = await store.decide(["r1", "r4"], _drop_the_lease)
    assert len(orphan) == 2
    soon = store.now() + 1_000
    pages = [await store.unowned(soon, 10, after) for after in ("", "r1", "r3")]
    assert pages == [(["r1"], "r1"), ([], "r3"), (["r4"], "")]
    assert await store.unowned(soon, 10, "r1") == pages[1], "whoever asks twice is told the same"


async def test_a_walk_that_found_as_many_as_it_may_goes_on_behind_them(store: Store) -> None:
    for n in range(3):
        await answer(store, start(f"r{n}"))
    await store.decide(["r0", "r1", "r2"], _drop_the_lease)
    soon = store.now() + 1_000
    assert [await store.unowned(soon, 2, after) for after in ("", "r1")] == [(["r0", "r1"], "r1"), (["r2"], "")]


def _drop_the_lease(locked: Locked) -> Transition:
    change = Transition(locked.row.run_id, "locked")
    change.release = True
    return change
