"""What is SQLite's own: the file, other programs on it, the log, the clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.recovery.kit import until
from tests.store.build import answer, answers, append, session, start
from tests.store.conftest import Open

from ironflow.errors import (
    IronflowError,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnreachable,
)
from ironflow.model.transition import APPLIED
from ironflow.store import connect, sqlite_connection, turnstile
from ironflow.store.base import Store
from ironflow.store.sqlite_connection import BUSY_MS


def path_of(store: Store) -> Path:
    return Path(store.name.removeprefix("sqlite:///"))


@contextlib.contextmanager
def other_program(store: Store) -> Iterator[sqlite3.Connection]:
    """A connection that knows nothing of ours: another program with the file open."""
    with contextlib.closing(sqlite3.connect(path_of(store), isolation_level=None, timeout=0)) as program:
        yield program


# ---- what is in the file
async def test_the_file_is_a_durable_wal_database(sqlite: Store) -> None:
    with other_program(sqlite) as other:
        assert other.execute("pragma journal_mode").fetchone() == ("wal",)
        applied = other.execute("select version, name from ironflow_migrations").fetchall()
    assert applied[:2] == [(1, "foundation"), (2, "cluster")]
    assert [version for version, _ in applied] == list(range(1, len(applied) + 1))
    writing = sqlite._writer._connection  # type: ignore[attr-defined]
    assert writing.execute("pragma synchronous").fetchone() == (2,), "FULL: what was answered is on the disk"


async def test_opening_again_changes_nothing_and_finds_everything(sqlite_url: str) -> None:
    for n in range(3):
        store = await connect(sqlite_url)
        assert await answer(store, start(f"r{n}")) == APPLIED
        await store.close()
    store = await connect(sqlite_url)
    assert await store.counts() == {"running": 3}
    await store.close()
    await store.close()


async def test_a_relative_path_is_relative_to_the_folder_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = await connect("sqlite:///here%20too.db")
    await store.close()
    assert (tmp_path / "here too.db").exists()


@pytest.mark.parametrize("statement", [
    "update journal_events set kind = 'x'",
    "delete from journal_events",
    "delete from journal_events where run_id = 'r1'",
    "insert or replace into journal_events values ('r1', 1, 'x', null, null, 1, 1)",
    "update journal_payloads set payload = 'x'",
    "delete from journal_payloads",
])  # fmt: skip
async def test_p8_the_journal_cannot_be_changed(sqlite: Store, statement: str) -> None:
    change = start("r1")
    change.events[0].payload = "x" * 10_000
    await answer(sqlite, change)
    before = [repr(event) for event in await sqlite.journal("r1")]
    writing = sqlite._writer._connection  # type: ignore[attr-defined]
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        writing.execute(statement)
    assert [repr(event) for event in await sqlite.journal("r1")] == before


async def test_retention_may_delete_the_journals_it_names_and_no_other(sqlite: Store) -> None:
    await answers(sqlite, start("r1"), start("r2"))

    def retain(connection: sqlite3.Connection, run_id: str) -> None:
        connection.execute("insert into retention_passes values ('r1')")
        connection.execute("delete from journal_events where run_id = ?", (run_id,))
        connection.execute("delete from retention_passes")

    writer = sqlite._writer  # type: ignore[attr-defined]
    writer.transaction(lambda connection, now: retain(connection, "r1"))
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        writer.transaction(lambda connection, now: retain(connection, "r2"))
    assert [len(await sqlite.journal(run_id)) for run_id in ("r1", "r2")] == [0, 3]


# ---- what the loop reads itself
@pytest.mark.parametrize(("count", "size", "at_once"), [
    (20, 100, True), (1, 100_000, False), (200, 4_000, False), (1_000, 10, False),
])  # fmt: skip
async def test_others_have_their_turn_while_a_journal_of_any_size_is_read(
    sqlite: Store, count: int, size: int, at_once: bool
) -> None:
    """What is small is read on the spot, which is quicker for everybody; the rest in a thread."""
    await answer(sqlite, start("r1"))
    change = append("r1", 4, count=count)
    for event in change.events:
        event.payload = "x" * size
    await answer(sqlite, change)
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    assert len(await sqlite.journal("r1")) == count + 3
    assert turns == ([] if at_once else [1])


async def test_others_have_their_turn_while_single_events_are_read(sqlite: Store) -> None:
    change = start("r1")
    change.events[2].payload = "x" * 100_000
    await answer(sqlite, change)
    for read in (lambda: sqlite.events_at([("r1", 3)]), lambda: sqlite.last_event("r1")):
        turns: list[int] = []
        asyncio.get_running_loop().call_soon(turns.append, 1)
        assert await read()
        assert turns == [1]


# ---- files that cannot be used
async def test_a_database_of_a_newer_release_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    await (await connect(sqlite_url)).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "iron.db")) as other, other:
        other.execute("insert into ironflow_migrations values (99, 'future', 1)")
    for read_only in (False, True):
        with pytest.raises(StoreTooNew, match="schema 99"):
            await connect(sqlite_url, read_only=read_only)


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be looked at" * 40)
    with pytest.raises(StoreCorrupt, match=r"notes\.txt is not a SQLite database"):
        await connect(f"sqlite:///{tmp_path}/notes.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"], "a refusal leaves nothing beside the file"


async def test_a_refused_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "theirs.db")) as theirs:
        theirs.execute("create table runs (id)")
    with pytest.raises(StoreCorrupt, match="theirs"):
        await connect(f"sqlite:///{tmp_path}/theirs.db")
    assert [file.name for file in tmp_path.iterdir()] == ["theirs.db"]


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(IronflowError, match="missing"):
        await connect(f"sqlite:///{tmp_path}/missing/iron.db")


async def test_a_damaged_file_is_reported(sqlite_url: str, tmp_path: Path) -> None:
    store = await connect(sqlite_url)
    await answers(store, *[start(f"r{n}") for n in range(300)])
    await store.close()
    with (tmp_path / "iron.db").open("r+b") as file:
        file.seek(-20 * 4096, os.SEEK_END)  # rows, not the schema: that one is met at opening
        file.write(os.urandom(20 * 4096))
    store = await connect(sqlite_url)
    assert await store.check() != []
    with pytest.raises(StoreCorrupt, match="damaged"):
        await store.journals([f"r{n}" for n in range(300)])
    await store.close()


async def test_a_store_opened_for_reading_writes_nothing(sqlite_url: str, open_store: Open) -> None:
    writing = await open_store(sqlite_url)
    await answer(writing, start("r1"))
    reading = await open_store(sqlite_url, read_only=True)
    assert len(await reading.journal("r1")) == 3
    with pytest.raises(StoreReadOnly):
        await answer(reading, start("r2"))
    with pytest.raises(StoreReadOnly):
        await reading.decide(["r1"], lambda locked: None)
    reading.concurrent_writers = 9
    with pytest.raises(StoreReadOnly):
        await answer(reading, start("r2"))
    assert await writing.run("r2") is None


async def test_a_file_that_does_not_exist_is_not_made_for_reading(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable):
        await connect(f"sqlite:///{tmp_path}/iron.db", read_only=True)
    assert not (tmp_path / "iron.db").exists()


# ---- trouble while it runs
async def test_a_full_disk_is_one_clear_error_and_nothing_is_half_written(sqlite: Store) -> None:
    await answers(sqlite, start("r1"), start("r2"))
    writing = sqlite._writer._connection  # type: ignore[attr-defined]
    pages = writing.execute("pragma page_count").fetchone()[0]
    writing.execute(f"pragma max_page_count={pages}")
    big = append("r1", 4)
    big.events[0].payload = "x" * 5_000_000
    sqlite.concurrent_writers = 2
    found = await asyncio.gather(sqlite.submit(big), sqlite.submit(append("r2", 4)), return_exceptions=True)  # type: ignore[arg-type]
    assert isinstance(found[0], StoreFull)
    sqlite.concurrent_writers = 0
    with pytest.raises(StoreFull, match="disk is full"):
        await answer(sqlite, big)
    writing.execute("pragma max_page_count=1000000")
    assert await answer(sqlite, big) == APPLIED
    assert len(await sqlite.journal("r1")) == 4


async def test_a_foreign_program_that_holds_the_file_for_a_moment_is_waited_for(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))
    sqlite._committer._mean_s = 0.0  # type: ignore[attr-defined]  # so that the loop tries it first
    await asyncio.sleep(0)
    tried: list[str] = []
    sqlite._writer._connection.set_trace_callback(tried.append)  # type: ignore[attr-defined]
    waits = f"pragma busy_timeout={BUSY_MS}"
    with other_program(sqlite) as other:
        other.execute("begin immediate")
        waiting = asyncio.ensure_future(answer(sqlite, append("r1", 4)))
        await until(lambda: waits in tried[:-1], "SQLite waits, and the loop goes on meanwhile")
        assert not waiting.done()
        other.execute("rollback")
        assert await waiting == APPLIED


async def test_a_foreign_program_that_keeps_the_file_is_an_error_and_no_hang(
    sqlite: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await answer(sqlite, start("r1"))
    monkeypatch.setattr("ironflow.store.sqlite_writer.BUSY_MS", 20)
    with other_program(sqlite) as other:
        other.execute("begin immediate")
        for live in (0, 5):
            sqlite.concurrent_writers = live
            with pytest.raises(StoreUnreachable, match="locked by another program"):
                await answer(sqlite, append("r1", 4))
            with pytest.raises(StoreUnreachable):
                await sqlite.decide(["r1"], lambda locked: None)
        other.execute("rollback")
    assert await answer(sqlite, append("r1", 4)) == APPLIED


async def test_another_process_that_keeps_its_turn_is_an_error_and_no_hang(
    sqlite: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await answer(sqlite, start("r1"))
    turn = sqlite._turnstile  # type: ignore[attr-defined]
    monkeypatch.setattr(type(turn), "acquire", _impatient(turnstile.Turnstile.acquire))
    turn._mutex.acquire()
    sqlite.concurrent_writers = 5
    with pytest.raises(StoreUnreachable, match="has been writing"):
        await answer(sqlite, append("r1", 4))
    turn._mutex.release()
    assert await answer(sqlite, append("r1", 4)) == APPLIED


def _impatient(acquire: object) -> object:
    def soon(self: turnstile.Turnstile, timeout: float = 5.0) -> None:
        acquire(self, 0.02)  # type: ignore[operator]

    return soon


# ---- how it commits
async def test_a_lone_caller_is_answered_on_the_spot_and_a_crowd_is_not(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))
    sqlite._committer._mean_s = 0.0  # type: ignore[attr-defined]
    await asyncio.sleep(0)  # once in a tick; the start was this one's
    assert sqlite.submit(append("r1", 4)) == APPLIED
    sqlite.concurrent_writers = 2
    assert await sqlite.submit(append("r1", 5)) == APPLIED  # type: ignore[misc]


async def test_a_slow_disk_is_waited_for_by_the_writers_thread(sqlite: Store) -> None:
    await answer(sqlite, start("r1"))
    sqlite._committer._mean_s = 0.004  # type: ignore[attr-defined]
    assert not isinstance(sqlite.submit(append("r1", 4)), str)
    assert await answer(sqlite, append("r1", 5)) == APPLIED


async def test_a_crowd_shares_commits(sqlite: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await answers(sqlite, *[start(f"r{n}") for n in range(50)])
    sizes: list[int] = []
    writer = sqlite._writer  # type: ignore[attr-defined]
    commit = writer.commit

    def counted(batch: list[object]) -> object:
        sizes.append(len(batch))
        return commit(batch)

    monkeypatch.setattr(writer, "commit", counted)
    await answers(sqlite, *[append(f"r{n}", 4) for n in range(50)])
    assert sum(sizes) == 50
    assert len(sizes) <= 2


# ---- time
async def test_time_does_not_follow_a_clock_that_is_set_back_a_little(sqlite_url: str, open_store: Open) -> None:
    clock = [1_000_000]
    store = await open_store(sqlite_url, clock=lambda: clock[0])
    assert await answer(store, start("r1")) == APPLIED
    clock[0] = 997_000
    assert store.now() == 1_000_000
    await answer(store, append("r1", 4))
    clock[0] = 1_000_500
    await answer(store, append("r1", 5))
    assert [event.at for event in await store.journal("r1")][2:] == [1_000_000, 1_000_000, 1_000_500]


async def test_a_store_that_is_opened_later_starts_where_the_last_one_was(sqlite_url: str, open_store: Open) -> None:
    first = await open_store(sqlite_url, clock=lambda: 1_000_000)
    await first.open_session(session(first))
    second = await open_store(sqlite_url, clock=lambda: 997_000)
    assert second.now() == 1_000_000


async def test_a_due_time_is_reached_when_the_clock_says_so(sqlite_url: str, open_store: Open) -> None:
    clock = [1_000]
    store = await open_store(sqlite_url, clock=lambda: clock[0])
    from tests.store.build import create

    await answer(store, create("r1", eligible_at=5_000))
    assert await store.next_due() == 5_000
    clock[0] = 4_999
    assert (await store.promote(), await store.peek(["order"], 1)) == (0, [])
    clock[0] = 5_000
    assert await store.promote() == 1
    assert [head.run_id for head in await store.peek(["order"], 1)] == ["r1"]


# ---- errors of the driver
def test_an_error_nobody_has_named_keeps_its_own_words() -> None:
    error = sqlite_connection.explain(sqlite3.OperationalError("no such table: runs"), "x.db")
    assert "no such table: runs" in str(error)


def test_a_script_is_split_where_statements_end() -> None:
    text = "-- a; b\ncreate table t (a);\ncreate trigger x before update on t\nbegin select 1; end;\n-- end\n"
    assert [part.split()[-1] for part in sqlite_connection.statements(text)] == ["(a);", "end;"]
