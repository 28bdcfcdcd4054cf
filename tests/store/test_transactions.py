"""Transactional steps at their edges: code that hangs, breaks the rules, or outlives its time; answers that are lost.

What every transaction promises is tested beside each store; here is what its user could do to it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from tests.store.build import answer, append, start
from tests.store.relay import LOSE_THE_ANSWER, LOSE_THE_COMMIT, losing

from ironflow.errors import StepTimeout, StoreError
from ironflow.model.transition import APPLIED, UNDONE
from ironflow.store import postgres_transaction
from ironflow.store.base import Store

DEADLINE_MS = 5_000
Open = Callable[..., Awaitable[Store]]


def kinds(journal: list[Any]) -> list[str]:
    return [event.kind for event in journal]


# ---- SQLite


def shop(connection: sqlite3.Connection, item: str) -> None:
    connection.execute("create table if not exists shop (item text primary key)")
    connection.execute("insert into shop values (?)", (item,))


async def sold(store: Store) -> list[str]:
    """What is in the shop, seen by the next transaction."""

    def look(connection: sqlite3.Connection) -> list[str]:
        connection.execute("create table if not exists shop (item text primary key)")
        return [item for (item,) in connection.execute("select item from shop order by 1")]

    found, opened = await store.begin(look, deadline_ms=DEADLINE_MS)
    await opened.rollback()
    return list(found)


class Hanging:
    """A body whose Python code hangs between two statements until the test lets it go."""

    def __init__(self) -> None:
        self.hangs, self.goes_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.refusal: Exception | None = None

    def __call__(self, connection: sqlite3.Connection) -> None:
        shop(connection, "before")
        self.hangs.set()
        self.goes_on.wait(20)
        try:
            connection.execute("insert into shop values ('after')")
        except Exception as error:
            self.refusal = error
        self.ended.set()


async def test_code_that_hangs_is_cut_off_at_its_deadline_and_can_write_nothing_afterwards(sqlite: Store) -> None:
    body = Hanging()
    with pytest.raises(StepTimeout, match="50 ms"):
        await sqlite.begin(body, deadline_ms=50)
    assert not body.ended.is_set()
    assert await answer(sqlite, start("r1")) == APPLIED, "others write while it still hangs"
    assert await sold(sqlite) == []
    body.goes_on.set()
    assert await asyncio.to_thread(body.ended.wait, 20)
    assert isinstance(body.refusal, StepTimeout)
    assert await sold(sqlite) == []


async def test_a_step_that_is_cancelled_in_mid_body_has_let_go_when_its_cancellation_is_told(sqlite: Store) -> None:
    body = Hanging()
    beginning = asyncio.ensure_future(sqlite.begin(body, deadline_ms=DEADLINE_MS))
    assert await asyncio.to_thread(body.hangs.wait, 20)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    assert sqlite.submit(start("r1")) == APPLIED, "the turn is free this instant"
    body.goes_on.set()
    assert await asyncio.to_thread(body.ended.wait, 20)
    assert isinstance(body.refusal, StoreError)
    assert await sold(sqlite) == []


async def test_one_transaction_begins_after_the_other_is_decided(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))
    _, first = await sqlite.begin(lambda connection: shop(connection, "one"), deadline_ms=DEADLINE_MS)
    began: list[str] = []

    def second_body(connection: sqlite3.Connection) -> None:
        began.append("second")
        shop(connection, "two")

    beginning = asyncio.ensure_future(sqlite.begin(second_body, deadline_ms=DEADLINE_MS))
    third = asyncio.ensure_future(sqlite.begin(lambda connection: None, deadline_ms=DEADLINE_MS))
    await asyncio.sleep(0)
    third.cancel()
    assert began == []
    assert await first.commit(append("r1", 4)) == APPLIED
    _, second = await beginning
    assert await second.commit(append("r1", 5)) == APPLIED
    assert await sold(sqlite) == ["one", "two"]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("commit", "committed by the engine"),
        ("rollback", "committed by the engine"),
        ("attach ':memory:' as other", "the engine's file alone"),
        ("pragma synchronous=off", "pragma synchronous"),
        ("update runs set state = 'completed'", "table runs is the engine's"),
        ("create temp table runs (run_id text)", "changed or hidden"),
        ("create temp view waits as select 1", "changed or hidden"),
        ("create trigger t after insert on runs begin select 1; end", "table runs is the engine's"),
        ("create trigger t after insert on mine begin delete from runs; end; ", None),
    ],
)
async def test_what_is_denied_is_denied_with_its_reason(sqlite: Store, statement: str, reason: str | None) -> None:
    def body(connection: sqlite3.Connection) -> None:
        connection.execute("create table mine (id text)")
        connection.execute(statement)
        # A trigger of the user's is theirs to make, but what it does is judged when it would do it.
        connection.execute("insert into mine values ('x')")

    with pytest.raises(sqlite3.DatabaseError, match=f"not authorized: .*{reason or 'table runs is the engine'}"):
        await sqlite.begin(body, deadline_ms=DEADLINE_MS)
    assert await answer(sqlite, start("r1")) == APPLIED


async def test_methods_that_would_end_the_transaction_say_why_they_do_not(sqlite: Store) -> None:
    refused: list[str] = []

    def body(connection: sqlite3.Connection) -> None:
        shop(connection, "tea")
        for call in (
            connection.commit,
            connection.rollback,
            connection.close,
            lambda: connection.set_authorizer(None),
            lambda: connection.set_progress_handler(None, 0),
            lambda: connection.blobopen("runs", "state", 1),
        ):
            with pytest.raises(sqlite3.ProgrammingError, match="committed by the engine"):
                call()
            refused.append("one")
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            connection.isolation_level = None  # which commits

    _, opened = await sqlite.begin(body, deadline_ms=DEADLINE_MS)
    await opened.rollback()
    assert len(refused) == 6
    assert await sold(sqlite) == []


async def test_a_with_block_is_a_part_that_can_fail_by_itself(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))

    def body(connection: sqlite3.Connection) -> None:
        with connection:
            shop(connection, "tea")
        with pytest.raises(sqlite3.IntegrityError), connection:  # noqa: PT012
            shop(connection, "milk")
            shop(connection, "tea")

    _, opened = await sqlite.begin(body, deadline_ms=DEADLINE_MS)
    assert await opened.commit(append("r1", 4)) == APPLIED
    assert await sold(sqlite) == ["tea"]


async def test_scripts_row_factories_and_questions_about_tables_work_as_usual(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))

    def body(connection: sqlite3.Connection) -> list[Any]:
        connection.executescript("create table shop (item text); insert into shop values ('a;b'); -- done; \n")
        connection.executemany("insert into shop values (?)", [("c",), ("d",)])
        connection.row_factory = lambda cursor, row: {"item": row[0]}
        columns = connection.execute("select name from pragma_table_info('shop')").fetchmany(5)
        one = connection.execute("select item from shop order by 1 limit 1").fetchone()
        return [*columns, one, *connection.execute("select item from shop order by 1 limit -1 offset 2")]

    value, opened = await sqlite.begin(body, deadline_ms=DEADLINE_MS)
    assert value == [{"item": "item"}, {"item": "a;b"}, {"item": "d"}]
    # The factory was the user's: the engine reads its own rows as ever.
    assert await opened.commit(append("r1", 4)) == APPLIED
    assert kinds(await sqlite.journal("r1"))[3:] == ["step_completed"]


async def test_a_connection_that_is_kept_is_worth_nothing_after_the_body(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))
    kept: list[Any] = []

    def body(connection: sqlite3.Connection) -> None:
        shop(connection, "tea")
        kept.extend([connection, connection.execute("select 1 union select 2")])

    _, opened = await sqlite.begin(body, deadline_ms=DEADLINE_MS)
    for use in (lambda: kept[0].execute("insert into shop values ('late')"), lambda: kept[1].fetchall()):
        with pytest.raises(sqlite3.ProgrammingError, match="has ended"):
            use()
    assert await opened.commit(append("r1", 4)) == APPLIED
    assert await sold(sqlite) == ["tea"]


async def test_what_a_body_raises_is_handed_on_whatever_it_is(sqlite: Store) -> None:
    def stop(connection: sqlite3.Connection) -> None:
        raise StopIteration("none left")

    def leave(connection: sqlite3.Connection) -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="none left"):
        await sqlite.begin(stop, deadline_ms=DEADLINE_MS)
    with pytest.raises(SystemExit):
        await sqlite.begin(leave, deadline_ms=DEADLINE_MS)
    assert sqlite.submit(start("r1")) == APPLIED


async def test_a_store_that_only_reads_begins_no_transaction(sqlite: Store, sqlite_url: str, open_store: Open) -> None:
    reader = await open_store(sqlite_url, read_only=True)
    with pytest.raises(StoreError, match="opened for reading"):
        await reader.begin(lambda connection: None, deadline_ms=DEADLINE_MS)


# ---- PostgreSQL


@pytest.fixture
async def postgres(postgres_url: str, open_store: Open) -> Store:
    """A store on a database that also holds the user's tables."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(
        "create table orders (id text primary key);"
        "create table lines (id text references orders deferrable initially deferred);"
        "create schema elsewhere; create table elsewhere.runs (run_id text)"
    )
    await connection.close()
    return await open_store(postgres_url)


async def orders(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    found = [row[0] for row in await connection.fetch("select id from orders order by 1")]
    await connection.close()
    return found


def order(*statements: str) -> Any:
    async def body(connection: Any) -> None:
        for statement in statements:
            await connection.execute(statement)

    return body


INSERT = "insert into orders values ('a')"


async def test_a_plain_function_is_refused_before_it_runs(postgres: Store) -> None:
    called: list[str] = []

    def body(connection: Any) -> None:
        called.append("yes")

    with pytest.raises(TypeError, match="async def"):
        await postgres.begin(body, deadline_ms=DEADLINE_MS)
    assert called == []


@pytest.mark.parametrize("ending", [["commit"], ["rollback"], ["commit", "begin"], ["rollback; begin"]])
async def test_a_body_that_ended_its_transaction_is_found_out_even_if_it_began_another(
    postgres: Store, ending: list[str]
) -> None:
    await answer(postgres, start("r1"))
    with pytest.raises(StoreError, match="ended its transaction"):
        await postgres.begin(order(*ending), deadline_ms=DEADLINE_MS)
    # The connection went back in order.
    _, opened = await postgres.begin(order(INSERT), deadline_ms=DEADLINE_MS)
    assert await opened.commit(append("r1", 4)) == APPLIED


async def test_a_body_that_swallows_a_failed_statement_is_told_what_became_of_it(
    postgres: Store, postgres_url: str
) -> None:
    async def body(connection: Any) -> None:
        await connection.execute(INSERT)
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute(INSERT)

    with pytest.raises(StoreError, match="failed, and its body went on"):
        await postgres.begin(body, deadline_ms=DEADLINE_MS)
    assert await orders(postgres_url) == []


async def test_a_deferred_constraint_fails_the_body_and_not_the_commit(postgres: Store) -> None:
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await postgres.begin(order("insert into lines values ('of no order')"), deadline_ms=DEADLINE_MS)


async def test_what_a_body_sets_reaches_neither_the_engine_nor_the_next_body(postgres: Store) -> None:
    await answer(postgres, start("r1"))
    sets = (
        "set search_path = elsewhere", "set local search_path = elsewhere", "set lock_timeout = 1",
        "create temp table basket (id text)", "create role nobody_else", "set role nobody_else",
    )  # fmt: skip
    _, opened = await postgres.begin(order(*sets), deadline_ms=DEADLINE_MS)
    assert await opened.commit(append("r1", 4)) == APPLIED
    assert kinds(await postgres.journal("r1"))[3:] == ["step_completed"]

    async def look(connection: Any) -> list[Any]:
        found = await connection.fetchrow(
            "select current_schema(), current_user = session_user, current_setting('lock_timeout'),"
            " to_regclass('basket') is null"
        )
        return list(found)

    found, opened = await postgres.begin(look, deadline_ms=DEADLINE_MS)
    await opened.rollback()
    assert found == ["public", True, postgres_transaction.LOCK_WAIT, True]


async def test_a_body_whose_connection_breaks_is_called_again(postgres: Store, postgres_url: str) -> None:
    await answer(postgres, start("r1"))
    calls: list[int] = []

    async def body(connection: Any) -> int:
        calls.append(1)
        await connection.execute(INSERT)
        if len(calls) == 1:
            await connection.execute("select pg_terminate_backend(pg_backend_pid())")
        return len(calls)

    value, opened = await postgres.begin(body, deadline_ms=DEADLINE_MS)
    assert value == 2
    assert await opened.commit(append("r1", 4)) == APPLIED
    assert await orders(postgres_url) == ["a"]


async def test_an_owner_that_says_nothing_does_not_keep_its_locks(
    postgres: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_transaction, "OWNER_S", 0.01)
    await answer(postgres, start("r1"))
    _, opened = await postgres.begin(order(INSERT), deadline_ms=DEADLINE_MS)
    other = await asyncpg.connect(postgres_url)
    await other.execute(INSERT)  # waits for the transaction that has inserted the same
    await other.close()
    with pytest.raises(StoreError, match="ended already"):
        await opened.commit(append("r1", 4))


async def test_an_owner_that_speaks_up_while_its_transaction_is_being_undone_is_told_so(postgres: Store) -> None:
    await answer(postgres, start("r1"))
    _, opened = await postgres.begin(order(INSERT), deadline_ms=DEADLINE_MS)
    undoing = asyncio.ensure_future(opened.rollback())
    await asyncio.sleep(0)
    assert not undoing.done(), "the server has not answered yet"
    with pytest.raises(StoreError, match="ended already"):
        await opened.commit(append("r1", 4))
    await undoing


@pytest.mark.parametrize("loss", [LOSE_THE_ANSWER, LOSE_THE_COMMIT])
async def test_a_commit_that_nobody_answers_is_decided_by_our_row(
    postgres: Store, postgres_url: str, open_store: Open, loss: str
) -> None:
    await answer(postgres, start("r1"))
    async with losing(loss, postgres_url) as (url, relay):
        store = await open_store(url)
        _, opened = await store.begin(order(INSERT, f"select '{loss}'"), deadline_ms=DEADLINE_MS)
        assert await opened.commit(append("r1", 4)) == (APPLIED if loss == LOSE_THE_ANSWER else UNDONE)
        assert relay.lost == 1
        await store.close()
    took_place = loss == LOSE_THE_ANSWER
    assert await orders(postgres_url) == (["a"] if took_place else [])
    assert kinds(await postgres.journal("r1"))[3:] == (["step_completed"] if took_place else [])
