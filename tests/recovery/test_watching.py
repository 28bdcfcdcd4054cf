"""A scanner that has just begun relies on another one that has watched all the time, and on nobody else."""

from __future__ import annotations

import secrets
from typing import Any

from tests.recovery.kit import EXPIRED, Clock, quick, until
from tests.store.build import answer, session, start
from tests.store.conftest import Open

from ironflow.loops.capacity_scanner import CapacityScanner
from ironflow.store.base import Store

#: Patience that no test has, and passes that are never late by themselves; freshness is what the tests say it is, ms.
PATIENCE: dict[str, Any] = {
    "renewal_interval_ms": 60_000,
    "lease_ttl_ms": 600_000,
    "session_ttl_ms": 600_000,
    "stale_claim_threshold_ms": 600_000,
    "recovery_interval_ms": 20_000,
}
DONE = {"sessions": 1, "recovered": 1}


def beginner(store: Store, clock: Clock | None = None) -> CapacityScanner:
    """A scanner before its first pass."""
    return CapacityScanner(store, quick(**PATIENCE), clock or Clock())


async def expired(store: Store) -> None:
    """A worker whose clocks are over, with a run."""
    await answer(store, start("r1", ttl=EXPIRED))
    await store.open_session(session(store, "s1", ttl=EXPIRED))


async def watching(store: Store, clock: Clock | None = None) -> CapacityScanner:
    """The scanner of a node that listens, that has begun long ago."""
    await store.listen(print, f"node-{secrets.token_hex(6)}")
    eye = beginner(store, clock)
    await eye.run_once()
    eye._grace_until = eye._patient_until = store.now()
    await eye.run_once()
    return eye


async def test_a_new_node_acts_at_once_where_another_has_watched(postgres_url: str, open_store: Open) -> None:
    old, new = await open_store(postgres_url), await open_store(postgres_url)
    await watching(old)
    await expired(new)
    assert (await beginner(new).run_once()).counts == DONE


async def test_a_new_node_waits_where_the_other_has_just_begun_itself(postgres_url: str, open_store: Open) -> None:
    other, new = await open_store(postgres_url), await open_store(postgres_url)
    await other.listen(print, "other")
    await beginner(other).run_once()
    await expired(new)
    assert (await beginner(new).run_once()).counts == {}


async def test_a_new_node_waits_where_the_other_was_late(postgres_url: str, open_store: Open) -> None:
    """All of them stood still together, and it is only one pass since."""
    old, new, clock = await open_store(postgres_url), await open_store(postgres_url), Clock()
    eye = await watching(old, clock)
    clock.at += 3_600
    await eye.run_once()
    await expired(new)
    assert (await beginner(new).run_once()).counts == {}


async def test_a_new_node_waits_where_the_other_is_gone(postgres_url: str, open_store: Open) -> None:
    old, new = await open_store(postgres_url), await open_store(postgres_url)
    await watching(old)
    await old.close()
    await until(lambda: _unwatched(new))
    await expired(new)
    assert (await beginner(new).run_once()).counts == {}


async def test_a_new_node_waits_where_the_other_stands_still(postgres_url: str, open_store: Open) -> None:
    old, new = await open_store(postgres_url), await open_store(postgres_url)
    await watching(old)
    assert await new.watched(60_000)
    assert not await new.watched(0)
    await expired(new)
    eye = beginner(new)
    eye._fresh_ms = 0  # its last word is older than that
    assert (await eye.run_once()).counts == {}


async def test_on_a_file_everybody_sees_for_himself(sqlite_url: str, open_store: Open) -> None:
    old, new = await open_store(sqlite_url), await open_store(sqlite_url)
    await watching(old)
    assert not await new.watched(60_000)


async def _unwatched(store: Store) -> bool:
    return not await store.watched(60_000)
