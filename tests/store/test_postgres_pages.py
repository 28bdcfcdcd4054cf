"""What is due is read by the page: a herd of timers or of delayed segments costs a look its page, and not the herd.

The planner never knows of a herd that was just written, and would read and sort all of it for every page. Rows that are
fetched are counted by the server itself, in the transaction of the look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.store.postgres_cases import ROUTE, queued, started

from ironflow.model.transition import GUARD_OWNER, Transition
from ironflow.model.wait import WaitRow
from ironflow.store.postgres import PostgresStore, open_postgres

HOUR = 3_600_000
HERD, PAGE = 1_500, 10
#: A wait and its run for each row of the page, and what it takes to write a claim.
MOST_ROWS = 4 * PAGE
FETCHED = """
select sum(coalesce(idx_tup_fetch, 0) + seq_tup_read) from pg_stat_xact_user_tables
where relname in ('runs', 'waits', 'dispatch_queue')
"""


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await open_postgres(postgres_url)
    yield opened
    await opened.close()


async def asleep(store: PostgresStore, run_id: str, due: int) -> None:
    assert await store.submit(started(run_id)) == "applied"
    change = Transition(run_id, GUARD_OWNER, 1, "t1")
    change.state, change.release = "sleeping", True
    change.waits = [WaitRow(run_id, "main/1:sleep", "sleep", "sleeping", due)]
    assert await store.submit(change) == "applied"


async def delayed(store: PostgresStore, run_id: str, eligible_at: int) -> None:
    change = queued(run_id)
    assert change.enqueue is not None
    change.enqueue.eligible_at = eligible_at
    assert await store.submit(change) == "applied"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("due_of_any", {"limit": PAGE, "routes": [ROUTE]}),
        ("claim_due", {"limit": PAGE, "node": "n1"}),
        ("next_due", {}),
    ],
)
async def test_a_page_of_a_herd_fetches_its_own_rows(store: PostgresStore, name: str, values: dict[str, Any]) -> None:
    await asyncio.gather(*(asleep(store, f"r{n:05d}", 1_000 + n) for n in range(HERD)))
    await assert_a_page_is_fetched(store, name, {"now": store.now(), **values})


async def test_a_page_of_delayed_segments_fetches_its_own_rows(store: PostgresStore) -> None:
    soon = store.now() + HOUR
    await asyncio.gather(*(delayed(store, f"r{n:05d}", soon + n) for n in range(HERD)))
    await assert_a_page_is_fetched(store, "promote_due", {"now": soon + HERD, "limit": PAGE})


async def test_a_page_of_delayed_segments_passes_over_what_somebody_else_has_in_hand(store: PostgresStore) -> None:
    now = store.now()
    for n in range(4):
        await delayed(store, f"r{n}", now + 100 + n)
    own = await asyncpg.connect(store._address.dsn)
    try:
        async with own.transaction():
            await own.fetch("select run_id from dispatch_queue where run_id in ('r0', 'r2') for update")
            while store.now() <= now + 103:
                await asyncio.sleep(0.01)
            assert [await store.promote(2), await store.promote(2)] == [2, 0], "the page is full of what is free"
            assert {row.run_id for row in await store.queue() if row.status == "ready"} == {"r1", "r3"}
        assert await store.promote(2) == 2
    finally:
        await own.close()


async def assert_a_page_is_fetched(store: PostgresStore, name: str, given: dict[str, Any]) -> None:
    statement = store._statements[name]
    own = await asyncpg.connect(store._address.dsn)
    try:
        # The plan for a known value, and the one that is kept after some calls.
        for _ in range(7):
            looking = own.transaction()
            await looking.start()
            before = await own.fetchval(FETCHED)
            found = await own.fetch(statement.text, *[given[param] for param in statement.params])
            fetched = await own.fetchval(FETCHED) - before
            await looking.rollback()
            assert len(found) == (1 if name == "next_due" else PAGE)
            assert 0 < fetched <= MOST_ROWS
    finally:
        await own.close()
