"""Opening a PostgreSQL database: reach it, look at what it is, bring its schema and functions up to date.

All of that happens in one transaction under one advisory lock, so any number of processes may open an empty
database at once. The lock belongs to the transaction and not to the session, which also works behind a
pooler.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

import asyncpg

from ironflow.errors import IronflowError, StoreError
from ironflow.store import dialect, migrate
from ironflow.store.dialect import Statement
from ironflow.store.postgres_link import (
    UNPREPARED,
    Address,
    Connection,
    Patience,
    atomically,
    leave,
    lost,
    translated,
    unreachable,
)

#: The oldest server whose SQL is used here.
OLDEST = 140_000
#: The number under which openers take turns ("ironflow" read as hexadecimal digits would not fit; any
#: constant does).
_TURN = 4_921_337_001

_PROCESS = "select pg_backend_pid()"

_FILES = ("postgres_batches", "postgres_lone", "postgres_general", "postgres_loops")
_OWN_NAME = re.compile(r"\b(ironflow_[a-z_]+)_v\b")


def _functions_text() -> str:
    folder = resources.files("ironflow.store").joinpath("sql")
    return folder.joinpath("postgres_functions.sql").read_text(encoding="utf-8")


#: Stands at the end of every function's name, so that programs of two releases can share a database.
VERSION = hashlib.sha256(_functions_text().encode()).hexdigest()[:8]


def versioned(text: str) -> str:
    """SQL with the functions' names as they are in the database."""
    return _OWN_NAME.sub(rf"\1_{VERSION}", text)


def statements() -> dict[str, Statement]:
    """Every named statement in the text for PostgreSQL."""
    loaded = dialect.load(dialect.POSTGRES, *dialect.SHARED, *_FILES)
    return {name: Statement(name, versioned(one.text), one.params) for name, one in loaded.items()}


def call(function: str) -> str:
    """The text of a call of one of our functions, with all of its parameters in their order."""
    given = re.search(rf"function ironflow_{function}_v\(([^)]*)\)", _functions_text())
    assert given is not None, function
    marks = ", ".join(f"${n}" for n in range(1, given[1].count("p_") + 1))
    return versioned(f"select ironflow_{function}_v({marks})")


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found: the time, and the channel on which processes of this database and schema wake each
    other.
    """

    at: int
    channel: str


_REFUSES = "The server is there; check the user, the password and the name of the database in the address."
#: What only a server says, or does, that is there: it comes, it goes, or it ends a connection that it had let in.
_OF_A_SERVER = (
    asyncpg.CannotConnectNowError, asyncpg.AdminShutdownError, asyncpg.CrashShutdownError,
    asyncpg.ConnectionDoesNotExistError,
)  # fmt: skip


async def look_in(address: Address, read_only: bool) -> Opened:
    """Reach the database and bring it up to date. A connection that breaks on the way is a pause, as everywhere.

    Raises:
        StoreError: see `prepare`; or a pooler is between that keeps no sessions, and the address does not say so.
        StoreUnreachable: nobody answers, or not to this user, or the database does not exist. Of an address at which
            no server was met that is told at once: a wrong one does not get better by waiting.
    """
    patience = Patience()
    met = False
    while True:
        try:
            connection = await _connect(address)
            met = True
            try:
                if address.prepare:
                    await _check_sessions(connection, address)
                return await prepare(connection, address.name, read_only)
            finally:
                await leave(connection)
        except IronflowError:
            raise
        except Exception as error:
            if lost(error) and (met or isinstance(error, _OF_A_SERVER)) and await patience.wait():
                continue
            raise translated(error, address.name) from error


async def _connect(address: Address) -> Connection:
    try:
        return await address.connect(statements=0)  # whoever is between: nothing is left on a server
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise unreachable(address.name, error, _REFUSES) from error
    except (asyncpg.ClientConfigurationError, ValueError) as error:
        raise unreachable(address.name, error) from error


async def _check_sessions(connection: Connection, address: Address) -> None:
    """Refuse a pooler that changes servers between transactions, of which the address does not tell.

    A server greets with the number of its process, a pooler with one of its own. Only if they differ is there more to
    ask: whether one connection meets two processes, or two connections the same. In a session neither can be. An idle
    pooler gives the server that was used last, or the longest ago: two looks of one connection in a row, with the
    other's between other two, show either. A busy one shows it by chance, and sooner.

    Raises:
        StoreError: there is one.
        OSError, asyncpg.PostgresError: as the driver says.
    """
    if await connection.fetchval(_PROCESS) == connection.get_server_pid():
        return
    other = await _connect(address)
    seen: set[tuple[bool, int]] = set()
    try:
        for looking in (connection, other, connection, connection, other, other) * 2:
            seen.add((looking is other, await looking.fetchval(_PROCESS)))
    finally:
        await leave(other)
    if len(seen) != 2 or len({process for _, process in seen}) != 2:
        raise StoreError(f"{address.name} is a pooler that changes servers between transactions", hint=UNPREPARED)


async def prepare(connection: Connection, name: str, read_only: bool) -> Opened:
    """Check the server, migrate the schema, install the functions.

    Raises:
        StoreError: the server is too old, this user may not create what is missing, or (opened for reading) the
            schema is.
        StoreTooNew: the schema is ahead of this code.
        StoreUnreachable: opened for reading, and there is no schema.
        OSError, asyncpg.PostgresError: as the driver says.
    """
    version = int(await connection.fetchval("select current_setting('server_version_num')::int"))
    if version < OLDEST:
        raise StoreError(
            f"{name} is PostgreSQL {version // 10_000}; Ironflow needs {OLDEST // 10_000} or newer",
            hint="Upgrade the server.",
        )
    if read_only:
        await _check_schema(connection, name)
    else:
        async with atomically(connection):
            await connection.execute(f"select pg_advisory_xact_lock({_TURN})")
            await _migrate(connection, name)
    schema = str(await connection.fetchval("select current_schema()"))
    at = int(await connection.fetchval("select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint"))
    return Opened(at, "ironflow" if schema == "public" else f"ironflow_{schema}"[:63])


async def _check_schema(connection: Connection, name: str) -> None:
    if not await _has_bookkeeping(connection, name):
        raise migrate.nothing_there(name)
    migrate.verify(dialect.POSTGRES, await connection.fetchval(migrate.APPLIED))


async def _has_bookkeeping(connection: Connection, name: str) -> bool:
    """Whether a schema of ours is there. Other tables may stand beside it: a program's own belong into this database.

    Raises:
        StoreCorrupt: a tool of another program keeps its numbers in a table of the same name.
    """
    columns = {
        str(row[0])
        for row in await connection.fetch(
            "select attname::text from pg_attribute"
            " where attrelid = to_regclass('ironflow_migrations') and attnum > 0 and not attisdropped"
        )
    }
    if columns and columns != migrate.BOOKKEEPING_COLUMNS:
        raise migrate.foreign(name, ["ironflow_migrations"])
    return bool(columns)


async def _migrate(connection: Connection, name: str) -> None:
    # Asked first: to a user without the right to create tables, "if not exists" is refused even when they
    # exist.
    if not await _has_bookkeeping(connection, name):
        await connection.execute(migrate.BOOKKEEPING)
    for step in migrate.pending(dialect.POSTGRES, await connection.fetchval(migrate.APPLIED)):
        await connection.execute(step.text)
        values: tuple[Any, ...] = (step.number, step.name)
        await connection.execute(
            "insert into ironflow_migrations (version, name, applied_at)"
            " values ($1, $2, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint)",
            *values,
        )
    installed = await connection.fetchval("select to_regprocedure($1)", versioned("ironflow_clock_v(bigint)"))
    if installed is None:
        await connection.execute(versioned(_functions_text()))


async def set_session(connection: Connection) -> None:
    """Settings of a connection that writes.

    Plans are kept for as long as the connection lives, and the first ones are made while the tables are
    empty: a plan that reads a whole table would stay when the table has grown. Compiling such short
    statements never pays.
    """
    await connection.execute("set enable_seqscan = off; set jit = off")
