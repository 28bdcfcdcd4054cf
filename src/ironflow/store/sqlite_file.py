"""Whether a database is still the file that was opened.

A file that is deleted or replaced while it is open lives on for whoever has it open: every commit succeeds, and nobody
who opens the path finds it. SQLite does not look (in WAL mode), so this does: before each write, before each new
connection, and now and then before a read. It looks by name and opens nothing, which would drop SQLite's locks.

What was acknowledged before the file went is gone with it. What comes after is refused, for good: the file may come
back, but not what others have made of its place meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from pathlib import Path
from time import monotonic
from typing import NoReturn

from ironflow.errors import StoreGone
from ironflow.store.sqlite_connection import CACHE_KIB, connect

#: How often, seconds, the files beside the database are looked at, and the database by who only reads: a look costs
#: more than a microsecond, and a commit on its own takes a hundred of them.
GLANCE_S = 0.1
#: SQLite's log and its index. They stay the same files for as long as a connection is open.
_BESIDE = ("-wal", "-shm")

log = logging.getLogger("ironflow.store")

#: Device and inode of a file; those of none at all.
Identity = tuple[int, int]
_NONE: Identity = (-1, -1)


class DatabaseFile:
    """One database file, as a store has opened it. Make it in any thread, when the file exists.

    Args:
        path: of the file, absolute.
        name: of the file, for errors.
        loop: of the store.
        written: it is open for writing, so its log and the index are there, too.
    """

    __slots__ = ("_beside", "_glanced", "_loop", "_opened", "gone", "name", "path")

    def __init__(self, path: Path, name: str, loop: asyncio.AbstractEventLoop, *, written: bool) -> None:
        self.path = path
        self.name = name
        #: done once it is known that the file is gone
        self.gone: asyncio.Future[StoreGone] = loop.create_future()
        self._loop = loop
        self._opened = _identity(path)
        # SQLite keeps them beside the file itself, wherever a link to it may be.
        beside = [Path(os.path.realpath(path) + suffix) for suffix in _BESIDE] if written else []
        self._beside = [(place, _identity(place)) for place in beside]
        self._glanced = monotonic()

    def check(self) -> None:
        """Before a write.

        Raises:
            StoreGone: the file, its log or the index is not the one that was opened.
        """
        if not _lies(self.path, self._opened):
            self._raise()
        self.glance()

    def glance(self) -> None:
        """Before a read: as `check`, but at most every `GLANCE_S`. What is known to be gone stays so."""
        now = monotonic()
        if now - self._glanced <= GLANCE_S and self._opened != _NONE:
            return
        self._glanced = now
        if not (_lies(self.path, self._opened) and all(_lies(*one) for one in self._beside)):
            self._raise()

    def connect(
        self, cache_kib: int = CACHE_KIB, factory: type[sqlite3.Connection] = sqlite3.Connection
    ) -> sqlite3.Connection:
        """One more connection for writing; see `sqlite_connection.connect`.

        Raises:
            StoreGone: it would be to another file, or make a new one.
        """
        self.check()
        return connect(self.path, cache_kib=cache_kib, factory=factory)

    def _raise(self) -> NoReturn:
        error = StoreGone(f"{self.name} was deleted, moved or replaced while this process had it open")
        if self._opened != _NONE:
            self._opened = _NONE  # whatever comes to lie there
            log.error("%s", error)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it everybody who would be told
                self._loop.call_soon_threadsafe(self._tell, error)
        raise error

    def _tell(self, error: StoreGone) -> None:
        if not self.gone.done():
            self.gone.set_result(error)


def _identity(place: Path) -> Identity:
    try:
        found = place.stat()
    except OSError:
        return _NONE
    return found.st_dev, found.st_ino


def _lies(place: Path, opened: Identity) -> bool:
    """Whether the file that was opened lies there."""
    try:
        found = place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # not to be seen is not gone; what is wrong there, SQLite meets and says
    return (found.st_dev, found.st_ino) == opened
