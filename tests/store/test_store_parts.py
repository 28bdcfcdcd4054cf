"""The parts that know no database: the loader of statements, migrations, guards, the committer, `connect`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import pytest
from tests.store.build import append

from ironflow.errors import InvalidSettings, StoreError, StoreTooNew
from ironflow.model.capacity import LeaseRow, QueueRow, RunHead, SessionRow
from ironflow.model.key import KeyRow
from ironflow.model.run import RunRow
from ironflow.model.transition import APPLIED, GUARD_LOCKED, GUARD_QUEUED, LOST, Audit, Transition
from ironflow.model.wait import WaitRow
from ironflow.store import connect, migrate
from ironflow.store.committer import Committer
from ironflow.store.dialect import SHARED, load, parse, translate
from ironflow.store.gather import BATCH_BYTES, BATCH_ROWS, Backlog, Job
from ironflow.store.guards import Fence, Queued, admit, fitting, judge, page
from ironflow.store.postgres_lone import SPELLED
from ironflow.store.rows import AUDIT_LISTS, DELETIONS, HOLDINGS, LIVE_PAGE, unheard_of, unowned
from ironflow.store.sqlite_alone import appends_alone


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
     ("session_columns", SessionRow, ""), ("key_columns", KeyRow, ""), ("wait_columns", WaitRow, ""),
     ("head_columns", RunHead, "r.")],
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


def _python(pattern: str) -> str:
    from importlib import resources

    folder = resources.files("ironflow.store")
    return "".join(one.read_text() for one in folder.iterdir() if re.fullmatch(pattern, one.name))


# What is executed by a name that is put together: `find_{column}`, and the lists of `rows`.
_BY_ANOTHER_NAME = {"find_idempotency_key", "find_concurrency_key", *HOLDINGS, *DELETIONS, *AUDIT_LISTS}


def test_shared_statements_are_those_that_both_databases_execute() -> None:
    sqlite, postgres = _python(r"sqlite_?\w*\.py"), _python(r"postgres_?\w*\.py")
    for name in load("sqlite", *SHARED).keys() - _BY_ANOTHER_NAME:
        assert f'"{name}"' in sqlite, f"{name} is PostgreSQL's alone"
        assert f'"{name}"' in postgres, f"{name} is SQLite's alone"


def test_every_statement_of_one_database_is_executed_there() -> None:
    own = load("sqlite", "columns", "sqlite_loops")
    code = _python(r"sqlite_?\w*\.py")
    assert [name for name in own if f'"{name}"' not in code] == []
    own = load("postgres", "columns", "postgres_batches", "postgres_lone", "postgres_general", "postgres_loops")
    code = _python(r"postgres_?\w*\.py")
    assert [name for name in own if f'"{name}"' not in code] == []


def test_lone_statements_of_postgres_take_their_parameters_in_the_order_in_which_they_are_given() -> None:
    found = {name: one.params for name, one in load("postgres", "postgres_lone").items()}
    assert found == SPELLED


# ---- plain appends
# A value for every field that an append leaves alone. A new field must be added here and to `is_plain_append`.
_MORE = {
    "audit": [Audit("a", "b")], "changes": {"reason": "x"}, "clear_waits": True, "dequeue": True,
    "enqueue": QueueRow("r", "order", 0, 0, 0, 0), "ended": True, "facts": 0, "guard": GUARD_LOCKED,
    "lanes": [("l", 1)], "lease": LeaseRow("r", 1, "t", "s", 0, 0), "new_execution_seq": 0, "new_token_hash": "",
    "progress": True, "release": True, "reservation": "", "row": RunRow("r", "w", "1", "running", "w", "r", 0),
    "state": "cancelling", "waits": [WaitRow("r", "s", "timer", "sleeping", 0)],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted({*Transition.__slots__} - {"run_id", "execution_seq", "token_hash", "events"}))
def test_whatever_a_transition_carries_beyond_events_makes_it_no_plain_append(name: str) -> None:
    change = append("r", 4)
    assert change.is_plain_append
    assert appends_alone(change)
    setattr(change, name, _MORE[name])
    assert not change.is_plain_append
    assert not appends_alone(change)


# ---- lanes
def test_whoever_finds_a_full_lane_is_refused_and_takes_no_place() -> None:
    wanted = {"a": [("g", 1), ("h", 2)], "b": [("g", 1)], "c": [("h", 2)], "d": [("h", 2)], "e": []}
    assert admit(wanted, {"g": set(), "h": set()}) == {"b": "g", "d": "h"}
    assert admit(wanted, {"g": {"x"}, "h": set()}) == {"a": "g", "b": "g"}
    assert admit({"a": [("g", 1)]}, {"g": {"a"}}) == {}, "it holds the place already"


def test_when_enough_are_let_in_nothing_is_said_of_the_rest() -> None:
    wanted = {"a": [("g", 1)], "b": [("g", 1)], "c": [], "d": [("g", 1)]}
    assert admit(wanted, {"g": set()}, 2) == {"b": "g"}


def test_nobody_overtakes_in_a_lane() -> None:
    assert fitting([("a", 2), ("b", 2), ("c", 5)], 1) == ["a"]
    assert fitting([("a", 1)], 1) == []


def test_a_reservation_looks_wide_once_it_was_refused() -> None:
    assert [page(look, 3) for look in (0, 1)] == [3, 100]
    assert page(1, 500) == 500


# ---- the walk over live runs
def test_a_walk_goes_on_where_the_last_page_ended_and_then_begins_anew() -> None:
    full = LIVE_PAGE
    assert unowned([(None, "r5", full)], 10) == ([], "r5")
    found = unowned([("r6", "r9", full), ("r7", "r9", full)], 2)
    assert found == (["r6", "r7"], "r7"), "the rest of this page was not looked at"
    assert unowned([("r8", "r9", 3)], 2) == (["r8"], "")
    assert unowned([(None, None, 0)], 2) == ([], "")


@pytest.mark.parametrize(
    ("text", "expected"), [("a", False), ("ä😀", False), ("a\0", True), ("\ud800", True), (5, False)]
)
def test_a_text_that_no_row_can_hold_is_known(text: object, expected: bool) -> None:
    assert unheard_of(["x", text]) is expected


# ---- migrations
def test_a_reader_refuses_a_schema_that_is_older_or_newer() -> None:
    migrate.verify("sqlite", migrate.latest())
    for applied in (None, 0):
        with pytest.raises(StoreError, match="schema 0"):
            migrate.verify("postgres", applied)
    with pytest.raises(StoreTooNew):
        migrate.verify("postgres", 99)


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
     ("blocked", 0, None, LOST), ("reserved", 0, None, LOST), ("reserved", 0, "t", APPLIED)],
)  # fmt: skip
def test_a_queued_segment_goes_by_its_status_and_its_time(
    status: str, eligible_at: int, token: str | None, expected: str
) -> None:
    change = Transition("r", GUARD_QUEUED)
    change.reservation = token
    fence = Fence("r", 0, None, "pending", 0, False, "default", "default", "order", 0)
    row = Queued("r", status, eligible_at, "t" if status == "reserved" else None)
    assert judge(change, fence, row, (), 100) == expected
    assert judge(change, fence, row, {("default", "default", "order")}, 100) == LOST
    assert judge(change, fence, row, {("default", "staging", "order")}, 100) == expected
    assert judge(change, fence, None, (), 100) == LOST
    assert judge(change, None, row, (), 100) == LOST


# ---- the committer
def backlog_of(*changes: Transition | Job) -> Backlog[Any]:
    backlog: Backlog[Any] = Backlog()
    backlog.extend((change, object()) for change in changes)
    return backlog


def taken(batch: Sequence[Any]) -> list[str]:
    return [item[0].run_id if isinstance(item[0], Transition) else "job" for item in batch]


def test_a_batch_holds_one_transition_of_a_run_and_keeps_their_order() -> None:
    first, second, third = append("a", 1), append("a", 2), append("a", 3)
    backlog = backlog_of(first, append("b", 1), second, append("c", 1), third)
    assert taken(backlog.next_batch()) == ["a", "b", "c"]
    assert [item[0] for item in backlog.next_batch()] == [second]
    assert [item[0] for item in backlog.next_batch()] == [third]
    assert not backlog


def test_a_job_is_alone_and_comes_in_its_turn() -> None:
    job = Job(lambda: None)
    second = append("a", 2)
    backlog = backlog_of(append("a", 1), second, job, append("b", 1))
    assert taken(backlog.next_batch()) == ["a"]
    assert taken(backlog.next_batch()) == ["a"], "what was submitted before the job goes before it"
    assert taken(backlog.next_batch()) == ["job"]
    assert taken(backlog.next_batch()) == ["b"]


def test_what_is_left_of_a_backlog_is_given_whole() -> None:
    changes = [append("a", 1), append("b", 1), append("a", 2), Job(lambda: None), append("c", 1)]
    backlog = backlog_of(*changes)
    assert {id(item[0]) for item in backlog.take_all()} == {id(change) for change in changes}
    assert not backlog
    backlog.append((changes[0], object()))
    assert taken(backlog.next_batch()) == ["a"]


class Looked(tuple[Any, ...]):
    """An item that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        Looked.looks += 1
        return super().__getitem__(index)


def test_a_backlog_of_one_run_is_not_looked_through_for_each_of_its_batches() -> None:
    count = 3_000
    backlog: Backlog[Any] = Backlog()
    Looked.looks = 0
    backlog.extend(Looked((append("a", n), object())) for n in range(1, count + 1))
    backlog.append(Looked((Job(lambda: None), object())))
    backlog.extend(Looked((append("a", n), object())) for n in range(1, count + 1))
    batches = 0
    while backlog:
        assert len(backlog.next_batch()) == 1
        batches += 1
    assert batches == 2 * count + 1
    assert Looked.looks <= 12 * count


def test_a_batch_is_bounded_by_rows_and_by_bytes() -> None:
    backlog = backlog_of(*[append(f"r{n}", 1) for n in range(BATCH_ROWS + 5)])
    assert len(backlog.next_batch()) == BATCH_ROWS
    assert len(backlog.next_batch()) == 5
    large = [append(f"r{n}", 1) for n in range(8)]
    for change in large:
        change.events[0].payload = "x" * (BATCH_BYTES // 3 + 1)
    backlog = backlog_of(*large)
    assert [len(backlog.next_batch()) for _ in range(3)] == [3, 3, 2]


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

    def try_perform(self, job: Callable[[], Any]) -> tuple[Any] | None:
        return None


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
    ["", "iron", "sqlite://iron.db", "sqlite:///", "mysql://h/d", "sqlite:///:memory:", "postgresql"],
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
