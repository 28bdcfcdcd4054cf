"""Suspects who are too many at once to be dead one by one (`model.suspicion`), as both databases count them."""

from __future__ import annotations

import asyncio
import threading

import asyncpg
import pytest
from tests.store.build import EXPIRED, HOUR, answer, session, start
from tests.store.conftest import Open
from tests.store.test_conformance_suspicion import beat

from ironflow.model.suspicion import Mass, Suspicion
from ironflow.store.base import Store

WITHIN = 1_000
#: Everybody has been a suspect for long enough: nothing but a mass holds anybody back.
LATER = Suspicion(1 << 60, WITHIN)


async def suspects(store: Store, *since: int, ttl: int = HOUR) -> list[str]:
    """Sessions s1, s2, … that are suspects since these times (ms)."""
    names = [f"s{n}" for n in range(1, len(since) + 1)]
    for name, at in zip(names, since, strict=True):
        await store.close_session(name)  # one that registers again is back
        await store.open_session(session(store, name, ttl=ttl, suspect_since=at))
    return names


async def others(store: Store, count: int, *, ttl: int = HOUR) -> None:
    """Sessions that were not cut off."""
    for n in range(count):
        await store.open_session(session(store, f"other{n}", ttl=ttl))


async def due(store: Store, suspicion: Suspicion = LATER) -> list[str]:
    return [row.session_id for row in (await store.suspects(suspicion, 100)).due]


async def since(store: Store) -> dict[str, int | None]:
    return {row.session_id: row.suspect_since for row in await store.sessions()}


async def test_up_to_three_suspects_count_one_by_one_however_few_sessions_there_are(store: Store) -> None:
    assert await due(store) == []
    names = await suspects(store, 5, 5, 5)
    assert await store.suspects(LATER, 100) == (await store.sessions(), None)
    for name in names:
        assert await store.expire_session(name, LATER) == []
    assert await store.sessions() == []


async def test_four_of_a_few_sessions_are_a_mass_and_none_of_them_ends_by_suspicion(store: Store) -> None:
    names = await suspects(store, 5, 6, 7, 8)
    await others(store, 2)
    assert await store.suspects(LATER, 100) == ([], Mass(4, 6))
    for name in names:
        assert await store.expire_session(name, LATER) is None
    assert len(await store.sessions()) == 6


async def test_a_fifth_of_the_live_sessions_may_be_suspects_and_not_one_more(store: Store) -> None:
    await suspects(store, 5, 5, 5, 5)
    await others(store, 15)
    assert await store.suspects(LATER, 100) == ([], Mass(4, 19))
    await store.open_session(session(store, "one more", ttl=EXPIRED))
    assert (await store.suspects(LATER, 100)).mass == Mass(4, 19), "its time is up, so it does not count"
    assert await store.expire_session("s1", LATER) is None
    await store.open_session(session(store, "one more", ttl=HOUR))
    assert await due(store) == ["s1", "s2", "s3", "s4"]
    assert await store.expire_session("s1", LATER) == []
    await others(store, 6)
    assert await due(store) == ["s2", "s3", "s4"], "to end one makes no mass of the others"


async def test_a_suspect_whose_time_is_up_counts_as_a_suspect_and_as_live(store: Store) -> None:
    await suspects(store, 5, 5, 5, 5, ttl=EXPIRED)
    assert (await store.suspects(LATER, 100)).mass == Mass(4, 4)


@pytest.mark.parametrize(
    ("begun", "held"),
    [
        ((1, 401, 801, 1_001), 4),
        ((1, 401, 801, 1_002), 0),
        ((1, 401, 801, 1_201, 1_601, 2_001), 0),  # a chain, and never more than three within so long
        ((1, 1_001, 1_001, 1_001, 2_001), 5),  # two stretches that share three of their four
        ((1, 2_000, 2_000, 2_000, 2_000), 4),
        ((1, 1, 1, 1, 2_000), 4),
        ((1, 1, 1, 1, 5_000, 5_000, 5_000, 5_000), 8),
    ],
)
async def test_those_count_together_whose_suspicions_began_within_so_long_of_each_other(
    store: Store, begun: tuple[int, ...], held: int
) -> None:
    names = await suspects(store, *begun)
    counted = await due(store)
    assert len(names) - len(counted) == held
    for name in names:
        if name not in counted:
            assert await store.expire_session(name, LATER) is None
    for name in counted:
        assert await store.expire_session(name, LATER) == []
    assert len(await store.sessions()) == held


async def test_a_mass_is_compared_with_itself_so_it_stays_one_however_much_time_passes(store: Store) -> None:
    now = store.now()
    names = await suspects(store, *[now - HOUR] * 4)
    for until in (now - HOUR + WITHIN, now, now + HOUR):
        assert await due(store, Suspicion(until, WITHIN)) == []
        assert [await store.expire_session(name, Suspicion(until, WITHIN)) for name in names] == [None] * 4


async def test_who_is_not_one_of_the_mass_is_found_behind_it(store: Store) -> None:
    await suspects(store, *[5] * 9, 5_000)
    found = await store.suspects(LATER, 1)
    assert [row.session_id for row in found.due] == ["s10"]
    assert (await store.suspects(Suspicion(4_999, WITHIN), 1)) == ([], Mass(9, 10))


async def test_of_two_masses_the_larger_one_is_told(store: Store) -> None:
    await suspects(store, *[5] * 4, *[5_000] * 5)
    assert (await store.suspects(LATER, 100)).mass == Mass(5, 9)


async def test_once_enough_of_them_are_back_the_rest_count_from_when_they_were_cut_off(
    store: Store, store_url: str, open_store: Open
) -> None:
    other = await open_store(store_url)
    await suspects(store, 5, 5, 5, 5, 5)
    assert (await beat(other, "s5")).known
    assert await store.expire_session("s1", LATER) is None
    assert (await beat(other, "s4")).known
    assert await due(store) == ["s1", "s2", "s3"]
    assert await store.expire_session("s1", Suspicion(4, WITHIN)) is None
    assert await store.expire_session("s1", Suspicion(5, WITHIN)) == []


async def test_who_is_proved_dead_or_leaves_is_one_suspect_less(store: Store) -> None:
    await suspects(store, 5, 5, 5, 5)
    assert await store.close_session("s4") == []
    assert await due(store) == ["s1", "s2", "s3"]


async def test_proof_and_the_clock_count_in_a_mass(store: Store) -> None:
    await suspects(store, 5, 5, 5, 5, 5)
    await answer(store, start("r1", ttl=HOUR))
    assert await store.close_session("s1") == ["r1"]
    await store.open_session(session(store, "s2", ttl=EXPIRED, suspect_since=5))
    assert (await store.suspects(LATER, 100)).mass is None, "it registered, so it is back"
    assert await store.expire_session("s2", Suspicion(4, WITHIN)) == []


async def test_an_end_by_the_clock_is_one_suspect_less(store: Store) -> None:
    await suspects(store, 5, 5, 5)
    await store.open_session(session(store, "s0", ttl=EXPIRED, suspect_since=5))
    assert await due(store) == []
    assert await store.expire_session("s0") == []
    assert await since(store) == {"s1": 5, "s2": 5, "s3": 5}
    assert await due(store) == ["s1", "s2", "s3"]


async def test_the_suspicion_of_a_mass_begins_anew_while_it_lasts_and_only_that(store: Store) -> None:
    """Or the last three to come back, or to run out of time, would be taken the moment that the others had."""
    await suspects(store, 1, 1_001, 2_001, 2_001, 2_001, 9_000)
    await others(store, 1)
    before = store.now()
    await store.hold_back(WITHIN, 2_001)
    found = await since(store)
    anew = found["s2"]
    assert anew is not None
    assert anew >= before
    assert found == {"s1": 1, "s2": anew, "s3": 2_001, "s4": 2_001, "s5": 2_001, "s6": 9_000, "other0": None}
    await store.hold_back(WITHIN, 2_002)
    assert await since(store) == found, "without the one that was begun anew they are three, and those are no mass"


async def test_a_heartbeat_of_one_and_the_end_of_another_at_the_same_time(
    store: Store, store_url: str, open_store: Open
) -> None:
    """Either the end comes first, and finds a mass, or the heartbeat does, and the rest count. In no order are both
    lost: whose heartbeat was heard is there, and once it was, the other one can be ended.
    """
    other = await open_store(store_url)
    for n in range(20):
        names = await suspects(store, 5, 5, 5, 5)
        assert await other.expire_session("s1", LATER) is None
        ready, known = threading.Barrier(2), []

        def call(ready: threading.Barrier = ready, known: list[bool] = known) -> None:
            heart = store.heart()
            try:
                heart.beat("nobody", HOUR, HOUR, 0, [])  # its connection is there
                ready.wait(10)
                known.append(heart.beat("s4", HOUR, HOUR, 3, []).known)
            finally:
                heart.close()

        beating = asyncio.create_task(asyncio.to_thread(call))
        ending = asyncio.ensure_future(other.expire_session("s1", LATER)) if n % 2 else None  # each goes first in turn
        await asyncio.to_thread(ready.wait, 10)
        ended = await (ending or other.expire_session("s1", LATER))
        await beating
        assert known == [True]
        assert (await since(store))["s4"] is None
        if ended is None:
            assert await other.expire_session("s1", LATER) == []
        assert sorted(await since(store)) == names[1:]


async def test_a_heartbeat_that_is_not_committed_yet_decides_the_end_of_its_own_session_and_holds_up_no_other(
    postgres_url: str, open_store: Open
) -> None:
    store = await open_store(postgres_url)
    await suspects(store, 5, 5, 5, 5)
    heart = await asyncpg.connect(postgres_url)
    back = "update worker_sessions set suspect_since = null where session_id = $1"
    try:
        async with heart.transaction():
            await heart.execute(back, "s4")
            # Nobody knows of it yet: it is a mass still, and nobody waits.
            assert await asyncio.wait_for(store.expire_session("s1", LATER), 10) is None
        assert await due(store) == ["s1", "s2", "s3"]
        async with heart.transaction():
            await heart.execute(back, "s1")
            ending = asyncio.ensure_future(store.expire_session("s1", LATER))
            blocked = "select count(*) from pg_locks where not granted"
            async with asyncio.timeout(10):
                while not await heart.fetchval(blocked):
                    await asyncio.sleep(0.005)
            assert not ending.done()
        assert await ending is None
        assert await store.expire_session("s2", LATER) == []
    finally:
        await heart.close()
    assert sorted(await since(store)) == ["s1", "s3", "s4"]


async def test_to_hold_back_takes_no_heartbeat_back_and_waits_for_none(postgres_url: str, open_store: Open) -> None:
    store = await open_store(postgres_url)
    await suspects(store, *[5] * 5)
    heart = await asyncpg.connect(postgres_url)
    try:
        async with heart.transaction():
            await heart.execute("update worker_sessions set suspect_since = null where session_id = 's1'")
            await asyncio.wait_for(store.hold_back(WITHIN, 6), 10)
    finally:
        await heart.close()
    found = await since(store)
    assert found.pop("s1") is None
    assert min(at or 0 for at in found.values()) > 5


async def test_two_scanners_hold_back_one_mass_at_the_same_time_and_nobody_who_has_beaten(
    store: Store, store_url: str, open_store: Open
) -> None:
    other = await open_store(store_url)
    for _ in range(10):
        await suspects(store, *[5] * 8)
        await asyncio.gather(store.hold_back(WITHIN, 6), beat(store, "s8"), other.hold_back(WITHIN, 6))
        found = await since(store)
        assert found.pop("s8") is None
        assert min(at or 0 for at in found.values()) > 5
