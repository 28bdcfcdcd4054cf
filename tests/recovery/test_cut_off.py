"""Workers whose connection broke: replaced when they stay away, left alone when they come back."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.recovery.kit import Clock, row, scanner
from tests.store.build import HOUR, answer, answers, append, create, session, start
from tests.store.conftest import Open

from ironflow.loops.capacity_scanner import BACK_WITHIN_MS, CapacityScanner
from ironflow.model import recovery
from ironflow.model.suspicion import Suspicion
from ironflow.model.transition import APPLIED, STALE
from ironflow.store.base import Store

#: The shortest that the settings of these tests allow to be called long.
SETTINGS: dict[str, Any] = {"suspect_after_ms": 60_000, "session_ttl_ms": HOUR, "lease_ttl_ms": HOUR}
LONG_AGO = 1_000


async def heartbeat(store: Store, session_id: str = "s1") -> bool:
    def call() -> bool:
        heart = store.heart()
        try:
            return heart.beat(session_id, HOUR, HOUR, 0, [("r1", 1, "token", True)]).known
        finally:
            heart.close()

    return await asyncio.to_thread(call)


async def cut_off(store: Store) -> None:
    """A worker that executes one run, was promised another, and was cut off long ago. Its clocks are all good."""
    await store.open_session(session(store, ttl=HOUR, suspect_since=LONG_AGO))
    await answers(store, start("r1", ttl=HOUR), create("r2"))
    assert len(await store.reserve(["order"], 1, "s1", HOUR)) == 1


async def test_a_worker_that_stays_cut_off_is_replaced_before_its_clocks_run_out(store: Store) -> None:
    await cut_off(store)
    report = await (await scanner(store, **SETTINGS)).run_once()
    assert report.counts == {"suspects": 1, "recovered": 1, "reservations": 1}
    assert await store.sessions() == []
    assert {one.run_id: one.status for one in await store.queue()} == {"r1": "ready", "r2": "ready"}
    assert (await row(store)).execution_seq == 2
    told = (await store.journal("r1"))[-1].data()
    assert told == {"reason": recovery.SUSPICION, "charged": True, "session": "s1"}
    assert await answer(store, append("r1", 5)) == STALE


async def test_a_worker_that_came_back_is_left_alone(store: Store) -> None:
    await cut_off(store)
    assert await heartbeat(store)
    report = await (await scanner(store, **SETTINGS)).run_once()
    assert report.counts == {}
    assert await answer(store, append("r1", 4)) == APPLIED


async def test_a_heartbeat_between_the_look_and_the_lock_wins(store: Store) -> None:
    await cut_off(store)
    eye = await scanner(store, **SETTINGS)
    look = store.suspects

    async def look_then_beat(suspicion: Suspicion, limit: int) -> Any:
        found = await look(suspicion, limit)
        assert await heartbeat(store)
        return found

    store.suspects = look_then_beat  # type: ignore[method-assign]
    assert (await eye.run_once()).counts == {}
    assert await answer(store, append("r1", 4)) == APPLIED


async def test_a_short_break_is_no_death(store: Store) -> None:
    await store.open_session(session(store, ttl=HOUR))
    await answer(store, start("r1", ttl=HOUR))
    await store.suspect("s1")
    assert (await (await scanner(store, **SETTINGS)).run_once()).counts == {}
    assert len((await store.suspects(Suspicion(1 << 60, 1), 10)).due) == 1


async def test_switched_off_only_proof_and_clocks_count(store: Store) -> None:
    await cut_off(store)
    assert (await (await scanner(store, **{**SETTINGS, "suspect_after_ms": None})).run_once()).counts == {}
    assert len(await store.sessions()) == 1


async def test_a_scanner_that_slept_grants_a_renewal_before_it_acts_on_a_suspicion(store: Store) -> None:
    clock = Clock()
    eye = await scanner(store, clock, **SETTINGS)
    await cut_off(store)
    clock.at += 60
    assert (await eye.run_once()).counts == {}
    assert len(await store.sessions()) == 1


async def test_a_scanner_that_has_just_begun_gives_the_suspects_time_to_come_back_and_no_renewal(store: Store) -> None:
    """A renewal may be half a minute away; a worker that lost its connection comes back at once, or not."""
    await cut_off(store)
    settings = (await scanner(store, **SETTINGS, renewal_interval_ms=30_000, stale_claim_threshold_ms=HOUR)).settings
    eye = CapacityScanner(store, settings, lambda: 0.0)
    assert (await eye.run_once()).counts == {}
    assert eye._patient_until - store.now() <= BACK_WITHIN_MS
    assert eye._grace_until - store.now() > BACK_WITHIN_MS
    eye._patient_until = store.now()  # that time is over
    assert (await eye.run_once()).counts == {"suspects": 1, "recovered": 1, "reservations": 1}


async def test_two_scanners_end_a_suspect_once(store: Store, store_url: str, open_store: Open) -> None:
    other = await open_store(store_url)
    eyes = [await scanner(one, **SETTINGS) for one in (store, other)]
    for n in range(5):  # one after the other: five at once would be a mass
        await store.open_session(session(store, f"s{n}", ttl=HOUR, suspect_since=LONG_AGO + n * 60_001))
        await answer(store, start(f"r{n}", ttl=HOUR, session=f"s{n}"))
    for _ in range(3):  # what one of them has locked is left to a later pass of either
        await asyncio.gather(*[eye.run_once() for eye in eyes])
    assert await store.sessions() == []
    for n in range(5):
        assert (await row(store, f"r{n}")).execution_seq == 2
        kinds = [event.kind for event in await store.journal(f"r{n}")]
        assert kinds.count("run_recovered") == 1
