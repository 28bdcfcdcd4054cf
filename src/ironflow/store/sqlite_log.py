"""The write-ahead log: kept at one size and written over, never grown.

A commit that overwrites existing blocks of the log is a third cheaper than one that extends the file, so
the log has to start again from its beginning before it grows. SQLite starts it again only when a checkpoint
has copied all of it, and beside a busy writer a passive checkpoint never catches up with the tail. So, in a
thread of its own: the bulk without the turn (it holds nobody up), then the tail with it (a few pages).

Owns that thread and its connection. Loses nothing if it fails: the log only grows, and the next round tries
again.
"""

from __future__ import annotations

import logging
import sqlite3
import threading

from ironflow.errors import IronflowError
from ironflow.store.sqlite_file import DatabaseFile
from ironflow.store.turnstile import Turnstile

#: Pages after which a round begins: half of what the log holds, so that there is time for the round itself. Rounds cost
#: syncs of their own, so they should be rare; a lone writer felt one every thousand pages.
ROUND = 4_000
#: Bytes the log is given once it is clear that this store writes.
LOG_BYTES = 32 * 1024 * 1024
#: Pages after which that is clear: a command that writes once should not fill 16 MiB for it.
WRITES = 200

#: What does not fit in the cache of the keeper's connection spills into the log.
_CACHE_BYTES = 1024 * 1024

log = logging.getLogger("ironflow.store")


class LogKeeper:
    """Counts the pages that are written and checkpoints in time."""

    def __init__(self, file: DatabaseFile, turnstile: Turnstile) -> None:
        self._file = file
        self._turnstile = turnstile
        self._pages = 0
        self._grown = False
        self._due = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def wrote(self, pages: int) -> None:
        """Told after each transaction, with the turn held: about how many pages it took."""
        self._pages += pages
        if self._pages >= (ROUND if self._grown else WRITES):
            self._pages = 0
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="ironflow-log", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return  # no thread is to be had: the log grows until one is. What was written stays written.
                self._thread = thread
            self._due.set()

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        try:
            while True:
                self._due.wait()
                self._due.clear()
                if self._closing:
                    return
                try:
                    if connection is None:
                        connection = self._open()
                    self._round(connection)
                except (sqlite3.Error, IronflowError, OSError) as error:
                    log.warning("a checkpoint of %s did not work: %s", self._turnstile.database, error)
        finally:
            if connection is not None:
                connection.close()

    def _open(self) -> sqlite3.Connection:
        return self._file.connect(cache_kib=1024)

    def _round(self, connection: sqlite3.Connection) -> None:
        if not self._grown:
            self._grown = True
            with self._turnstile.turn():
                grow(connection, LOG_BYTES)
            return
        self._file.check()  # else the log of one file would be copied into another
        connection.execute("pragma wal_checkpoint(passive)").fetchall()
        with self._turnstile.turn():
            connection.execute("pragma wal_checkpoint(passive)").fetchall()


def grow(connection: sqlite3.Connection, size: int) -> None:
    """Write the log `size` bytes large and change nothing: a transaction spills, and is rolled back."""
    connection.execute(f"pragma cache_size=-{_CACHE_BYTES // 1024}")
    connection.execute("begin immediate")
    try:
        connection.execute("create table growth (filling blob)")
        connection.execute("insert into growth values (zeroblob(?))", (size + _CACHE_BYTES,))
    finally:
        if connection.in_transaction:  # a full disk has rolled back already, and is the error to tell
            connection.execute("rollback")
