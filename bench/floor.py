"""The floor: the engine's rows written by a bare driver, with the fewest and fastest statements we know.

It has no queue, no guard, no codec, no loop and no user code; it uses the same tables and indexes, the same
durability and one connection. What is prepared (rows, statements, arrays) is prepared before the clock runs. So
nothing that writes these rows can be faster by much, and value / floor says what the engine adds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

from bench.script import Record, Writes
from ironflow.store.rows import LEASE_COLUMNS, QUEUE_COLUMNS, RUN_COLUMNS, WAIT_COLUMNS

COLUMNS = {
    "runs": RUN_COLUMNS,
    "journal_events": ("run_id", "seq", "kind", "step_id", "payload", "execution_seq", "at"),
    "dispatch_queue": QUEUE_COLUMNS,
    "concurrency_leases": LEASE_COLUMNS,
    "waits": WAIT_COLUMNS,
}

#: A commit, ready to be executed.
Ready = Callable[[], Awaitable[None]]


class Floor(Protocol):
    """A bare connection to one database."""

    async def ready(self, writes: Writes) -> Ready:
        """Prepare one commit: calling the result executes it."""
        ...

    async def close(self) -> None:
        """Give the connection back."""
        ...


async def open_floor(url: str) -> Floor:
    """A bare connection to a database that has Ironflow's schema."""
    if url.startswith("sqlite"):
        return SqliteFloor(url.removeprefix("sqlite:///"))
    return await PostgresFloor.open(url)


async def timed(commits: Sequence[Ready]) -> float:
    """Execute commits one after the other; seconds for all of them."""
    started = perf_counter()
    for commit in commits:
        await commit()
    return perf_counter() - started


#: Seconds between two commits in which nothing is done: about what an engine computes between them.
PAUSE_S = 60e-6


async def paced(commits: Sequence[Ready]) -> float:
    """Execute commits with a pause before each; seconds for all of them, the pauses not counted.

    A disk answers whoever comes back at once sooner than whoever was away for a moment: the host that emulates it has
    not gone to sleep yet. The pause reads a clock and touches no memory, so what it adds to a commit is not the cost
    of cold caches, and no engine is spared it.
    """
    seconds = 0.0
    for commit in commits:
        begun = perf_counter()
        while perf_counter() - begun < PAUSE_S:
            pass
        begun = perf_counter()
        await commit()
        seconds += perf_counter() - begun
    return seconds


#: How commits are executed and timed.
Clock = Callable[[Sequence[Ready]], Awaitable[float]]


async def each_timed(commits: Sequence[Ready], clock: Clock = timed) -> list[float]:
    """Execute commits one after the other; seconds for each."""
    return [await clock([commit]) for commit in commits]


class SqliteFloor:
    """WAL and FULL, and a log that is overwritten instead of grown: what makes a lone commit cheapest."""

    #: Larger than what one round writes, so no checkpoint falls into a round.
    LOG_BYTES = 64 * 1024 * 1024

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, cached_statements=512)
        for pragma in ("journal_mode=wal", "synchronous=full", "wal_autocheckpoint=0", "temp_store=memory"):
            self._db.execute(f"pragma {pragma}").fetchall()
        self._grow_log()
        self._db.execute("pragma cache_size=-65536")

    def _grow_log(self) -> None:
        """A transaction too large for the cache spills into the log, and leaves nothing but its size."""
        self._db.execute("pragma cache_size=-1024")
        self._db.execute("begin immediate")
        self._db.execute("create table filling (bytes blob)")
        self._db.execute("insert into filling values (zeroblob(?))", (self.LOG_BYTES,))
        self._db.execute("rollback")

    async def ready(self, writes: Writes) -> Ready:
        """See `Floor.ready`."""
        jobs: list[tuple[str, Sequence[Record]]] = []
        for table, records in writes.inserts.items():
            names = COLUMNS[table]
            jobs.append((f"insert into {table} ({', '.join(names)}) values ({_marks(len(names))})", records))
        ends = [(state, 1, run_id) for run_id, state, ended in writes.states if ended]
        moves = [(state, run_id) for run_id, state, ended in writes.states if not ended]
        if ends:
            jobs.append(("update runs set state = ?, ended_at = ?, lease_token_hash = null where run_id = ?", ends))
        if moves:
            jobs.append(("update runs set state = ?, execution_seq = execution_seq + 1 where run_id = ?", moves))
        for table, ids in writes.deletes.items():
            jobs.append((f"delete from {table} where run_id = ?", [(run_id,) for run_id in ids]))

        async def commit() -> None:
            db = self._db
            db.execute("begin immediate")
            for sql, records in jobs:
                # One row is cheaper by `execute`, which needs no iterator.
                if len(records) == 1:
                    db.execute(sql, records[0])
                else:
                    db.executemany(sql, records)
            db.execute("commit")

        return commit

    async def close(self) -> None:
        """See `Floor.close`."""
        self._db.close()


class PostgresFloor:
    """One prepared statement per commit and so one round trip: a statement is a transaction of its own."""

    #: Up to so many rows are spelled out; more go over as one array per column.
    SPELLED = 4

    def __init__(self, connection: Any, types: dict[tuple[str, str], str]) -> None:
        self._connection = connection
        self._types = types
        self._statements: dict[str, Any] = {}

    @classmethod
    async def open(cls, url: str) -> PostgresFloor:
        """Connect and learn the types of the columns, which arrays need."""
        import asyncpg

        connection = await asyncpg.connect(url)
        found = await connection.fetch(
            "select table_name, column_name, data_type from information_schema.columns"
            " where table_schema = current_schema()"
        )
        return cls(connection, {(table, column): kind for table, column, kind in found})

    async def ready(self, writes: Writes) -> Ready:
        """See `Floor.ready`."""
        parts: list[str] = []
        values: list[Any] = []
        for table, records in writes.inserts.items():
            source = self._spelled if len(records) <= self.SPELLED else self._arrays
            parts.append(f"insert into {table} ({', '.join(COLUMNS[table])}) {source(table, records, values)}")
        for ended, setting in (
            (True, "ended_at = 1, lease_token_hash = null"),
            (False, "execution_seq = execution_seq + 1"),
        ):
            chosen = [(run_id, state) for run_id, state, ends in writes.states if ends is ended]
            if chosen:
                values += [chosen[0][1], [run_id for run_id, _ in chosen]]
                parts.append(
                    f"update runs set state = ${len(values) - 1}, {setting} where run_id = any(${len(values)}::text[])"
                )
        for table, ids in writes.deletes.items():
            values.append(ids)
            parts.append(f"delete from {table} where run_id = any(${len(values)}::text[])")
        statement = await self._prepared(parts)

        async def commit() -> None:
            await statement.fetch(*values)

        return commit

    async def _prepared(self, parts: list[str]) -> Any:
        *first, last = parts
        sql = last
        if first:
            named = ", ".join(f"p{number} as ({part})" for number, part in enumerate(first))
            sql = f"with {named} {last}"
        if sql not in self._statements:
            self._statements[sql] = await self._connection.prepare(sql)
        return self._statements[sql]

    def _spelled(self, table: str, records: Sequence[Record], values: list[Any]) -> str:
        groups = []
        for record in records:
            marks = [
                f"${len(values) + number}::{self._types[table, column]}"
                for number, column in enumerate(COLUMNS[table], 1)
            ]
            values += record
            groups.append(f"({', '.join(marks)})")
        return f"values {', '.join(groups)}"

    def _arrays(self, table: str, records: Sequence[Record], values: list[Any]) -> str:
        marks = [
            f"${len(values) + number}::{self._types[table, column]}[]"
            for number, column in enumerate(COLUMNS[table], 1)
        ]
        values += map(list, zip(*records, strict=True))
        return f"select * from unnest({', '.join(marks)})"

    async def close(self) -> None:
        """See `Floor.close`."""
        await self._connection.close()


def _marks(count: int) -> str:
    return ", ".join("?" * count)
