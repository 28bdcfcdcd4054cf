"""Connections to PostgreSQL that break where several statements belong together: while a store is opened, in the body
of a transactional step, at its commit. Each is a pause with one outcome, and no error of the driver's comes out.
"""

from __future__ import annotations

import re
from typing import Any

import asyncpg
import pytest
from tests.store.build import answer, append, start
from tests.store.conftest import Open
from tests.store.relay import relayed

from ironflow.errors import StoreError, StoreUnreachable
from ironflow.model.transition import APPLIED, UNDONE
from ironflow.store import connect, postgres_link
from ironflow.store.base import Store
from ironflow.testing.postgres import PostgresServer

DEADLINE_MS = 5_000
_LEAVE = "select pg_terminate_backend(pg_backend_pid())"
#: The statements of a commit, as they are seen on the way.
COMMIT = [rb"SAVEPOINT", rb"for (no key )?update", rb"insert into journal_events", rb"RELEASE SAVEPOINT", rb"COMMIT;"]


@pytest.fixture
async def shop(postgres_url: str) -> str:
    """The address of a database with a table of the user's."""
    await (await connect(postgres_url)).close()
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("create table orders (id text primary key)")
    await connection.close()
    return postgres_url


async def orders(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    found = [row[0] for row in await connection.fetch("select id from orders order by 1")]
    await connection.close()
    return found


async def order(connection: Any) -> None:
    await connection.execute("insert into orders values ('a')")


# ---- at the commit


@pytest.mark.parametrize("answered", [False, True], ids=["asked", "answered"])
@pytest.mark.parametrize("statement", COMMIT, ids=[re.sub(r"\W+", "_", text.decode()) for text in COMMIT])
async def test_wherever_a_commit_breaks_the_writes_and_the_completion_share_one_fate(
    shop: str, open_store: Open, statement: bytes, answered: bool
) -> None:
    async with relayed(shop) as (url, relay):
        store = await open_store(url)
        assert await answer(store, start("r1")) == APPLIED
        _, opened = await store.begin(order, deadline_ms=DEADLINE_MS)
        lose = relay.lose_answer if answered else relay.lose_request
        lose(statement)
        took_place = answered and statement == COMMIT[-1]
        assert await opened.commit(append("r1", 4)) == (APPLIED if took_place else UNDONE)
        assert relay.lost == 1
        assert await orders(shop) == (["a"] if took_place else [])
        if not took_place:
            # Undone is for good: the same is there to be written once more, by the same owner.
            _, opened = await store.begin(order, deadline_ms=DEADLINE_MS)
            assert await opened.commit(append("r1", 4)) == APPLIED
        assert await orders(shop) == ["a"]
        assert [event.kind for event in await store.journal("r1")][3:] == ["step_completed"]
        await store.close()


async def test_whether_a_commit_took_place_is_not_guessed_while_the_server_is_away(
    shop: str, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link.Patience, "limit_ms", 100)
    async with relayed(shop) as (url, relay):
        store = await open_store(url)
        assert await answer(store, start("r1")) == APPLIED
        _, opened = await store.begin(order, deadline_ms=DEADLINE_MS)
        relay.cut()
        with pytest.raises(StoreUnreachable):
            await opened.commit(append("r1", 4))
        await store.close()


# ---- in the body


async def test_a_body_is_called_again_however_often_its_connection_breaks_within_the_time_of_an_outage(
    shop: str, open_store: Open
) -> None:
    store = await open_store(shop)
    assert await answer(store, start("r1")) == APPLIED
    calls = 0

    async def body(connection: Any) -> int:
        nonlocal calls
        calls += 1
        await order(connection)
        if calls <= postgres_link.TRIES + 2:
            await connection.execute(_LEAVE)
        return calls

    value, opened = await store.begin(body, deadline_ms=DEADLINE_MS)
    assert value == postgres_link.TRIES + 3
    assert await opened.commit(append("r1", 4)) == APPLIED
    assert await orders(shop) == ["a"]


async def test_a_body_whose_connection_always_breaks_has_an_error_of_its_own_in_the_end(
    shop: str, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is away, so it is no outage: the step fails, and what it was told to do about that is done."""
    monkeypatch.setattr(postgres_link.Patience, "limit_ms", 50)
    store = await open_store(shop)
    calls = 0

    async def body(connection: Any) -> None:
        nonlocal calls
        calls += 1
        await connection.execute(_LEAVE)

    with pytest.raises(StoreError, match=r"broke in each of \d+ calls of a transactional step's body") as failed:
        await store.begin(body, deadline_ms=DEADLINE_MS)
    assert not isinstance(failed.value, StoreUnreachable)
    assert calls >= postgres_link.TRIES


async def test_a_connection_that_breaks_under_several_statements_of_a_read_is_a_pause(
    shop: str, open_store: Open
) -> None:
    async with relayed(shop) as (url, relay):
        store: Store = await open_store(url)
        assert await answer(store, start("r1")) == APPLIED
        for statement in (rb"from waits", rb"REPEATABLE READ", rb"COMMIT;"):
            relay.lose_request(statement)
            assert await store.holdings("r1") is not None
        assert relay.lost == 3
        await store.close()


def test_what_the_driver_says_about_its_own_state_is_not_told() -> None:
    for error in (
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.InterfaceError("cannot call Connection.fetch(): connection has been released back to the pool"),
    ):
        assert postgres_link.lost(error)
        assert str(postgres_link.unreachable("db", error)).startswith("cannot reach db: the connection broke")


# ---- while it is opened


@pytest.fixture
def empty(postgres_server: PostgresServer) -> Any:
    """The address of a database in which there is nothing."""
    url = postgres_server.create_database("empty_and_breaking")
    yield url
    postgres_server.drop_database("empty_and_breaking")


@pytest.mark.parametrize("answered", [False, True], ids=["asked", "answered"])
@pytest.mark.parametrize(
    "statement", ["server_version_num", "BEGIN", "pg_advisory_xact_lock", "create table", "COMMIT;", "current_schema"]
)
async def test_an_opening_goes_on_where_its_connection_breaks(empty: str, statement: str, answered: bool) -> None:
    async with relayed(empty) as (url, relay):
        lose = relay.lose_answer if answered else relay.lose_request
        lose(statement.encode())
        store = await connect(url)
        assert relay.lost == 1
        assert await answer(store, start("r1")) == APPLIED
        await store.close()


@pytest.mark.parametrize("read_only", [False, True])
async def test_an_opening_whose_connections_all_break_is_refused_in_our_words(
    shop: str, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link.Patience, "limit_ms", 50)
    async with relayed(shop) as (url, relay):
        for budget in range(0, 900, 100):
            relay.budgets = [budget] * 1_000
            with pytest.raises(StoreUnreachable, match="cannot reach postgresql://"):
                await connect(url, read_only=read_only)
        relay.budgets = []
        await (await connect(url, read_only=read_only)).close()
