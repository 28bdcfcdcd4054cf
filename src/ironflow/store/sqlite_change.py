"""What the changes of a SQLite store that are no transitions stand on: one transaction, and named statements in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from ironflow.store.committer import Committer
from ironflow.store.sqlite_reads import SqliteReads
from ironflow.store.sqlite_writer import SqliteWriter

Result = TypeVar("Result")


class SqliteChange(SqliteReads):
    """The store that sets these two up brings the changes with it."""

    _writer: SqliteWriter
    _committer: Committer

    async def _change(self, work: Callable[[sqlite3.Connection, int], Result], *, short: bool = True) -> Result:
        return await self._committer.run(lambda: self._writer.transaction(work), short=short)

    def _execute(self, connection: sqlite3.Connection, statement: str, /, **values: Any) -> sqlite3.Cursor:
        return connection.execute(self._statements[statement].text, values)
