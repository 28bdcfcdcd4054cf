"""The journal on PostgreSQL, for whoever speaks to the database itself: it is added to, and nothing else."""

from __future__ import annotations

import asyncpg
import pytest
from tests.store.build import answer, start
from tests.store.conftest import Open

from ironflow.store.base import INLINE_PAYLOAD


@pytest.mark.parametrize("statement", [
    "update journal_events set kind = 'x'",
    "update journal_events set at = at",
    "delete from journal_events",
    "delete from journal_events where run_id = 'r1'",
    "insert into journal_events select * from journal_events on conflict (run_id, seq) do update set kind = 'x'",
    "truncate journal_events",
    "update journal_payloads set payload = 'x'",
    "delete from journal_payloads",
    "truncate journal_payloads",
    "truncate journal_events, journal_payloads, runs cascade",
])  # fmt: skip
async def test_p8_nobody_changes_deletes_or_empties_it(postgres_url: str, open_store: Open, statement: str) -> None:
    store = await open_store(postgres_url)
    change = start("r1")
    change.events[0].payload = "x" * 2 * INLINE_PAYLOAD
    await answer(store, change)
    before = [repr(event) for event in await store.journal("r1")]
    connection = await asyncpg.connect(postgres_url)
    try:
        assert await connection.fetchval("select count(*) from journal_payloads") == 1
        with pytest.raises(asyncpg.RaiseError, match="the journal is append-only"):
            await connection.execute(statement)
    finally:
        await connection.close()
    assert [repr(event) for event in await store.journal("r1")] == before
