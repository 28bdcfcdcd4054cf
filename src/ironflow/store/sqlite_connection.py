"""Connections to a SQLite file: how they are opened, and what its errors mean.

Owns the pragmas (WAL, `synchronous=FULL`: what was answered is on the disk), the schema's migration, and
the one place where an error of the driver becomes an error of Ironflow. Nothing in this process ever opens
the database file by any other means: closing any descriptor of it would silently drop the locks SQLite
holds on it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ironflow.errors import (
    ConcurrencyConflict,
    IronflowError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)
from ironflow.store import migrate
from ironflow.store.dialect import SQLITE
from ironflow.store.turnstile import Turnstile, has_turn

#: `returning`, `->>` and upserts as the statements use them.
OLDEST = (3, 38, 0)
#: Milliseconds SQLite itself waits. Our processes queue at the turnstile; this is for foreign programs on
#: the file.
BUSY_MS = 5_000
CACHE_KIB = 64 * 1024

_DATABASE: Final = {
    sqlite3.SQLITE_BUSY: (StoreUnreachable, "is locked by another program and stayed so for 5 s"),
    sqlite3.SQLITE_LOCKED: (StoreUnreachable, "is locked"),
    sqlite3.SQLITE_CANTOPEN: (StoreUnreachable, "cannot be opened"),
    sqlite3.SQLITE_PERM: (StoreUnreachable, "may not be accessed by this user"),
    sqlite3.SQLITE_READONLY: (StoreReadOnly, "cannot be written"),
    sqlite3.SQLITE_FULL: (StoreFull, "cannot grow: the disk is full"),
    sqlite3.SQLITE_CORRUPT: (StoreCorrupt, "is damaged"),
    sqlite3.SQLITE_NOTADB: (StoreCorrupt, "is not a SQLite database"),
    sqlite3.SQLITE_IOERR: (StoreError, "met an input/output error"),
}
_HINTS: Final = {
    sqlite3.SQLITE_BUSY: "Close the program that holds it (a database browser with an open transaction?).",
    sqlite3.SQLITE_CANTOPEN: "Check that its folder exists and that this user may write there.",
    sqlite3.SQLITE_NOTADB: "Point IRONFLOW_DATABASE_URL at an Ironflow database or at a new file.",
}


def explain(error: sqlite3.Error, name: str) -> IronflowError:
    """What an error of the driver means to a person, as an error of Ironflow.

    Args:
        error: as the driver raised it.
        name: the file.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_CONSTRAINT_UNIQUE and "runs.concurrency_key" in str(error):
        return ConcurrencyConflict("another live run holds the concurrency key of this one")
    primary = code & 0xFF if isinstance(code, int) else -1
    kind, what = _DATABASE.get(primary, (StoreError, f"refused a statement: {error}"))
    return kind(f"{name} {what}", hint=_HINTS.get(primary))


def environmental(error: sqlite3.Error) -> bool:
    """Whether the cause is the file or the machine: a smaller transaction would meet it just the same."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF in _DATABASE


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn the driver's errors into Ironflow's around a block."""
    try:
        yield
    except sqlite3.Error as error:
        raise explain(error, name) from error


def check_writable(path: Path, name: str) -> None:
    """Say at once what would otherwise come out as an error of one of the files beside the database.

    Raises:
        StoreUnreachable: its folder does not exist.
        StoreReadOnly: this user may not write it, or not in its folder (SQLite keeps its log beside the file).
    """
    folder = path.absolute().parent
    # Of a path that is hidden its folder is hidden, too.
    shown = f" {folder}" if str(folder) in name else ""
    if not folder.is_dir():
        raise StoreUnreachable(
            f"{name} cannot be made: there is no folder{shown}", hint="Make the folder, or correct the address."
        )
    for place, what in ((path, "the file"), (folder, f"its folder{shown}")):
        if place.exists() and not os.access(place, os.W_OK):
            raise StoreReadOnly(
                f"{name} cannot be written: this user has no right to write {what}",
                hint="Give this user the right to write; SQLite keeps files beside the database, so both need it.",
            )


def check_ours(path: Path, name: str) -> None:
    """Refuse a file that is not for us before anything is laid beside it: a refusal leaves nothing behind.

    Raises:
        StoreCorrupt: it is no database, or another program's.
        StoreError: see :func:`explain`.
    """
    if path.exists() and not has_turn(path):
        with explained(name), contextlib.closing(connect(path)) as connection:
            _applied(connection, name)


def connect(
    path: Path,
    *,
    read_only: bool = False,
    cache_kib: int = CACHE_KIB,
    factory: type[sqlite3.Connection] = sqlite3.Connection,
) -> sqlite3.Connection:
    """A connection in autocommit mode, ready for use by any thread (one at a time).

    Args:
        path: the file; created when it does not exist, unless `read_only`.
        read_only: refuse every write.
        cache_kib: the page cache in KiB.
        factory: the class of the connection.

    Raises:
        sqlite3.Error: see :func:`explain`.
    """
    mode = "ro" if read_only else "rwc"
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
        timeout=BUSY_MS / 1000,
        factory=factory,
    )
    try:
        # A file written by a hostile or careless hand may carry triggers; they may call nothing of ours.
        connection.execute("pragma trusted_schema=off")
        connection.execute("pragma recursive_triggers=on")  # `insert or replace` meets the append-only triggers too
        connection.execute(f"pragma cache_size=-{cache_kib}")
        connection.execute("pragma temp_store=memory")
        if read_only:
            connection.execute("pragma query_only=on")
            return connection
        connection.execute("pragma synchronous=full")
        # Checkpoints run in a thread of their own: inside a commit they would cost its caller milliseconds.
        connection.execute("pragma wal_autocheckpoint=0")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, turnstile: Turnstile, now: int) -> None:
    """Bring a database to the schema of this code: WAL mode and every pending migration, each a transaction.

    Raises:
        StoreCorrupt: it is another program's.
        StoreTooNew: a newer release has been here.
        sqlite3.Error: see :func:`explain`.
    """
    with turnstile.turn():
        _applied(connection, turnstile.database)  # refuses what is not ours, before its mode is changed
        if _scalar(connection, "pragma journal_mode=wal") != "wal":
            raise StoreUnreachable(
                f"{turnstile.database} is on a file system without shared memory, which SQLite needs",
                hint="Put it on a local disk, or use PostgreSQL.",
            )
        if _applied(connection, turnstile.database) == migrate.latest():
            return
        connection.execute("begin immediate")
        try:
            connection.execute(migrate.BOOKKEEPING)
            for migration in migrate.pending(SQLITE, _applied(connection, turnstile.database)):
                for statement in statements(migration.text):
                    connection.execute(statement)
                connection.execute(
                    "insert into ironflow_migrations (version, name, applied_at) values (?, ?, ?)",
                    (migration.number, migration.name, now),
                )
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise


def verify(connection: sqlite3.Connection, name: str) -> None:
    """For a reader: the schema must be the one this code knows; it may not be changed from here.

    Raises:
        StoreTooNew: a newer release has been here.
        StoreUnreachable: there is none yet.
        StoreCorrupt: it is another program's.
        StoreError: it is older.
    """
    applied = _applied(connection, name)
    if applied is None:
        raise migrate.nothing_there(name)
    migrate.verify(SQLITE, applied)


def statements(script: str) -> Iterator[str]:
    """The statements of a script. A semicolon inside a string, a comment or a trigger ends none."""
    collected = ""
    *pieces, rest = script.split(";")
    for piece in pieces:
        collected += piece + ";"
        if sqlite3.complete_statement(collected):
            yield collected
            collected = ""
    rest = collected + rest
    if any(line and not line.startswith("--") for line in map(str.strip, rest.splitlines())):
        yield rest


def _applied(connection: sqlite3.Connection, name: str) -> int | None:
    """The newest migration that the database has had; None if it has had none.

    A program's own tables may be there: transactional steps are for them. What may not be there is one of our names.

    Raises:
        StoreCorrupt: another program has such a table.
    """
    found = connection.execute(
        "select name from sqlite_master where type = 'table' and name not like 'sqlite!_%' escape '!'"
    )
    tables = {table for (table,) in found}
    columns = {column for (column,) in connection.execute("select name from pragma_table_info('ironflow_migrations')")}
    if columns != migrate.BOOKKEEPING_COLUMNS:
        if tables & migrate.tables():
            raise migrate.foreign(name, tables & migrate.tables())
        return None
    applied: int | None = _scalar(connection, migrate.APPLIED)
    return applied


def _scalar(connection: sqlite3.Connection, sql: str) -> Any:
    row = connection.execute(sql).fetchone()
    return row[0] if row else None
