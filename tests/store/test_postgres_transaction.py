"""Transactional steps: the user's writes and the step's completion stand or fall together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.store.postgres_cases import appended, assert_dense, new_id, recovered, started

from ironflow.errors import StoreError
from ironflow.model.journal import Event
from ironflow.model.transition import GUARD_LOCKED, Locked, Transition
from ironflow.store.postgres import PostgresStore, open_postgres

DEADLINE_MS = 250


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await open_postgres(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("create table orders (id text primary key)")
    await connection.close()
    yield opened
    await opened.close()


async def orders(store: PostgresStore) -> set[str]:
    connection = await asyncpg.connect(store._address.dsn)
    found = {row[0] for row in await connection.fetch("select id from orders")}
    await connection.close()
    return found


def order(name: str) -> Any:
    async def body(connection: Any) -> str:
        await connection.execute("insert into orders values ($1)", name)
        return name.upper()

    return body


async def test_the_writes_of_a_body_appear_with_its_completion(store: PostgresStore) -> None:
    run_id = new_id()
    await store.submit(started(run_id))
    value, transaction = await store.begin(order("a"), deadline_ms=DEADLINE_MS)
    assert value == "A"
    assert await orders(store) == set()
    assert await transaction.commit(appended(run_id, 4)) == "applied"
    assert await orders(store) == {"a"}
    assert_dense(await store.journal(run_id))
    assert len(await store.journal(run_id)) == 5


async def test_an_owner_that_was_replaced_takes_its_writes_along(store: PostgresStore) -> None:
    run_id = new_id()
    await store.submit(started(run_id))
    _, transaction = await store.begin(order("a"), deadline_ms=DEADLINE_MS)
    # The body holds no lock of the engine's: the scanner does not wait for it.
    await asyncio.wait_for(store.decide([run_id], recovered), 10)
    assert await transaction.commit(appended(run_id, 4)) == "stale"
    assert await orders(store) == set()
    with pytest.raises(StoreError, match="ended already"):
        await transaction.commit(appended(run_id, 4))


async def test_after_news_the_transaction_is_open_and_the_run_is_not_locked(store: PostgresStore) -> None:
    run_id = new_id()
    await store.submit(started(run_id))
    _, transaction = await store.begin(order("a"), deadline_ms=DEADLINE_MS)

    def tell(locked: Locked) -> Transition:
        change = Transition(run_id, GUARD_LOCKED)
        change.changes = {"facts": locked.row.facts + 1}
        return change

    await store.decide([run_id], tell)
    change = appended(run_id, 4)
    change.facts = 0
    assert await transaction.commit(change) == "news"
    await asyncio.wait_for(store.decide([run_id], tell), 10)
    change.facts = 2
    assert await transaction.commit(change) == "applied"
    assert await orders(store) == {"a"}


async def test_what_a_body_raises_undoes_its_writes(store: PostgresStore) -> None:
    async def fail(connection: Any) -> None:
        await connection.execute("insert into orders values ('a')")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.begin(fail, deadline_ms=DEADLINE_MS)
    assert await orders(store) == set()


async def test_a_body_that_was_not_wanted_any_more_is_rolled_back(store: PostgresStore) -> None:
    _, transaction = await store.begin(order("a"), deadline_ms=DEADLINE_MS)
    await transaction.rollback()
    await transaction.rollback()
    assert await orders(store) == set()


async def test_a_body_may_not_end_the_transaction(store: PostgresStore) -> None:
    async def commit(connection: Any) -> None:
        await connection.execute("commit")

    with pytest.raises(StoreError, match="ended its transaction"):
        await store.begin(commit, deadline_ms=DEADLINE_MS)


@pytest.mark.parametrize("committed", [True, False])
async def test_a_lost_answer_to_the_commit_is_resolved_by_the_row(store: PostgresStore, committed: bool) -> None:
    run_id = new_id()
    await store.submit(started(run_id))
    _, transaction = await store.begin(order("a"), deadline_ms=DEADLINE_MS)
    real = transaction._transaction

    class Losing:
        async def commit(self) -> None:
            await (real.commit() if committed else real.rollback())
            raise ConnectionResetError("the answer was lost")

        async def rollback(self) -> None:
            raise ConnectionResetError("closed")

    transaction._transaction = Losing()
    change = appended(run_id, 0)
    change.events = [Event(0, "step_completed", "s3")]
    assert await transaction.commit(change) == ("applied" if committed else "undone")
    assert await orders(store) == ({"a"} if committed else set())
    assert len(await store.journal(run_id)) == (4 if committed else 3)


async def test_a_connection_that_is_killed_before_the_commit_loses_both(store: PostgresStore) -> None:
    run_id = new_id()
    await store.submit(started(run_id))
    _, transaction = await store.begin(order("a"), deadline_ms=DEADLINE_MS)
    killer = await asyncpg.connect(store._address.dsn)
    await killer.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    await killer.close()
    assert await transaction.commit(appended(run_id, 4)) == "undone"
    assert await orders(store) == set()
    _, transaction = await store.begin(order("a"), deadline_ms=DEADLINE_MS)
    assert await transaction.commit(appended(run_id, 4)) == "applied"
    assert await orders(store) == {"a"}
