"""Named statements on a connection that somebody else owns: what every part of the PostgreSQL store writes by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ironflow.store.dialect import Statement
from ironflow.store.postgres_link import Connection


class Named:
    """What decides, counts lanes and writes plans is one of these.

    Args:
        statements: the named statements for PostgreSQL.
    """

    __slots__ = ("_statements",)

    def __init__(self, statements: Mapping[str, Statement]) -> None:
        self._statements = statements

    async def _fetch(self, connection: Connection, name: str, /, **values: Any) -> list[Any]:
        """The rows of a statement."""
        statement = self._statements[name]
        return await connection.fetch(statement.text, *statement.arguments(values))
