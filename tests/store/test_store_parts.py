"""The parts that know no database: the loader of statements, migrations, guards, the committer, `connect`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import pytest
from tests.store.build import append

from ironflow.errors import InvalidSettings, StoreError, StoreTooNew
from ironflow.model.capacity import LeaseRow, QueueRow, RunHead, SessionRow
from ironflow.model.run import RunRow
from ironflow.model.transition import APPLIED, LOST, QUEUED, Transition
from ironflow.model.wait import WaitRow
from ironflow.store import connect, migrate
from ironflow.store.committer import BATCH_BYTES, BATCH_ROWS, Committer, Job, next_batch
from ironflow.store.dialect import SHARED, load, parse, translate
from ironflow.store.guards import Fence, Queued, judge


# ---- statements
def test_parameters_are_numbered_once_each_for_postgres_and_kept_for_sqlite() -> None:
    text = "select :a, :b, :a from t where c = 'x:y' and d::text = \"e:f\" -- :g\n and h = :b /* :i */"
    assert translate(text, "sqlite") == (text, ("a", "b"))
    numbered = text.replace(":a", "$1").replace(":b", "$2")
    assert translate(text, "postgres") == (numbered, ("a", "b"))


def test_each_database_sees_its_own_comments_only() -> None:
    text = "select x /*postgres: = any(:ids) */ /*sqlite: in (select value from json_each(:ids)) */ from t"
    assert translate(text, "postgres") == ("select x = any($1)  from t", ("ids",))
    assert translate(text, "sqlite") == ("select x  in (select value from json_each(:ids)) from t", ("ids",))


def test_dollar_quotes_are_left_alone() -> None:
    text = "create function f() as $body$ select :not_a_parameter; $body$"
    assert translate(text, "postgres") == (text, ())


def test_fragments_are_shared_and_comments_stay_in_the_file() -> None:
    found = parse(
        "-- fragment: cols\na, b\n\n-- why\n-- name: one\nselect {cols} from t where a = :a;\n-- end\n",
        "postgres",
    )
    assert found["one"].text == "select a, b from t where a = $1"
    assert found["one"].arguments({"a": 5, "z": 1}) == [5]


def test_two_statements_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two statements are named one"):
        parse("-- name: one\nselect 1\n-- name: one\nselect 2", "sqlite")


@pytest.mark.parametrize(
    ("fragment", "row", "prefix"),
    [("run_columns", RunRow, ""), ("queue_columns", QueueRow, ""), ("lease_columns", LeaseRow, ""),
     ("session_columns", SessionRow, ""), ("wait_columns", WaitRow, ""), ("head_columns", RunHead, "r.")],
)  # fmt: skip
def test_columns_stand_in_the_order_of_the_fields(fragment: str, row: type, prefix: str) -> None:
    names = _fragment(fragment).replace("\n", " ").split(",")
    expected = [field.name for field in fields(row)]
    if row is RunHead:
        expected.remove("reservation")
    assert [name.strip().removeprefix(prefix) for name in names] == expected


def _fragment(name: str) -> str:
    from importlib import resources

    text = resources.files("ironflow.store").joinpath("sql", "columns.sql").read_text()
    return parse(f"{text}\n-- name: probe\n{{{name}}}", "sqlite")["probe"].text


def test_every_shared_statement_takes_the_same_parameters_on_both() -> None:
    one, two = load("sqlite", *SHARED), load("postgres", *SHARED)
    assert one.keys() == two.keys()
    for name, statement in one.items():
        assert set(statement.params) == set(two[name].params), name


# ---- migrations
def test_only_what_is_missing_is_applied_and_a_newer_schema_is_refused() -> None:
    known = [migrate.Migration(n, f"m{n}", "") for n in (1, 2, 3)]
    assert [m.number for m in migrate.pending("sqlite", None, known)] == [1, 2, 3]
    assert [m.number for m in migrate.pending("sqlite", 2, known)] == [3]
    assert migrate.pending("sqlite", 3, known) == []
    with pytest.raises(StoreTooNew, match="schema 4"):
        migrate.pending("sqlite", 4, known)


def test_migrations_are_numbered_without_gaps() -> None:
    numbers = [migration.number for migration in migrate.migrations("sqlite")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert migrate.latest() == numbers[-1]


# ---- guards
@pytest.mark.parametrize(
    ("status", "eligible_at", "token", "expected"),
    [("ready", 0, None, APPLIED), ("delayed", 100, None, APPLIED), ("delayed", 101, None, LOST),
     ("blocked", 0, None, LOST), ("reserved", 0, None, LOST), ("reserved", 0, "t", APPLIED),
     ("suspect", 0, None, APPLIED)],
)  # fmt: skip
def test_a_queued_segment_goes_by_its_status_and_its_time(
    status: str, eligible_at: int, token: str | None, expected: str
) -> None:
    change = Transition("r", QUEUED)
    change.reservation = token
    fence = Fence("r", 0, None, "pending", 0, False, "default", "order")
    row = Queued("r", status, eligible_at, "t" if status == "reserved" else None)
    assert judge(change, fence, row, (), 100) == expected
    assert judge(change, fence, row, {("default", "order")}, 100) == LOST
    assert judge(change, fence, None, (), 100) == LOST
    assert judge(change, None, row, (), 100) == LOST


# ---- the committer
def items(*changes: Transition | Job) -> deque[Any]:
    return deque((change, object()) for change in changes)


def taken(batch: Sequence[Any]) -> list[str]:
    return [item[0].run_id if isinstance(item[0], Transition) else "job" for item in batch]


def test_a_batch_holds_one_transition_of_a_run_and_keeps_their_order() -> None:
    first, second, third = append("a", 1), append("a", 2), append("a", 3)
    backlog = items(first, append("b", 1), second, append("c", 1), third)
    assert taken(next_batch(backlog)) == ["a", "b", "c"]
    assert [item[0] for item in next_batch(backlog)] == [second]
    assert [item[0] for item in next_batch(backlog)] == [third]
    assert not backlog


def test_a_job_is_alone_and_comes_in_its_turn() -> None:
    job = Job(lambda: None)
    second = append("a", 2)
    backlog = items(append("a", 1), second, job, append("b", 1))
    assert taken(next_batch(backlog)) == ["a"]
    assert taken(next_batch(backlog)) == ["a"], "what was submitted before the job goes before it"
    assert taken(next_batch(backlog)) == ["job"]
    assert taken(next_batch(backlog)) == ["b"]


def test_a_batch_is_bounded_by_rows_and_by_bytes() -> None:
    backlog = items(*[append(f"r{n}", 1) for n in range(BATCH_ROWS + 5)])
    assert len(next_batch(backlog)) == BATCH_ROWS
    assert len(next_batch(backlog)) == 5
    large = [append(f"r{n}", 1) for n in range(8)]
    for change in large:
        change.events[0].payload = "x" * (BATCH_BYTES // 3 + 1)
    backlog = items(*large)
    assert [len(next_batch(backlog)) for _ in range(3)] == [3, 3, 2]


class Broken:
    """A backend that fails in ways no backend should."""

    def commit(self, batch: Sequence[Transition]) -> list[str]:
        if batch[0].run_id == "interrupt":
            raise KeyboardInterrupt
        raise RuntimeError("boom")

    def try_commit(self, change: Transition) -> str | None:
        return None

    def perform(self, job: Callable[[], Any]) -> Any:
        return job()

    def try_perform(self, job: Callable[[], Any]) -> tuple[bool, Any]:
        return False, None


async def test_whatever_a_backend_does_every_caller_is_answered() -> None:
    committer = Committer(Broken(), asyncio.get_running_loop())
    futures = [committer.submit(append(name, 1)) for name in ("a", "b")]
    found = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 10)  # type: ignore[arg-type]
    assert [type(error) for error in found] == [RuntimeError, RuntimeError]

    def fail() -> None:
        raise LookupError("a job of mine")

    with pytest.raises(LookupError):
        await committer.run(fail)
    assert await committer.run(lambda: 5) == 5
    await committer.close()
    with pytest.raises(StoreError, match="closed"):
        committer.submit(append("a", 1))


async def test_a_loop_that_is_gone_stops_the_writers_thread_not() -> None:
    committer = Committer(Broken(), asyncio.get_running_loop())
    answer = committer._loop.call_soon_threadsafe
    lost = 0

    def gone(*_: Any) -> None:
        nonlocal lost
        lost += 1
        raise RuntimeError("the loop is closed")

    committer._loop = _Loop(committer._loop, gone)  # type: ignore[assignment]
    committer._handed.put([(append("a", 1), asyncio.get_running_loop().create_future())])
    while not lost:
        await asyncio.sleep(0)
    committer._loop = _Loop(committer._loop, answer)  # type: ignore[assignment]
    assert await committer.run(lambda: 5) == 5
    await committer.close()


class _Loop:
    """A loop whose way back from threads can be cut."""

    def __init__(self, loop: Any, call_soon_threadsafe: Any) -> None:
        self._loop = loop
        self.call_soon_threadsafe = call_soon_threadsafe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


# ---- connect
@pytest.mark.parametrize(
    "url",
    ["", "iron.db", "sqlite://iron.db", "sqlite:///", "mysql://h/d", "sqlite:///:memory:", "postgresql"],
)
async def test_an_address_of_another_form_is_refused_with_the_forms(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"sqlite:///relative\.db"):
        await connect(url)


async def test_a_wrong_address_does_not_give_its_password_away() -> None:
    with pytest.raises(InvalidSettings) as caught:
        await connect("mysql://user:secret@host/db")
    assert "secret" not in str(caught.value)


async def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("ironflow.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(InvalidSettings, match=r"pip install 'ironflow-engine\[postgres\]'"):
        await connect("postgresql://host/db")
