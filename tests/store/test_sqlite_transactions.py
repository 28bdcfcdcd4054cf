"""A user's transaction: their writes and the step's completion commit together, or neither does."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import time
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.store.build import answer, append, changed, leave, start
from tests.store.test_sqlite import other_program

from ironflow.errors import StepTimeout, StoreError
from ironflow.model.transition import APPLIED, NEWS, STALE
from ironflow.store import sqlite_transaction, turnstile
from ironflow.store.base import Store

SHOP = "create table if not exists shop (item text primary key)"


def buy(item: str) -> Any:
    def body(connection: sqlite3.Connection) -> str:
        connection.execute(SHOP)
        connection.execute("insert into shop values (?)", (item,))
        return item.upper()

    return body


async def bought(store: Store) -> list[str]:
    with other_program(store) as other:
        other.execute(SHOP)
        return [item for (item,) in other.execute("select item from shop order by 1")]


async def test_the_writes_and_the_completion_commit_together(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))
    value, opened = await sqlite.begin(buy("tea"), deadline_ms=5_000)
    assert value == "TEA"
    assert len(await sqlite.journal("r1")) == 3
    assert await opened.commit(append("r1", 4)) == APPLIED
    assert await bought(sqlite) == ["tea"]
    assert len(await sqlite.journal("r1")) == 4
    assert await answer(sqlite, append("r1", 5)) == APPLIED


async def test_a_stale_owner_loses_its_writes_too(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))
    _, opened = await sqlite.begin(buy("tea"), deadline_ms=5_000)
    assert await opened.commit(append("r1", 4, token="wrong")) == STALE
    assert await bought(sqlite) == []
    with pytest.raises(StoreError):
        await opened.commit(append("r1", 4))


async def test_after_news_the_owner_may_commit_again(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))
    await sqlite.decide(["r1"], changed(facts=1))
    _, opened = await sqlite.begin(buy("tea"), deadline_ms=5_000)
    assert await opened.commit(leave("r1", 4, "completed", facts=0)) == NEWS
    assert await opened.commit(leave("r1", 4, "completed", facts=1)) == APPLIED
    assert await bought(sqlite) == ["tea"]


async def test_what_is_rolled_back_was_never_there(sqlite: Store) -> None:
    _, opened = await sqlite.begin(buy("tea"), deadline_ms=5_000)
    await opened.rollback()
    assert await answer(sqlite, start("r1")) == APPLIED
    assert await bought(sqlite) == []
    await opened.rollback()


async def test_what_the_body_raises_is_raised_and_undone(sqlite: Store) -> None:
    def body(connection: sqlite3.Connection) -> None:
        buy("tea")(connection)
        buy("tea")(connection)

    with pytest.raises(sqlite3.IntegrityError, match="shop"):
        await sqlite.begin(body, deadline_ms=5_000)
    assert await bought(sqlite) == []


@pytest.mark.parametrize("statement", [
    "commit", "rollback", "savepoint_is_fine", "attach ':memory:' as other", "pragma user_version=5", "begin",
    "update runs set state = 'completed'", "delete from journal_events", "drop table runs",
    "insert into dispatch_queue values (1)", "create trigger t before insert on runs begin select 1; end",
])  # fmt: skip
async def test_the_body_cannot_end_the_transaction_or_touch_the_engine(sqlite: Store, statement: str) -> None:
    await answer(sqlite, start("r1"))

    def body(connection: sqlite3.Connection) -> list[Any]:
        if statement == "savepoint_is_fine":
            connection.execute("savepoint s")
            connection.execute("release s")
            return connection.execute("select state from runs").fetchall()
        return connection.execute(statement).fetchall()

    if statement == "savepoint_is_fine":
        value, opened = await sqlite.begin(body, deadline_ms=5_000)
        assert value == [("running",)]
        await opened.rollback()
        return
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
        await sqlite.begin(body, deadline_ms=5_000)


async def test_a_body_that_closes_its_connection_hurts_itself_only(sqlite: Store) -> None:
    with pytest.raises(sqlite3.ProgrammingError):
        await sqlite.begin(lambda connection: connection.close(), deadline_ms=5_000)
    assert await answer(sqlite, start("r1")) == APPLIED


async def test_a_body_that_takes_too_long_is_stopped(sqlite: Store) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    with pytest.raises(StepTimeout, match="50 ms"):
        await sqlite.begin(lambda connection: connection.execute(endless).fetchall(), deadline_ms=50)
    with pytest.raises(StepTimeout):
        await sqlite.begin(lambda connection: time.sleep(0.002), deadline_ms=1)
    assert await answer(sqlite, start("r1")) == APPLIED


async def test_a_transaction_that_nobody_ends_is_rolled_back(sqlite: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ironflow.store.sqlite_transaction.TURN_MS", 20)
    _, opened = await sqlite.begin(buy("tea"), deadline_ms=10_000)
    assert await answer(sqlite, start("r1")) == APPLIED, "whoever waited goes on"
    with pytest.raises(StoreError, match="open for too long"):
        await opened.commit(append("r1", 4))
    assert await bought(sqlite) == []


async def test_the_function_and_its_owner_share_one_budget(sqlite: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("ironflow.store.sqlite_transaction.monotonic", lambda: clock[0])

    def body(connection: sqlite3.Connection) -> None:
        clock[0] += sqlite_transaction.TURN_MS / 1000  # as if the function had used up all of it

    await sqlite.begin(body, deadline_ms=60_000)
    began = time.monotonic()
    assert await answer(sqlite, start("r1")) == APPLIED
    assert time.monotonic() - began < 2, "nothing was left for the owner, so nobody waited for its word"


def test_whoever_waits_for_the_turn_is_more_patient_than_a_transaction_is_long() -> None:
    assert sqlite_transaction.LONGEST_MS < sqlite_transaction.TURN_MS < turnstile.PATIENCE_S * 1000


async def test_other_writers_wait_and_then_go_on(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))
    _, opened = await sqlite.begin(buy("tea"), deadline_ms=5_000)
    waiting = sqlite.submit(start("r2"))
    assert isinstance(waiting, Awaitable)
    await asyncio.sleep(0)
    assert await sqlite.run("r2") is None, "readers do not wait"
    assert await opened.commit(append("r1", 4)) == APPLIED
    assert await waiting == APPLIED


async def test_a_caller_that_gives_up_leaves_nothing_behind(sqlite: Store) -> None:
    opening = asyncio.ensure_future(sqlite.begin(buy("tea"), deadline_ms=5_000))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert await answer(sqlite, start("r1")) == APPLIED
    assert await bought(sqlite) == []


async def test_closing_the_store_rolls_open_transactions_back(sqlite: Store) -> None:
    _, opened = await sqlite.begin(buy("tea"), deadline_ms=5_000)
    await sqlite.close()
    with pytest.raises(StoreError):
        await opened.commit(append("r1", 4))
    assert await bought(sqlite) == []


async def test_a_coroutine_function_is_refused_with_the_reason(sqlite: Store) -> None:
    async def body(connection: sqlite3.Connection) -> None: ...

    with pytest.raises(TypeError, match="plain `def`"):
        await sqlite.begin(body, deadline_ms=5_000)


async def test_the_body_sees_the_context_variables_of_its_step(sqlite: Store) -> None:
    variable = contextvars.ContextVar("variable", default="outside")
    variable.set("inside")
    value, opened = await sqlite.begin(lambda connection: variable.get(), deadline_ms=5_000)
    await opened.rollback()
    assert value == "inside"
