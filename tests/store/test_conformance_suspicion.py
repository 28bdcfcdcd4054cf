"""Suspicion and the wish to drain: what a session's row says of it, and what its next heartbeat makes of that."""

from __future__ import annotations

import asyncio
import threading

from tests.store.build import HOUR, TTL, answer, create, session, start
from tests.store.conftest import Open

from ironflow.model.suspicion import Suspicion
from ironflow.store.base import Store
from ironflow.store.heart import Beat

#: Everybody has been a suspect for long enough.
LATER = Suspicion(1 << 60, 1_000)


def since(at: int) -> Suspicion:
    """Who has been a suspect since this time (ms) has been one for long enough."""
    return Suspicion(at, 1_000)


async def beat(store: Store, session_id: str = "s1") -> Beat:
    def call() -> Beat:
        heart = store.heart()
        try:
            return heart.beat(session_id, TTL, TTL, 3, [])
        finally:
            heart.close()

    return await asyncio.to_thread(call)


async def test_a_session_is_suspect_from_the_first_word_until_its_next_heartbeat(store: Store) -> None:
    await store.open_session(session(store))
    assert await store.suspects(LATER, 10) == ([], None)
    before = store.now()
    assert await store.suspect("s1")
    ((first,), _) = await store.suspects(LATER, 10)
    assert first.suspect_since is not None
    assert first.suspect_since >= before
    assert not await store.suspect("s1")
    assert not await store.suspect("nobody")
    ((still,), _) = await store.suspects(LATER, 10)
    assert still.suspect_since == first.suspect_since
    assert await store.suspects(since(first.suspect_since - 1), 10) == ([], None)
    assert (await beat(store)).known
    assert await store.suspects(LATER, 10) == ([], None)


async def test_suspects_are_listed_longest_first_and_no_more_than_asked_for(store: Store) -> None:
    for n in (3, 1, 2):
        await store.open_session(session(store, f"s{n}", suspect_since=n))
    assert [row.session_id for row in (await store.suspects(LATER, 2)).due] == ["s1", "s2"]


async def test_a_session_that_registers_again_is_not_suspect_and_its_wish_to_drain_stays(store: Store) -> None:
    row = session(store)
    await store.open_session(row)
    await store.suspect("s1")
    assert await store.drain("s1")
    await store.open_session(row)
    (found,) = await store.sessions()
    assert (found.suspect_since, found.draining) == (None, 1)


async def test_a_heartbeat_hears_the_wish_to_drain(store: Store) -> None:
    await store.open_session(session(store))
    assert await beat(store) == Beat(True, False, [])
    assert await store.drain("s1")
    assert not await store.drain("nobody")
    assert await beat(store) == Beat(True, True, [])
    assert await beat(store, "nobody") == Beat(False, False, [])


async def test_a_suspect_is_expired_only_if_it_has_been_one_since_then(store: Store) -> None:
    await store.open_session(session(store, suspect_since=100))
    await store.open_session(session(store, "s2"))
    await answer(store, start("r1", ttl=HOUR))
    assert await store.expire_session("s1") is None
    assert await store.expire_session("s1", since(99)) is None
    assert await store.expire_session("s2", LATER) is None
    assert await store.expire_session("s1", since(100)) == ["r1"]
    assert [row.session_id for row in await store.sessions()] == ["s2"]
    assert await store.expired_leases(10) == ["r1"]


async def test_what_was_promised_to_a_suspect_comes_back_with_it(store: Store) -> None:
    await store.open_session(session(store, suspect_since=100))
    await answer(store, create("r1"))
    assert await store.reserve(["order"], 1, "s1", HOUR) != []
    assert await store.expire_session("s1", since(100)) == []
    assert await store.expired_reservations(10) == ["r1"]


async def test_of_a_heartbeat_and_an_end_by_suspicion_exactly_one_wins(
    store: Store, store_url: str, open_store: Open
) -> None:
    """A worker that hears it is known keeps its session: no end by suspicion overtakes a heartbeat that came first."""
    other = await open_store(store_url)
    outcomes = set()
    for n in range(30):
        name = f"s{n}"
        await store.open_session(session(store, name, suspect_since=100))
        ready, answers = threading.Barrier(2), []

        def call(name: str = name, ready: threading.Barrier = ready, answers: list[Beat] = answers) -> None:
            heart = store.heart()
            try:
                heart.beat("nobody", TTL, TTL, 0, [])  # its connection is there
                ready.wait(10)
                answers.append(heart.beat(name, TTL, TTL, 3, []))
            finally:
                heart.close()

        beating = asyncio.create_task(asyncio.to_thread(call))
        first = n % 2  # each goes first in turn
        ending = asyncio.ensure_future(other.expire_session(name, since(100))) if first else None
        await asyncio.to_thread(ready.wait, 10)
        ended = await (ending or other.expire_session(name, since(100)))
        await beating
        known = answers[0].known
        assert known == (ended is None)
        assert known == (name in {row.session_id for row in await store.sessions()})
        outcomes.add(known)
    assert outcomes == {True, False}
