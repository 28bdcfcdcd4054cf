"""A worker whose session is removed, closed or cut short in the middle of opening: no heartbeat goes on without it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.recovery.kit import quick, until

from ironflow import Engine
from ironflow.errors import StoreUnreachable
from ironflow.worker import session as sessions
from ironflow.worker.store_session import StoreSession

#: A removed session is noticed soon, and none is taken for dead because the machine is slow.
SETTINGS = quick(session_ttl_ms=60_000, lease_ttl_ms=60_000, stale_claim_threshold_ms=60_000)


class Held:
    """Its answers are on their way for as long as the test says."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask
        self.on_its_way, self.may_arrive = asyncio.Event(), asyncio.Event()

    async def __call__(self, *arguments: Any) -> Any:
        found = await self._ask(*arguments)
        self.on_its_way.set()
        await self.may_arrive.wait()
        return found


def session_of(engine: Engine) -> StoreSession:
    assert engine.worker is not None
    assert isinstance(engine.worker.session, StoreSession)
    return engine.worker.session


def beating() -> set[threading.Thread]:
    """The threads that renew sessions of this process."""
    return {thread for thread in threading.enumerate() if thread.name == "ironflow-heartbeat"}


async def test_a_session_that_is_closed_while_it_registers_anew_leaves_nothing_behind(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = beating()
    async with Engine(store_url, settings=SETTINGS) as engine:
        session = session_of(engine)
        held = Held(engine.store.open_session)
        monkeypatch.setattr(engine.store, "open_session", held)
        await engine.store.close_session(session.row.session_id)
        await held.on_its_way.wait()
        await session.close()
        held.may_arrive.set()
        await until(lambda: not session._opening.locked())
        assert (session.registered, session.lock, beating() - before) == (False, None, set())
        assert await engine.store.sessions() == []


async def test_news_of_an_earlier_session_is_no_news_of_this_one(store_url: str) -> None:
    async with Engine(store_url, settings=SETTINGS) as engine:
        session = session_of(engine)
        now = session.row.session_id
        session.forgotten("the-one-before")
        assert session.registered
        session.forgotten(now)
        assert not session.registered
        await until(lambda: session.registered)
        assert session.row.session_id != now


async def test_an_opening_that_fails_after_it_registered_is_taken_back_before_the_next(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REGISTER_AGAIN_S", 0.01)
    before = beating()
    async with Engine(store_url, settings=SETTINGS) as engine:
        session = session_of(engine)
        real, failed = session.look_around, []

        async def fails_once() -> None:
            if session._opening.locked() and not failed:
                failed.append(session.row.session_id)
                raise StoreUnreachable("the network is cut")
            await real()

        monkeypatch.setattr(session, "look_around", fails_once)
        session.forgotten(session.row.session_id)
        await until(lambda: failed and session.registered and not session._opening.locked())
        assert session.row.session_id not in failed
        assert len(beating() - before) == 1
    assert beating() - before == set()


async def test_a_session_that_is_removed_before_its_opening_has_ended_is_opened_once_more(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = beating()
    async with Engine(store_url, settings=SETTINGS) as engine:
        session = session_of(engine)
        held = Held(session.look_around)
        monkeypatch.setattr(session, "look_around", held)
        session.forgotten(session.row.session_id)
        await held.on_its_way.wait()
        removed = session.row.session_id
        session.forgotten(removed)
        held.may_arrive.set()
        await until(lambda: session.registered and not session._opening.locked())
        assert session.row.session_id != removed
        assert len(beating() - before) == 1
    assert beating() - before == set()
