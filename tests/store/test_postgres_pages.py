"""What is due is read by the page: a herd of timers costs a look its page, and not the herd.

The planner never knows of a herd that was just written, and would read and sort all of it for every page. Rows that are
fetched are counted by the server itself, in the transaction of the look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.store.postgres_cases import ROUTE, started

from ironflow.model.transition import GUARD_OWNER, Transition
from ironflow.model.wait import WaitRow
from ironflow.store.postgres import PostgresStore, open_postgres

HERD, PAGE = 1_500, 10
#: A wait and its run for each row of the page, and what it takes to write a claim.
MOST_ROWS = 4 * PAGE
FETCHED = """
select sum(coalesce(idx_tup_fetch, 0) + seq_tup_read) from pg_stat_xact_user_tables where relname in ('runs', 'waits')
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
    statement = store._statements[name]
    given = {"now": store.now(), **values}
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
