"""What a node knows of the sessions, where one is changed through it while it reads all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.store.build import session

from ironflow.errors import SessionUnknown
from ironflow.model.capacity import HTTP, SessionRow
from ironflow.model.routing import Served, Serves
from ironflow.model.scope import DEFAULT
from ironflow.server.access import Caller
from ironflow.server.sessions import Known, Sessions
from ironflow.store.base import Store

CALLER = Caller(DEFAULT, "worker", None, "k", "w", "hash")


def serving(store: Store, workflow: str) -> SessionRow:
    serves = Serves(DEFAULT, (), {workflow: Served(("1",), ())})
    return session(store, "s", kind=HTTP, serves=serves.to_json(), key_id=CALLER.key_id)


class Reading:
    """A view whose look is under way: it has seen the session `s` as it was, and goes on at `ended`."""

    def __init__(self, store: Store) -> None:
        self.sessions = Sessions(store)
        self.seen, self._go_on = asyncio.Event(), asyncio.Event()
        self._read = store.sessions
        store.sessions = self._slowly  # type: ignore[method-assign]

    async def _slowly(self) -> list[SessionRow]:
        rows = await self._read()
        self.seen.set()
        await self._go_on.wait()
        return rows

    async def ended(self) -> None:
        self._go_on.set()
        await self.sessions.refresh()

    async def known(self) -> Known:
        return await self.sessions.known("s", CALLER)


@pytest.fixture
async def reading(sqlite: Store) -> AsyncIterator[Reading]:
    await sqlite.open_session(serving(sqlite, "before"))
    made = Reading(sqlite)
    made.sessions.add(serving(sqlite, "before"))
    look = asyncio.ensure_future(made.sessions.refresh())
    await asyncio.wait_for(made.seen.wait(), 10)
    yield made
    await made.ended()
    await look


async def test_a_session_that_was_removed_during_a_look_is_not_brought_back_by_it(
    sqlite: Store, reading: Reading
) -> None:
    await sqlite.close_session("s")
    reading.sessions.forget("s")
    await reading.ended()
    assert reading.sessions.rows == []
    with pytest.raises(SessionUnknown):
        await reading.known()


async def test_what_a_session_said_during_a_look_is_not_taken_back_by_it(sqlite: Store, reading: Reading) -> None:
    await sqlite.open_session(serving(sqlite, "after"))
    reading.sessions.add(serving(sqlite, "after"))
    await reading.ended()
    assert (await reading.known()).serves.workflows.keys() == {"after"}


async def test_a_session_that_is_to_leave_is_handed_nothing_because_of_a_look_that_began_before(
    sqlite: Store, reading: Reading
) -> None:
    await sqlite.drain("s")
    reading.sessions.drain("s")
    await reading.ended()
    assert (await reading.known()).row.draining == 1


async def test_what_others_changed_is_seen_by_the_next_look(sqlite: Store, reading: Reading) -> None:
    reading.sessions.drain("s")
    await reading.ended()
    await sqlite.close_session("s")
    await reading.ended()
    assert reading.sessions.rows == []
