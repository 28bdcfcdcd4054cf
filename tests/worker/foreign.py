"""Another program on the database of a test: it locks what it likes, and lets no row in that it does not like."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import asyncpg

#: Statements for SQLite and for PostgreSQL: from then on no lease can be written, and from then on one can.
NO_LEASES = (
    "create trigger no_leases before insert on concurrency_leases begin select raise(abort, 'no leases today'); end",
    """
    create function no_leases() returns trigger language plpgsql as $$ begin raise 'no leases today'; end $$;
    create trigger no_leases before insert on concurrency_leases for each row execute function no_leases()
    """,
)
LEASES_AGAIN = ("drop trigger no_leases", "drop trigger no_leases on concurrency_leases")


async def execute(url: str, statements: tuple[str, str]) -> None:
    """Execute what fits the database."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(_path(url), isolation_level=None)) as program:
            program.execute(statements[0])
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statements[1])
    finally:
        await connection.close()


@asynccontextmanager
async def locked(url: str, run_id: str) -> AsyncIterator[None]:
    """Nobody can commit anything about this run (on SQLite: anything at all) until the block ends."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(_path(url), isolation_level=None)) as program:
            program.execute("begin immediate")
            yield
            program.execute("rollback")
        return
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            assert await connection.fetchval("select 1 from runs where run_id = $1 for update", run_id) == 1
            yield
    finally:
        await connection.close()


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///")
