"""A process that stands still in the middle of a transaction does not hold its locks for long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.store.postgres_cases import ROUTE, new_id, queued, started

from ironflow.model.transition import Transition
from ironflow.store import postgres_link
from ironflow.store.postgres import PostgresStore, open_postgres
from ironflow.store.postgres_link import atomically


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await open_postgres(postgres_url)
    yield opened
    await opened.close()


def laned() -> Transition:
    change = queued(new_id(), limits='{"group:g":1}')
    change.lanes = [("group:g", 1)]
    return change


async def test_locks_of_one_that_stands_still_are_given_to_the_next(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link, "STILL_MS", 200)
    assert await store.submit(laned()) == "applied"
    [head] = await store.reserve([ROUTE], 5, "s1", 10_000)
    await store.unreserve([(head.run_id, str(head.reservation))])
    frozen = await asyncpg.connect(postgres_url)
    standing = atomically(frozen)
    await standing.__aenter__()
    assert await frozen.fetch("select lane from lanes for update")
    # It says no more; and somebody else needs the row of that lane.
    async with asyncio.timeout(10):
        assert len(await store.reserve([ROUTE], 5, "s1", 10_000)) == 1
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await frozen.execute("select 1")
    frozen.terminate()


async def test_one_that_stood_still_does_its_work_once_more(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link, "STILL_MS", 200)
    run_id = new_id()
    assert await store.submit(started(run_id)) == "applied"
    decided: list[int] = []

    def decide(locked: Any) -> Transition | None:
        decided.append(locked.row.execution_seq)
        if len(decided) == 1:
            _stand_still(store)
        return None

    assert await store.decide([run_id], decide) == {run_id: None}
    assert decided == [1, 1]


def _stand_still(store: PostgresStore) -> None:
    """Block this thread, as a stopped process does, until no transaction of the database waits for its owner."""

    async def ended() -> None:
        watcher = await asyncpg.connect(store._address.dsn)
        try:
            while await watcher.fetchval(
                "select count(*) from pg_stat_activity"
                " where state = 'idle in transaction' and datname = current_database()"
            ):
                await asyncio.sleep(0.01)
        finally:
            await watcher.close()

    thread = threading.Thread(target=lambda: asyncio.run(ended()))
    thread.start()
    thread.join()
