"""Behind a pooler that changes servers between transactions: known when the database is opened, or told by its errors.

Without `prepare=false` such a pooler mixes up prepared statements, and those of two programs can have the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import asyncpg
import pytest
from tests.store.build import answer, start
from tests.store.pooler import PGBOUNCER, bouncing, pooling

from ironflow.errors import StoreError
from ironflow.model.transition import APPLIED
from ironflow.store import connect
from ironflow.store.postgres_link import Address, translated, unreachable

with_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")


@pytest.fixture(params=["ours", *(pytest.param(one, marks=with_pgbouncer) for one in ("pgbouncer", "round robin"))])
async def pooled_url(request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a pooler in transaction mode."""
    pooler: AbstractAsyncContextManager[str] = (
        pooling(postgres_url)
        if request.param == "ours"
        else bouncing(postgres_url, tmp_path, "transaction", round_robin=request.param == "round robin")
    )
    async with pooler as url:
        yield url


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_pooler_in_transaction_mode_of_which_the_address_says_nothing_is_refused(
    pooled_url: str, read_only: bool
) -> None:
    with pytest.raises(StoreError, match="is a pooler that changes servers between transactions") as refused:
        await connect(pooled_url, read_only=read_only)
    assert refused.value.code == "STORE_UNAVAILABLE"
    assert refused.value.hint is not None
    assert "prepare=false" in refused.value.hint


async def test_it_is_refused_while_others_use_it_too(pooled_url: str) -> None:
    stopped = asyncio.Event()

    async def other() -> None:
        connection = await asyncpg.connect(pooled_url, statement_cache_size=0)
        while not stopped.is_set():
            await connection.fetchval("select pg_sleep(0.001)")
        await connection.close()

    others = [asyncio.ensure_future(other()) for _ in range(6)]
    try:
        for _ in range(10):
            with pytest.raises(StoreError, match="changes servers"):
                await connect(pooled_url)
    finally:
        stopped.set()
        await asyncio.gather(*others)


async def test_with_prepare_false_it_is_worked_with(pooled_url: str) -> None:
    store = await connect(f"{pooled_url}?prepare=false")
    assert await answer(store, start("r1")) == APPLIED
    assert await store.run("r1") is not None
    await store.close()


@pytest.mark.parametrize("kind", ["ours", pytest.param("pgbouncer", marks=with_pgbouncer)])
async def test_a_pooler_that_gives_each_client_a_session_needs_no_word_in_the_address(
    postgres_url: str, tmp_path: Path, kind: str
) -> None:
    pooler = pooling(postgres_url, sessions=True) if kind == "ours" else bouncing(postgres_url, tmp_path, "session")
    async with pooler as url:
        store = await connect(url)
        assert await answer(store, start("r1")) == APPLIED
        await store.close()


async def test_no_two_connections_have_statements_of_the_same_name(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = Address(postgres_url)
    names: set[str] = set()
    for _ in range(2):
        # As in two processes, each of which counts from the beginning.
        monkeypatch.setattr("asyncpg.connection._uid", 0)
        connection = await address.connect()
        pool = await asyncpg.create_pool(address.dsn, min_size=1, max_size=1, **address.options())
        for one in (connection, pool):
            found = await one.fetch("select name from pg_prepared_statements")
            assert len(found) == 1
            names |= {name for (name,) in found}
        await connection.close()
        await pool.close()
    assert len(names) == 4


@pytest.mark.parametrize(
    ("sqlstate", "said"),
    [("26000", 'prepared statement "__s" does not exist'), ("42P05", 'prepared statement "__s" already exists')],
)
def test_a_statement_that_a_pooler_has_mixed_up_is_told_with_what_to_do_about_it(sqlstate: str, said: str) -> None:
    error = asyncpg.PostgresError.new({"C": sqlstate, "M": said})
    for told in (translated(error, "postgresql://h/d"), unreachable("postgresql://h/d", error)):
        assert isinstance(told, StoreError)
        assert told.message.endswith(said), "without the driver's advice"
        assert told.hint is not None
        assert "prepare=false" in told.hint
