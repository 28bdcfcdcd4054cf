"""Fresh databases for every round, as durable as in production, on the disk that holds the bench's folder.

Every side of every round gets a database of its own: a figure must not depend on what was measured before it.
SQLite runs in WAL mode with `synchronous=FULL`; PostgreSQL with `fsync` and `synchronous_commit` on. The engine and
the floor get the same, since a floor on a lazier disk would flatter nobody but itself.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from ironflow.store import connect
from ironflow.testing.postgres import PostgresServer

SQLITE = "sqlite"
POSTGRES = "postgres"
STORES = (SQLITE, POSTGRES)

_TEMPLATE = "bench_template"


class Place:
    """Where one store's measurements live. A context manager; everything is removed at its end.

    Args:
        store: `sqlite` or `postgres`.
        folder: a folder on a real disk for all files; None makes one in the current folder's file system, because
            the system's temporary folder is often kept in memory, where a sync costs nothing.
    """

    def __init__(self, store: str, folder: Path | None = None) -> None:
        self.store = store
        self._base = folder or Path.cwd()
        self._numbers = itertools.count(1)
        self._server: PostgresServer | None = None
        self.folder = Path()

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=self._base))
        if self.store == POSTGRES:
            try:
                self._start_server()
            except BaseException:
                self._remove()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.stop()
        self._remove()

    def _start_server(self) -> None:
        # The server may run as another user, who needs to reach its data below our private folder.
        self.folder.chmod(0o755)
        self._server = PostgresServer(self.folder / "data", fsync=True, settings={"synchronous_commit": "on"})
        self._server.start()

    def _remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    async def fresh(self) -> str:
        """The address of a new database with Ironflow's schema in it."""
        number = next(self._numbers)
        if self._server is None:
            url = f"sqlite:///{self.folder}/{number}.db"
            await _migrate(url)
            return url
        if number == 1:
            await _migrate(self._server.create_database(_TEMPLATE))
        return self._server.create_database(f"bench_{number}", template=_TEMPLATE)

    def drop(self, url: str) -> None:
        """Forget a database that is measured: 30 rounds must not fill the disk."""
        if self._server is not None:
            self._server.drop_database(url.split("?")[0].rsplit("/", 1)[1])
            return
        file = Path(url.removeprefix("sqlite:///"))
        for path in file.parent.glob(f"{file.name}*"):
            path.unlink()

    def version(self) -> str:
        """The database's version, for the heading of a table."""
        if self._server is None:
            import sqlite3

            return f"SQLite {sqlite3.sqlite_version}"
        return f"PostgreSQL {self._server.execute('show server_version').split()[0]}"


async def _migrate(url: str) -> None:
    await (await connect(url)).close()
